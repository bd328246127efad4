#!/bin/sh
# Checks lease.pml, time.pml (names that begin with limit-), worker.pml (worker-), watermark.pml (mark), slice.pml (slice),
# expire.pml (expire), raise.pml (raise) and every mutant of them with Spin.
#
#   run.sh short            variants at small bounds; 4 minutes of processor time
#   run.sh full             the same, then larger bounds and a third node; under 20 min, 2 GB
#   run.sh replay NAME      prints a (shortest, if memory allows) counterexample of one mutant or probe
#
# A base must pass and its search must be complete. A mutant must break the claim, and a
# probe must reach the event it names: they show that the bases could have failed.
# Prints one line a variant; exits 1 if any result differs. Without Spin or a C
# compiler it exits 2.
set -eu

cd "$(dirname "$0")"
mode=${1:-short}

# The rule that each mutant breaks:
#   optimistic: a ceiling is used only once confirmed
#   assume-applied: an unknown EXTEND is not taken for applied
#   adopt-asked: after an unknown outcome the record's values count, not those last asked for
#   retry-repinned: a retry keeps its compares; new compares need newly computed values
#   no-seal: seal before RELEASE
#   release-low: the millisecond of the last ID is not given back
#   acquire-holder-only, extend-holder-only, rehold-holder-only, reclaim-holder-only: each compares the window's
#     record, not only the holder (EXTEND: a late one lowers the ceiling)
#   acquire-by-the-clock: an ACQUIRE begins at or above the ceiling, whatever a clock says has passed
#   release-unguarded: RELEASE compares the window's record
#   shared-nonce: nonces are unique among live processes: none made from a name and a term
#   window-on-lease: a window is never deleted
#   restore-no-bump: a restore needs an era bump
#   restore-late-bump: it comes before any node can write, even if none issues meanwhile
#   restore-floor-low, restore-floor-ignored: its floor lies above everything granted, and ACQUIRE starts above it
#   restore-no-era-compare: ACQUIRE compares the era: one sent before the restore must not land after it
#   restore-era-reused: it compares the era's whole value: after a restore a number or revision may come twice
#   restore-revision-only: the record is compared by value too: a revision may come twice
#   restore-waited-badclock: waiting instead of bumping trusts the clocks
#   limit-extend-unlimited, limit-extend-chained: EXTEND is limited, and steps are measured from one reference
#   limit-acquire-unlimited, limit-confirmed: a first ACQUIRE is limited by records, also where a majority confirms
#     the clock
#   limit-unconfirmed: the reference moves with confirmed writes only: else a write that an acceptance allowed and a
#     new era refused would allow the next
#   limit-any-era, limit-no-era-compare: an acceptance counts in its era, and writes compare the era
#   limit-accept-unguarded: an acceptance compares the one that was read
#   worker-extend-after-loss: an extension compares the window's record
#   worker-adopt-by-name: a record is a worker's by instance and term, not by name
#   worker-merge: an answer is a whole interval: one that begins elsewhere is not the worker's
#   worker-any-era, worker-no-era-compare: a record of another era is nobody's, and extensions compare the era
#   worker-before-the-ceiling: a number is handed out from the old interval's end on
#   worker-release-low, worker-release-unguarded: a release keeps what was permitted, and compares the window's record
#   worker-permit-looks-first, worker-permit-skips, worker-close-reads-first: whatever Permit allows, it has raised
#     the latest millisecond to that before it looked at the interval; Close ends the interval before it reads that
#   mark-not-put-again, mark-rehold-not-put-again: whoever takes a holder key puts the mark again, so that a raise
#     from before fails
#   mark-not-compared, mark-rehold-not-compared: and compares the mark
#   mark-acquire-below, mark-rehold-below: and issues nothing below it
#   mark-floor-first: a floor is written after the word was raised to it
#   mark-forgets-prior, mark-release-forgets-prior: a record keeps who may still issue before it
#   mark-unconfirmed: only a confirmed clock sees a ceiling pass
#   mark-passes-a-holder: and only where there is no holder key
#   mark-extend-without-holder: EXTEND compares the holder: who lost it takes it up again, above the mark
#   mark-two-revisions: a raise reads everything at one revision
#   mark-era-low, mark-era-at-once, mark-no-era-compare: an era begins above all marks; the mark waits for its floor;
#     a raise compares the era
#   mark-era-unconditional: a mark that has passed the floor of an era says that it rests on clocks
#   mark-falls-of-another-era: a mark of another era is not answered: it may be that of a backup
#   mark-falls-left-low: a mark is of an era only once it is not below that era's floor
#   mark-raised-by-anybody: who raises has a window, which the next era's floor is above
#   mark-silent-reheld: a worker without floors takes the key up again only where the mark is not above its first base
#     or names it
#   mark-silent-forgotten: a record keeps until when such a worker before it may issue
#   mark-hold-outlives-its-era: a hold ends with its era
#   worker-secret-kept: a secret is new for each run
#   slice-word-first, slice-server-last: a session looks for the server, then reads the end, and then takes a word
#   slice-end-first: a runner writes the word before the end
#   slice-below, slice-two-at-once: a slice begins at or above each end before, and one is written at a time
#   slice-of-any-server: a copy that keeps a slice is not its server
#   slice-logged: a crash leaves no slice, since the word may be an older one
#   slice-sent-again: a slice counts as used once it is sent
#   slice-no-lower-end, slice-lower-end-early: a word is compared with the first of the slice after it is taken:
#     something else may have set the next word
#   expire-no-window-compare: EXPIRE compares the window's record: a holder that wrote meanwhile keeps its key
#   expire-no-margin: the ceiling has passed by more than clocks may differ
#   expire-no-wait: the records were unchanged for a window: a clock that is behind is no reason
#   expire-puts-nothing: EXPIRE puts a key, and so fails where etcd refuses what holders put
#   raise-left-to-the-lowest: each confirmed node passes a window: those with lower sids may never
#   raise-passes-from-now: when is counted from the window's end: not anew from each write of the mark
#   raise-put-off-by-text: a raise is put off only where the mark rose
#
# kind  name  definitions. The last part is for full alone: large bases, and mutants that are found late.
variants() {
	cat <<'TABLE'
base    base                    -DMAXREQ=4 -DPURGE
base    base-unpurged           -DMAXREQ=3
base    three-nodes             -DMAXREQ=3 -DPURGE -DNODES=3
base    steal-any-time          -DMAXREQ=4 -DPURGE -DSTEAL
base    extend-without-holder   -DMAXREQ=4 -DPURGE -DNO_HOLDER_COMPARE
base    no-holder-at-all        -DMAXREQ=4 -DPURGE -DSTEAL -DNO_HOLDER_COMPARE
base    reclaim                 -DMAXREQ=3 -DRECLAIMS
base    rehold                  -DMAXREQ=4 -DPURGE -DREHOLDS
base    reclaim-rehold-unpurged -DMAXREQ=3 -DRECLAIMS -DREHOLDS
base    shared-identity         -DMAXREQ=3 -DSHARED_IDENTITY -DRECLAIMS
base    era                     -DMAXREQ=3 -DBUMPS=1 -DRECLAIMS -DREHOLDS -DPURGE
base    reserve                 -DMAXREQ=3 -DRESERVES=1 -DPURGE
base    reserve-unpurged        -DMAXREQ=2 -DRESERVES=2 -DRECLAIMS -DREHOLDS
base    restore                 -DMAXREQ=3 -DRESTORES=1
base    restore-all             -DMAXREQ=3 -DRESTORES=1 -DRECLAIMS -DREHOLDS -DPURGE
base    restore-waited          -DMAXREQ=3 -DRESTORES=1 -DWAITED -DPURGE
base    limit-one-operator      -DMAXREQ=3
base    limit-two-operators     -DMAXREQ=2 -DOPERATORS
base    worker-two-unpurged     -DCALLS=3
base    worker-no-holder        -DCALLS=3 -DPURGE -DSTEAL -DNO_HOLDER_COMPARE
base    worker-and-another      -DCALLS=4 -DWORKERS=1 -DOTHERS=2 -DPURGE
base    worker-any-term         -DCALLS=4 -DWORKERS=1 -DOTHERS=1 -DPURGE -DANY_TERM
base    worker-era              -DCALLS=3 -DWORKERS=1 -DOTHERS=1 -DBUMPS=1
base    worker-restore          -DCALLS=3 -DWORKERS=1 -DOTHERS=1 -DRESTORES=1
base    mark                    -DMAXREQ=3
base    mark-three-nodes        -DMAXREQ=3 -DNODES=3
base    mark-restore            -DMAXREQ=3 -DRESTORES=1
base    mark-silent             -DMAXREQ=3 -DSILENT=1
base    mark-silent-restore     -DMAXREQ=2 -DSILENT=1 -DRESTORES=1
base    slice                   -DCRASHES=1
base    slice-two-runners       -DTWO_RUNNERS -DCRASHES=0 -DDRAWS=4
base    slice-set-by-hand       -DCUTS=3 -DCRASHES=0 -DRESETS=1
base    expire
base    raise
base    raise-downtime          -DDOWNTIME
mutant  optimistic              -DMAXREQ=3 -DMUT_OPTIMISTIC
mutant  assume-applied          -DMAXREQ=3 -DMUT_ASSUME_APPLIED
mutant  adopt-asked             -DMAXREQ=3 -DMUT_ADOPT_ASKED
mutant  retry-repinned          -DMAXREQ=3 -DMUT_RETRY_REPINNED
mutant  no-seal                 -DMAXREQ=3 -DMUT_NO_SEAL
mutant  release-low             -DMAXREQ=3 -DMUT_RELEASE_LOW
mutant  acquire-holder-only     -DMAXREQ=3 -DMUT_ACQUIRE_NO_RECORD
mutant  extend-holder-only      -DMAXREQ=4 -DMUT_EXTEND_NO_RECORD
mutant  rehold-holder-only      -DMAXREQ=3 -DMUT_REHOLD_NO_RECORD -DREHOLDS
mutant  reclaim-holder-only     -DMAXREQ=3 -DMUT_RECLAIM_NO_RECORD -DRECLAIMS
mutant  acquire-by-the-clock    -DMAXREQ=3 -DMUT_BELOW_CEILING
mutant  release-unguarded       -DMAXREQ=4 -DMUT_RELEASE_NO_RECORD
mutant  shared-nonce            -DMAXREQ=3 -DSHARED_NONCE
mutant  window-on-lease         -DMAXREQ=3 -DMUT_WINDOW_ON_LEASE
mutant  reserve-not-looked-at   -DMAXREQ=2 -DRESERVES=1 -DMUT_RESERVED_IGNORED
mutant  reserve-acquire-late    -DMAXREQ=2 -DRESERVES=1 -DMUT_ACQUIRE_NO_RECORD
mutant  reserve-rehold-late     -DMAXREQ=2 -DRESERVES=1 -DMUT_REHOLD_NO_RECORD -DREHOLDS
mutant  reserve-used-early      -DMAXREQ=2 -DRESERVES=1 -DMUT_OUTSIDE_EARLY
mutant  reserve-given-back-low  -DMAXREQ=2 -DRESERVES=1 -DMUT_UNRESERVE_LOW
mutant  restore-no-bump         -DMAXREQ=3 -DRESTORES=1 -DMUT_RESTORE_NO_BUMP
mutant  restore-floor-low       -DMAXREQ=3 -DRESTORES=1 -DMUT_FLOOR_LOW
mutant  restore-floor-ignored   -DMAXREQ=3 -DRESTORES=1 -DMUT_NO_FLOOR
mutant  restore-no-era-compare  -DMAXREQ=3 -DRESTORES=1 -DNO_ERA_COMPARE
mutant  restore-waited-badclock -DMAXREQ=3 -DRESTORES=1 -DMUT_WAITED_BAD_CLOCK
mutant  limit-extend-unlimited  -DMAXREQ=2 -DMUT_EXTEND_UNLIMITED
mutant  limit-extend-chained    -DMAXREQ=3 -DMUT_EXTEND_CHAINED
mutant  limit-acquire-unlimited -DMAXREQ=2 -DMUT_ACQUIRE_UNLIMITED
mutant  limit-confirmed         -DMAXREQ=2 -DMUT_CONFIRMED
mutant  limit-unconfirmed       -DMAXREQ=3 -DMUT_TRUST_UNCONFIRMED
mutant  limit-any-era           -DMAXREQ=2 -DMUT_ANY_ERA
mutant  limit-no-era-compare    -DMAXREQ=2 -DMUT_NO_ERA_COMPARE
mutant  limit-accept-unguarded  -DMAXREQ=2 -DMUT_ACCEPT_UNGUARDED -DOPERATORS
mutant  worker-extend-after-loss    -DCALLS=4 -DOTHERS=1 -DMUT_EXTEND_NO_RECORD
mutant  worker-adopt-by-name        -DCALLS=3 -DMUT_ADOPT_NAME
mutant  worker-merge                -DCALLS=3 -DWORKERS=1 -DOTHERS=1 -DRESTORES=1 -DMUT_MERGE
mutant  worker-any-era              -DCALLS=3 -DWORKERS=1 -DOTHERS=1 -DRESTORES=1 -DMUT_ANY_ERA
mutant  worker-no-era-compare       -DCALLS=3 -DWORKERS=1 -DOTHERS=1 -DRESTORES=1 -DMUT_NO_ERA_COMPARE
mutant  worker-before-the-ceiling   -DCALLS=3 -DMUT_EARLY
mutant  worker-release-low          -DCALLS=3 -DOTHERS=1 -DMUT_RELEASE_LOW
mutant  worker-release-unguarded    -DCALLS=4 -DOTHERS=1 -DMUT_RELEASE_NO_RECORD
mutant  worker-permit-looks-first   -DCALLS=3 -DOTHERS=1 -DMUT_PERMIT_LOOKS_FIRST
mutant  worker-permit-skips         -DCALLS=3 -DWORKERS=1 -DOTHERS=1 -DMUT_PERMIT_SKIPS
mutant  worker-close-reads-first    -DCALLS=3 -DOTHERS=1 -DMUT_CLOSE_READS_FIRST
mutant  worker-secret-kept          -DCALLS=3 -DMUT_SECRET_KEPT
mutant  mark-not-put-again          -DMAXREQ=3 -DMUT_NO_TOUCH
mutant  mark-rehold-not-put-again   -DMAXREQ=3 -DMUT_REHOLD_NO_TOUCH
mutant  mark-not-compared           -DMAXREQ=3 -DMUT_NO_MARK_COMPARE
mutant  mark-rehold-not-compared    -DMAXREQ=3 -DMUT_REHOLD_NO_COMPARE
mutant  mark-acquire-below          -DMAXREQ=3 -DMUT_BASE_BELOW
mutant  mark-rehold-below           -DMAXREQ=3 -DMUT_REHOLD_BELOW
mutant  mark-floor-first            -DMAXREQ=3 -DMUT_FLOOR_FIRST
mutant  mark-forgets-prior          -DMAXREQ=3 -DMUT_FORGET_PRIOR
mutant  mark-release-forgets-prior  -DMAXREQ=3 -DMUT_RELEASE_FORGETS
mutant  mark-unconfirmed            -DMAXREQ=3 -DMUT_UNCONFIRMED
mutant  mark-two-revisions          -DMAXREQ=3 -DMUT_TWO_REVISIONS
mutant  mark-extend-without-holder  -DMAXREQ=3 -DMUT_EXTEND_ANY_HOLDER
mutant  mark-passes-a-holder        -DMAXREQ=3 -DMUT_LAPSE_HELD
mutant  mark-era-low                -DMAXREQ=3 -DRESTORES=1 -DMUT_ERA_LOW
mutant  mark-era-at-once            -DMAXREQ=3 -DRESTORES=1 -DMUT_ERA_EARLY
mutant  mark-era-unconditional      -DMAXREQ=3 -DRESTORES=1 -DMUT_ERA_UNCONDITIONAL
mutant  mark-falls-left-low         -DMAXREQ=3 -DRESTORES=1 -DMUT_ERA_LEFT_LOW
mutant  mark-falls-of-another-era   -DMAXREQ=3 -DRESTORES=1 -DMUT_ANSWERS_ANY_ERA
mutant  mark-no-era-compare         -DMAXREQ=3 -DRESTORES=1 -DMUT_RAISE_NO_ERA
mutant  mark-raised-by-anybody      -DMAXREQ=3 -DRESTORES=1 -DMUT_NO_WINDOW
mutant  mark-hold-outlives-its-era  -DMAXREQ=3 -DRESTORES=1 -DMUT_KEEPS_ERA
mutant  mark-silent-reheld          -DMAXREQ=3 -DSILENT=1 -DMUT_SILENT_REHOLD
mutant  mark-silent-forgotten       -DMAXREQ=3 -DSILENT=1 -DMUT_FORGET_SILENT
mutant  slice-word-first            -DCUTS=3 -DDRAWS=4 -DCRASHES=0 -DTAKES_FIRST
mutant  slice-server-last           -DCRASHES=1 -DBOUND_LAST
mutant  slice-end-first             -DCRASHES=0 -DEND_FIRST
mutant  slice-below                 -DTWO_RUNNERS -DDRAWS=4 -DCRASHES=0 -DBELOW
mutant  slice-two-at-once           -DTWO_RUNNERS -DDRAWS=4 -DCRASHES=0 -DUNLOCKED
mutant  slice-of-any-server         -DCRASHES=1 -DUNBOUND
mutant  slice-logged                -DCRASHES=1 -DLOGGED
mutant  slice-sent-again            -DCRASHES=1 -DCUTS_TWICE
mutant  slice-no-lower-end          -DCUTS=3 -DCRASHES=0 -DRESETS=1 -DNO_LOW
mutant  slice-lower-end-early       -DCUTS=3 -DCRASHES=0 -DRESETS=1 -DLOW_EARLY
mutant  expire-no-window-compare    -DMUT_NO_WINDOW_COMPARE
mutant  expire-no-margin            -DMUT_NO_MARGIN
mutant  expire-no-wait              -DMUT_NO_WAIT
mutant  expire-puts-nothing         -DMUT_PUTS_NOTHING
mutant  raise-left-to-the-lowest    -DMUT_LEFT_TO_THE_LOWEST
mutant  raise-passes-from-now       -DMUT_FROM_NOW
mutant  raise-put-off-by-text       -DDOWNTIME -DMUT_PUT_OFF_BY_TEXT
probe   expire-ended                -DPROBE=1
probe   expire-by-an-earlier-clock  -DPROBE=2
probe   expire-refused              -DPROBE=3
probe   raise-by-the-highest        -DPROBE=1
probe   mark-replaced               -DMAXREQ=3 -DPROBE=1
probe   mark-released-after-another -DMAXREQ=3 -DPROBE=2
probe   mark-may-pass-vanished      -DMAXREQ=3 -DPROBE=3
probe   mark-passed-vanished        -DMAXREQ=3 -DPROBE=4
probe   mark-raised-after-restore   -DMAXREQ=3 -DRESTORES=1 -DPROBE=5
probe   mark-issued-though-lost     -DMAXREQ=3 -DPROBE=6
probe   mark-silent-replaced        -DMAXREQ=3 -DSILENT=1 -DPROBE=8
probe   mark-silent-below-the-mark  -DMAXREQ=3 -DSILENT=1 -DPROBE=9
probe   limit-accepted          -DMAXREQ=2 -DPROBE=1
probe   limit-after-downtime    -DMAXREQ=2 -DPROBE=2
probe   limit-after-a-bump      -DMAXREQ=3 -DPROBE=3
probe   limit-second-refused    -DMAXREQ=2 -DPROBE=4 -DOPERATORS
probe   worker-adopted          -DCALLS=3 -DPROBE=1
probe   worker-reheld           -DCALLS=3 -DPROBE=2
probe   worker-given-back       -DCALLS=3 -DPROBE=3
probe   worker-though-replaced  -DCALLS=3 -DOTHERS=1 -DPROBE=4
probe   worker-after-restore    -DCALLS=3 -DRESTORES=1 -DPROBE=5
probe   worker-closed-meanwhile -DCALLS=3 -DPROBE=6
probe   worker-after-its-end    -DCALLS=3 -DPROBE=7
probe   worker-two-nodes        -DCALLS=3 -DPROBE=8
probe   acquire-adopted         -DMAXREQ=3 -DPROBE=1
probe   extend-adopted          -DMAXREQ=3 -DPROBE=2
probe   applied-after-timeout   -DMAXREQ=3 -DPROBE=3
probe   reclaimed               -DMAXREQ=3 -DPROBE=4 -DRECLAIMS
probe   reheld                  -DMAXREQ=3 -DPROBE=5 -DREHOLDS
probe   time-given-back         -DMAXREQ=3 -DPROBE=6
probe   issued-after-restore    -DMAXREQ=3 -DPROBE=7 -DRESTORES=1
probe   issued-after-bump       -DMAXREQ=3 -DPROBE=8 -DBUMPS=1
probe   reserve-issued-outside  -DMAXREQ=2 -DPROBE=10 -DRESERVES=1
probe   reserve-given-back      -DMAXREQ=2 -DPROBE=11 -DRESERVES=1
probe   issued-though-replaced  -DMAXREQ=3 -DPROBE=9
TABLE
	if [ "$mode" != short ]; then cat <<'TABLE'
mutant  restore-late-bump       -DMAXREQ=3 -DRESTORES=1 -DMUT_LATE_BUMP
mutant  restore-era-reused      -DMAXREQ=3 -DRESTORES=1 -DBUMPS=1 -DMUT_ERA_REUSED
mutant  restore-revision-only   -DMAXREQ=4 -DRESTORES=1 -DREVISION_ONLY -DPURGE
large   base-unpurged           -DMAXREQ=4
large   base                    -DMAXREQ=5 -DPURGE
large   steal-any-time          -DMAXREQ=5 -DPURGE -DSTEAL
large   three-nodes             -DMAXREQ=4 -DPURGE -DNODES=3
large   three-nodes-reclaim     -DMAXREQ=3 -DPURGE -DNODES=3 -DRECLAIMS -DREHOLDS
large   reclaim                 -DMAXREQ=4 -DPURGE -DRECLAIMS
large   era                     -DMAXREQ=4 -DPURGE -DBUMPS=1 -DRECLAIMS -DREHOLDS
large   restore                 -DMAXREQ=4 -DPURGE -DRESTORES=1
large   expire                  -DENDS=10 -DWRITES=3
large   raise                   -DNODES=4
large   raise-downtime          -DNODES=4 -DDOWNTIME
large   mark                    -DMAXREQ=4
large   mark-silent             -DMAXREQ=3 -DSILENT=2
large   slice                   -DDRAWS=3
large   restore-era             -DMAXREQ=3 -DPURGE -DRESTORES=1 -DBUMPS=1
large   restore-era-unpurged    -DMAXREQ=3 -DRESTORES=1 -DBUMPS=1
large   restore-three-nodes     -DMAXREQ=3 -DPURGE -DRESTORES=1 -DNODES=3
large   worker-two              -DCALLS=4 -DPURGE
large   worker-no-holder        -DCALLS=4 -DPURGE -DSTEAL -DNO_HOLDER_COMPARE
TABLE
	fi
}

# build KIND DEFS...: leaves ./pan, made of the model in the file model.pml. COLLAPSE stores states whole, only packed: no
# hashing that could merge two of them, so a complete search is a proof.
build() {
	kind=$1
	shift
	case $kind in
	large) flags="-O2 -DCOLLAPSE" ;;
	base) flags="-O1 -DCOLLAPSE" ;;
	probe) flags="-O0" ;;
	replay) flags="-O1 -DCOLLAPSE -DBFS" ;;  # breadth first: a shortest trail
	# The other order of processes meets most errors sooner: for most mutants compiling takes longer than searching.
	*) flags="-O0 -DCOLLAPSE -DREVERSE" ;;
	esac
	spin -a "$@" model.pml >spin.out 2>&1 || return 1
	# shellcheck disable=SC2086
	gcc $flags -w -DSAFETY -DMEMLIM=2000 -o pan pan.c >gcc.out 2>&1
}

# choose NAME: makes model.pml the model of that variant.
choose() {
	case $1 in
	limit-*) cp time.pml model.pml ;;
	worker-*) cp worker.pml model.pml ;;
	mark*) cp watermark.pml model.pml ;;
	slice*) cp slice.pml model.pml ;;
	expire*) cp expire.pml model.pml ;;
	raise*) cp raise.pml model.pml ;;
	*) cp lease.pml model.pml ;;
	esac
}

# wrong OUTPUT EXPECTED-ASSERTION: prints why a variant did not have its expected outcome.
wrong() {
	case $2 in
	none)
		grep -q 'errors: 0$' "$1" || { echo "an error was found"; return; }
		grep -q 'states, stored' "$1" || { echo "the search did not run"; return; }
		grep -qi -e 'not completed' -e 'search depth too small' -e 'reached -DMEMLIM' \
			-e 'out of memory' -e 'truncated' "$1" && { echo "the search is incomplete"; return; }
		grep -q '^hash conflicts\|^	+ Partial Order Reduction' "$1" || echo "the report is cut short"
		;;
	*) grep -qF "assertion violated $2" "$1" || echo "not caught" ;;
	esac
}

for tool in spin gcc; do
	command -v "$tool" >/dev/null 2>&1 && continue
	echo "model: skipped: $tool is not installed (Debian: apt-get install $tool)"
	exit 2
done

case $mode in
short | full | replay) ;;
*) echo "usage: run.sh short|full|replay NAME" >&2; exit 2 ;;
esac

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
cp ./*.pml "$tmp"
variants >"$tmp/table"
cd "$tmp"

if [ "$mode" = replay ]; then
	set -- $(grep -E "^(mutant|probe) +${2:?usage: run.sh replay NAME} " table) # fields, on purpose
	[ $# -gt 2 ] || { echo "no such mutant or probe" >&2; exit 2; }
	choose "$2"
	shift 2
	set -- "$@" -DTRACE_STEPS
	build replay "$@"
	./pan -E >out 2>&1 || true
	[ -f model.pml.trail ] || { # too wide for the memory limit: any trail, then
		build mutant "$@"
		./pan -E -w22 -m1000000 >out 2>&1 || true
	}
	spin -t -T "$@" model.pml | sed '/^spin: trail ends/,$d; s/^ *//'
	exit
fi

passed=0 failed=0
while read -r kind name defs; do
	choose "$name"
	case $kind.$name in
	base.* | large.*) expect=none ;;
	mutant.limit-accept-unguarded) expect=' !(overwritten)' ;;
	mutant.limit-*) expect=' !(unlawful)' ;;
	mutant.worker-* | mutant.slice-*) expect=' !(twice)' ;;
	mutant.expire-*) expect=' !(wrong)' ;;
	mutant.raise-*) expect=' !(late)' ;;
	mutant.mark-falls-* | mutant.mark-era-low | mutant.mark-raised-by-anybody) expect=' !(fell)' ;;
	mutant.mark-silent-*) expect=' !(unnamed)' ;;
	mutant.mark-*) expect=' !(answered)' ;;
	mutant.*) expect=' !(issued)' ;;
	probe.*) n=${defs#*-DPROBE=}; n=${n%% *}; expect="($n!=$n)" ;;
	esac
	start=$(date +%s)
	# shellcheck disable=SC2086
	if build "$kind" $defs; then
		./pan -E -w22 -m1000000 >out 2>&1 || true
		why=$(wrong out "$expect")
	else
		why="it does not build: $(cat spin.out gcc.out 2>/dev/null | head -1)"
		: >out
	fi
	took=$(($(date +%s) - start))
	states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' out)
	if [ -n "$why" ]; then
		failed=$((failed + 1))
		echo "FAIL  $kind $name: $why  states=$states time=${took}s  ($defs)"
		continue
	fi
	passed=$((passed + 1))
	case $kind in
	base | large) echo "ok  $name  states=$states time=${took}s  ($defs)" ;;
	mutant) echo "ok  mutant $name: caught" ;;
	probe) echo "ok  probe $name: reached" ;;
	esac
done <table
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
