package protocol_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

var rewrite = flag.Bool("rewrite", false, "rewrite testdata/*.txt with the actions of the machine as it is now; read the diff")

// TestTranscripts runs the scenarios in testdata/*.txt. A scenario is a list of
// commands, each followed by the actions of the machine:
//
//	# A comment.
//	a tick 5s
//	----
//	extend sid=0 term=1 window=[30000,35000) over revision 7
//	RAISE ceil=35000
//
// Times are in ms since the scenario began. Actions in lower case are requests to
// the store, those in upper case are calls of the generator, alarms and the end.
//
// Commands: "start NODE [SIDS|without-gossip]" (named a, b, … in order) · "X tick [D]" lets D pass and
// ticks X once and answers its requests · "X run D" lets D pass and ticks X whenever it
// asks for it · "X fault notapplied|lostreply|late|hang [KIND]" for its next request
// (of that kind) · "X deliver" late requests · "X answer" hanging requests · "X stop" ·
// "X crash" · "X changed" · "X gate open|closed [confirmed]" · "X giveup" · "X reported ERA REVISION" · "X issue N" · "X status" ·
// "init [SIDS]" · "workers SIDS" that later nodes leave alone · "worker SID NAME" acquires one · "config SIDS" · "recreate" · "era +D" · "rewrite era D" · "expire X" its lease · "delete KEY" · "corrupt KEY" · "replace holder SID INSTANCE" by a key on no lease ·
// "occupy SID SID" by others, and "vacate N" of those · "ceiling SID D" written by a clock D
// ahead · "quarantine SID" · "churn N" unrelated writes · "snapshot" · "restore" ·
// "outside CLAIM" · "pass D" lets time pass without a tick · "step D" moves the wall clock
// alone · "suspend D" as pass, of a machine that sleeps · "accept D ERA" clocks up to D from now · "cluster N".
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := newScenario(t)
			got := s.play(string(want))
			for _, v := range s.w.hist.Check() {
				if v.Claim != s.outside {
					t.Errorf("the scenario breaks a claim: %v", v)
				}
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("%s: the machine acts differently now; if that is right, run with -rewrite:\n%s", file, firstDifference(got, string(want)))
			}
		})
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range max(len(g), len(w)) {
		var a, b string
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			return fmt.Sprintf("line %d:\n got: %s\nwant: %s", i+1, a, b)
		}
	}
	return ""
}

type scenario struct {
	t     *testing.T
	w     *cluster
	mem   *storetest.Memory
	procs map[string]*process
	next  map[*process]struct {
		f    outcome
		kind string
	}
	saved   storetest.Snapshot
	others  []lease.LeaseID
	outside string // a claim that does not hold in this scenario, because history is rewound in it
	out     bytes.Buffer
}

func newScenario(t *testing.T) *scenario {
	mem := storetest.NewMemory(1)
	start := clock.Millis(flake.DefaultEpoch + 1_000_000_000)
	s := &scenario{
		t: t, mem: mem, procs: map[string]*process{},
		next: map[*process]struct {
			f    outcome
			kind string
		}{},
		w: &cluster{store: mem, window: 30 * time.Second, clock: clocktest.NewManual(start), began: start},
	}
	s.w.hist.Format = flake.Default
	s.w.fault = func(p *process, a lease.Action) outcome {
		n, ok := s.next[p]
		if !ok || n.kind != "" && !strings.HasPrefix(s.w.show(a), n.kind) {
			return answered
		}
		delete(s.next, p)
		return n.f
	}
	return s
}

func (s *scenario) play(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		s.out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if i+1 < len(lines) && lines[i+1] == "----" {
			for i++; i+1 < len(lines) && lines[i+1] != ""; i++ {
			}
		}
		if out := s.command(strings.Fields(line)); out != "" {
			s.out.WriteString("----\n" + out)
		}
	}
	return s.out.String()
}

// space is the one of scenarios, with a part of the sids.
func (s *scenario) space(sids string) lease.Space {
	part, err := lease.ParseSIDRange(sids)
	s.check(err)
	return lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "pool-1", Part: part}
}

func (s *scenario) command(f []string) string {
	s.t.Helper()
	arg := func(i int) string {
		if i < len(f) {
			return f[i]
		}
		return ""
	}
	dur := func(i int) time.Duration {
		if arg(i) == "" {
			return 0
		}
		d, err := time.ParseDuration(arg(i))
		if err != nil {
			s.t.Fatal(err)
		}
		return d
	}
	ctx := context.Background()
	switch f[0] {
	case "start":
		name := string(rune('a' + len(s.procs)))
		if arg(2) == "without-gossip" {
			s.w.without = map[string]bool{arg(1): true}
			s.procs[name] = s.w.start(arg(1))
			return ""
		}
		sids, err := lease.ParseSIDRange(arg(2))
		s.check(err)
		s.w.sids = map[string]lease.SIDRange{arg(1): sids}
		s.procs[name] = s.w.start(arg(1))
		return ""
	case "workers": // SIDS: what later nodes leave to workers
		sids, err := lease.ParseSIDRange(arg(1))
		s.check(err)
		s.w.workers = sids
		return ""
	case "worker": // SID NAME: one acquires it
		v, err := s.mem.Load(ctx)
		s.check(err)
		sid, err := strconv.Atoi(arg(1))
		s.check(err)
		id, err := s.mem.Grant(ctx, 24*time.Hour)
		s.check(err)
		now, owner := s.w.clock.Now().Wall, lease.Instance("worker-"+arg(1))
		applied, _, err := s.mem.Commit(ctx, lease.Txn{
			Op: lease.Acquire, SID: flake.SID(sid), Config: v.Config, Era: v.Era, Lease: id,
			Holder: lease.Holder{Instance: owner, Node: arg(2), Worker: true},
			Window: lease.Window{Era: 1, Term: 1, Instance: owner, Node: arg(2), Nonce: "w", Base: now, Since: now,
				Ceil: now + 60000, State: lease.Active, Wall: now, Worker: true},
		})
		if s.check(err); !applied {
			s.t.Fatalf("sid %d is taken", sid)
		}
		s.others = append(s.others, id)
		return ""
	case "init": // [SIDS]
		_, _, err := s.mem.Init(ctx, s.space(arg(1)), s.w.clock.Now().Wall)
		s.check(err)
		return ""
	case "config": // SIDS: the space's config is edited
		s.mem.Put("config", lease.Encode(s.space(arg(1))))
		return ""
	case "recreate": // the space, in an etcd that lost it
		for _, key := range []string{"config", "era", "window/0", "holder/0", "ledger/0/00000000000000000001"} {
			s.mem.Delete(key)
		}
		v, err := s.mem.Load(ctx)
		s.check(err)
		s.mem.Put("config", lease.Encode(lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "pool-2"}))
		s.mem.Put("era", lease.Encode(lease.Era{Number: 1, Floor: s.w.clock.Now().Wall, Cluster: v.Cluster}))
		return ""
	case "era":
		v, err := s.mem.Load(ctx)
		s.check(err)
		e := v.Era.Value
		e.Number++
		e.Floor = s.w.clock.Now().Wall + clock.MillisOf(dur(1))
		e.Cluster = v.Cluster
		s.mem.Put("era", lease.Encode(e))
		return ""
	case "rewrite": // the era, with its floor moved and its number kept
		v, err := s.mem.Load(ctx)
		s.check(err)
		e := v.Era.Value
		e.Floor += clock.MillisOf(dur(2))
		s.mem.Put("era", lease.Encode(e))
		return ""
	case "expire":
		s.mem.Expire(s.procs[arg(1)].machine.Status().Lease)
		return ""
	case "delete":
		s.mem.Delete(arg(1))
		return ""
	case "replace": // holder SID INSTANCE: its key, on no lease
		s.mem.Put("holder/"+arg(2), lease.Encode(lease.Holder{Instance: lease.Instance(arg(3)), Node: arg(3)}))
		return ""
	case "corrupt":
		s.mem.Corrupt(arg(1))
		return ""
	case "snapshot":
		s.saved = s.mem.Snapshot()
		return ""
	case "restore":
		s.mem.Restore(s.saved)
		return ""
	case "cluster":
		n, err := strconv.ParseUint(arg(1), 10, 64)
		s.check(err)
		s.mem.SetCluster(n)
		return ""
	case "occupy": // by processes that stay registered and never write again
		first, err := strconv.Atoi(arg(1))
		s.check(err)
		last, err := strconv.Atoi(arg(2))
		s.check(err)
		v, err := s.mem.Load(ctx)
		s.check(err)
		now := s.w.clock.Now().Wall
		for i := first; i <= last; i++ {
			owner := lease.Instance(fmt.Sprintf("other-%d", i))
			id, err := s.mem.Register(ctx, 0, 24*time.Hour, lease.Registration{Instance: owner, Node: "other", Gossip: "other:7946"})
			s.check(err)
			applied, _, err := s.mem.Commit(ctx, lease.Txn{
				Op: lease.Acquire, SID: flake.SID(i), Config: v.Config, Era: v.Era, Lease: id,
				Holder: lease.Holder{Instance: owner, Node: "other"},
				Window: lease.Window{Era: 1, Term: 1, Instance: owner, Node: "other", Nonce: "o", Base: now,
					Ceil: now + 30000, State: lease.Active, Wall: now, Gossip: true},
			})
			if s.check(err); !applied {
				s.t.Fatalf("sid %d is taken", i)
			}
			s.others = append(s.others, id)
		}
		return ""
	case "vacate": // N of them stop
		n, err := strconv.Atoi(arg(1))
		s.check(err)
		for range n {
			s.mem.Expire(s.others[0])
			s.others = s.others[1:]
		}
		return ""
	case "ceiling": // SID D: a record that a clock D ahead wrote
		now := s.w.clock.Now().Wall
		s.mem.Put("window/"+arg(1), lease.Encode(lease.Window{Era: 1, Term: 9, Instance: "x", Node: "x", Nonce: "x",
			Base: now, Ceil: now + clock.MillisOf(dur(2)), State: lease.Active, Wall: now}))
		return ""
	case "quarantine": // SID, as an operator does it
		v, err := s.mem.Load(ctx)
		s.check(err)
		sid, err := strconv.Atoi(arg(1))
		s.check(err)
		w := v.SIDs[flake.SID(sid)].Window.Value
		w.State, w.Nonce, w.Term = lease.Quarantined, "operator", w.Term+1
		s.mem.Put("window/"+arg(1), lease.Encode(w))
		s.mem.Delete("holder/" + arg(1))
		return ""
	case "churn": // N unrelated writes
		n, err := strconv.Atoi(arg(1))
		s.check(err)
		for range n {
			s.mem.Put("unrelated", "x")
		}
		return ""
	case "outside":
		s.outside = arg(1)
		return ""
	case "pass":
		s.w.clock.Advance(dur(1))
		s.mem.Advance(dur(1))
		return ""
	case "step":
		s.w.clock.Step(dur(1))
		return ""
	case "suspend":
		s.w.clock.Suspend(dur(1))
		s.mem.Advance(dur(1))
		return ""
	case "accept":
		v, err := s.mem.Load(ctx)
		s.check(err)
		era, err := strconv.ParseInt(arg(2), 10, 64)
		s.check(err)
		now := s.w.clock.Now().Wall
		s.check(s.mem.AcceptTime(ctx, v, lease.AcceptedTime{Era: era, Until: now + clock.MillisOf(dur(1)), Nonce: "operator", By: "ann", At: now}))
		return ""
	}
	p := s.procs[f[0]]
	if p == nil {
		s.t.Fatalf("unknown command %q", strings.Join(f, " "))
	}
	p.log = nil
	switch arg(1) {
	case "tick":
		s.w.clock.Advance(dur(2))
		s.mem.Advance(dur(2))
		p.step(lease.Tick{})
	case "run":
		s.run(p, dur(2))
	case "fault":
		outcomes := map[string]outcome{"notapplied": notApplied, "lostreply": lostReply, "late": late, "hang": notAnswered}
		f, ok := outcomes[arg(2)]
		if !ok {
			s.t.Fatalf("unknown fault %q", arg(2))
		}
		s.next[p] = struct {
			f    outcome
			kind string
		}{f, arg(3)}
	case "deliver":
		p.deliver()
	case "answer":
		pending := p.pending
		p.pending = nil
		for _, a := range pending {
			p.step(p.carryOut(a, answered))
		}
	case "stop":
		p.step(lease.Stop{})
	case "crash":
		p.ended = true
	case "changed":
		p.step(lease.Changed{})
	case "gate":
		p.step(lease.Gate{Open: arg(2) == "open", Confirmed: arg(3) == "confirmed"})
	case "giveup":
		p.step(lease.GiveUp{})
	case "reported":
		era, err := strconv.ParseInt(arg(2), 10, 64)
		s.check(err)
		rev, err := strconv.ParseInt(arg(3), 10, 64)
		s.check(err)
		p.step(lease.ReportedRevision{Era: era, Revision: rev})
	case "issue":
		n, err := strconv.Atoi(arg(2))
		s.check(err)
		now := s.w.clock.Now()
		b, err := p.node.Try(now, n, 0)
		if err != nil {
			reason, _, _ := strings.Cut(err.Error(), ":")
			return "REFUSED " + reason + "\n"
		}
		p.record(b)
		return fmt.Sprintf("%d IDs from ms %d\n", n, clock.Millis(flake.Default.UnixMilli(b.First))-s.w.began)
	case "status":
		st := p.machine.Status()
		line := st.Phase.String()
		if st.Held {
			line += fmt.Sprintf(" sid=%d window=[%d,%d)", st.Grant.SID, st.Grant.Base-s.w.began, st.Grant.Ceil-s.w.began)
		}
		if st.Problem != "" {
			line += ": " + st.Problem
		}
		for sid, why := range st.Quarantined {
			line += fmt.Sprintf("\nquarantined sid=%d: %s", sid, why)
		}
		for _, l := range st.Lapsed {
			line += fmt.Sprintf("\nlapsed: %s, which wrote at %d", l.Node, l.Wall-s.w.began)
		}
		return line + "\n"
	default:
		s.t.Fatalf("unknown command %q", strings.Join(f, " "))
	}
	if len(p.log) == 0 {
		return ""
	}
	return strings.Join(p.log, "\n") + "\n"
}

// run lets d pass and ticks p whenever it asks for it. Renewals of the lease are
// left out of the transcript unless one fails.
func (s *scenario) run(p *process, d time.Duration) {
	end := s.w.clock.Now().Mono.Add(d)
	for !p.ended {
		now := s.w.clock.Now().Mono
		wait := min(max(p.machine.Wake().Sub(now), time.Millisecond), end.Sub(now))
		if wait <= 0 {
			break
		}
		s.w.clock.Advance(wait)
		s.mem.Advance(wait)
		p.step(lease.Tick{})
	}
	kept := p.log[:0]
	for _, l := range p.log {
		if l != "keep alive" {
			kept = append(kept, l)
		}
	}
	p.log = kept
}

func (s *scenario) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// TestFormatMismatch: a node whose format is not the space's ends.
//
// Incident T41 (another epoch or layout in one cluster), docs/INCIDENTS.md.
func TestFormatMismatch(t *testing.T) {
	s := newScenario(t)
	_, _, err := s.mem.Init(context.Background(), lease.Space{Layout: flake.Fleet, Epoch: 1, Pool: "p"}, 0)
	s.check(err)
	p := s.w.start("n1")
	p.step(lease.Tick{})
	var format *lease.FormatError
	if !errors.As(p.failure, &format) {
		t.Fatalf("got %v, want a FormatError", p.failure)
	}
	for _, word := range []string{"fleet", "scalable", "epoch 1"} {
		if !strings.Contains(format.Error(), word) {
			t.Errorf("%q does not name %q", format, word)
		}
	}
}
