/*
 * The end of a dead holder's hold (EXPIRE, docs/DESIGN.md#which-sid), checked for what is said of it: a holder whose
 * key another node deletes can issue nothing until it has written again, if clocks are sound, and it has not had a
 * write applied within a window, whatever its clock says; and no hold ends while etcd refuses what puts.
 *
 * Leases live forever here: each new leader of etcd gives them their whole TTL again. Time passes in ticks, at any
 * point. A sound clock is off by SKEW at most; that of the holder may be FAR behind instead.
 *
 * The adversary: requests are applied late or never, the holder pauses at any point, and etcd becomes full.
 *
 * -D selects a variant: see run.sh.
 */

#ifndef ENDS
#define ENDS 8                  /* ticks in one history */
#endif
#ifndef WRITES
#define WRITES 2                /* writes of the holder */
#endif
#ifndef PROBE
#define PROBE 0
#endif
#define reached(n) assert(PROBE != n)
#define WINDOW 2
#define SKEW 1
#define FAR 6
#define ZERO 8                  /* what a right clock reads at the beginning, so that none is negative */

#ifdef TRACE_STEPS
#define TRACE(f, a, b) printf(f, a, b);
#else
#define TRACE(f, a, b)
#endif

byte now;                       /* true time, ticks */
byte mine, theirs;              /* what a clock of the holder, or of the standby, reads at tick 0 */

/* ---- the store ---------------------------------------------------------- */

byte rev = 1, ceil;             /* window */
bit key = 1;                    /* the holder's */
bit noPuts;                      /* it refuses what puts, and takes deletions */

byte put;                       /* the ceiling of the holder's write on its way; 0: none */
bit expire;                     /* the standby's is on its way */
byte expireRev;

/* ---- what only the checker knows ---------------------------------------- */

byte wrote;                     /* when a write of the holder was applied last */
bit wrong;

#define SOUND (mine + SKEW >= ZERO)

#ifdef MUT_NO_WINDOW_COMPARE
#define UNCHANGED true
#else
#define UNCHANGED (expireRev == rev)
#endif
#ifdef MUT_PUTS_NOTHING
#define TAKEN true
#else
#define TAKEN !noPuts
#endif
#ifdef MUT_NO_MARGIN
#define MARGIN 0
#else
#define MARGIN (WINDOW + 2 * SKEW)
#endif
#ifdef MUT_NO_WAIT
#define WAIT 0
#else
#define WAIT WINDOW
#endif

active proctype Store()
{
end:	do
	:: d_step { put != 0 && !noPuts && key ->
		rev++; ceil = (put > ceil -> put : ceil); wrote = now; put = 0;
		TRACE("store    applies record %d with ceiling %d\n", rev, ceil) }
	:: d_step { put != 0 -> put = 0 }             /* lost, or refused */
	:: d_step { expire ->
		if
		:: TAKEN && UNCHANGED && key ->
			TRACE("store    deletes the key at tick %d, last write at %d\n", now, wrote)
			wrong = noPuts || now - wrote < WINDOW || (SOUND && mine + now < ceil);
			key = 0;
			reached(1);
			if :: mine < theirs -> reached(2) :: else fi
		:: else -> reached(3)
		fi;
		expire = 0; expireRev = 0;
		assert(!wrong) }
	:: d_step { now < ENDS && key -> now++ }
	:: d_step { key -> noPuts = !noPuts }
	od
}

active proctype Holder()
{
	byte left = WRITES;

	/* A sid may be acquired before its base, so the first ceiling may lie further ahead than a window. */
	atomic {
		if :: mine = ZERO - SKEW :: mine = ZERO + SKEW :: mine = ZERO - FAR fi;
		if :: theirs = ZERO - SKEW :: theirs = ZERO + SKEW fi;
		if :: ceil = mine + WINDOW :: ceil = mine + 2 * WINDOW fi
	};
end:	do
	:: atomic { left > 0 && put == 0 && key -> left--; put = mine + now + WINDOW }
	od
}

active proctype Standby()
{
	byte seen, since, ends;

end:	do
	:: atomic { theirs != 0 && !expire && key ->                    /* it lists */
		if
		:: seen != rev -> seen = rev; since = now; ends = ceil
		:: else
		fi;
		if
		:: now - since >= WAIT && ends + MARGIN <= theirs + now -> expire = 1; expireRev = seen
		:: else
		fi }
	od
}
