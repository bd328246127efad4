package protocol_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

// worldCommands are the commands of transcripts that name no process.
var worldCommands = map[string]func(*scenario, args){
	"start":      (*scenario).start,      // start NODE [SIDS|without-gossip]
	"init":       (*scenario).init,       // init [SIDS]
	"config":     (*scenario).config,     // config SIDS
	"recreate":   (*scenario).recreate,   // recreate
	"era":        (*scenario).era,        // era +D
	"rewrite":    (*scenario).rewrite,    // rewrite era D
	"accept":     (*scenario).accept,     // accept D ERA
	"workers":    (*scenario).workers,    // workers SIDS
	"worker":     (*scenario).worker,     // worker SID NAME
	"occupy":     (*scenario).occupy,     // occupy FIRST LAST
	"vacate":     (*scenario).vacate,     // vacate N
	"ceiling":    (*scenario).ceiling,    // ceiling SID D
	"quarantine": (*scenario).quarantine, // quarantine SID
	"reserve":    (*scenario).reserve,    // reserve SID
	"unreserve":  (*scenario).unreserve,  // unreserve SID
	"replace":    (*scenario).replace,    // replace holder SID INSTANCE
	"churn":      (*scenario).churn,      // churn N
	"expire":     func(s *scenario, a args) { s.mem.Expire(s.procs[a.word(0)].machine.Status().Lease) },
	"renew":      func(s *scenario, _ args) { s.mem.Renew() },
	"delete":     func(s *scenario, a args) { s.mem.Delete(a.word(0)) },
	"corrupt":    func(s *scenario, a args) { s.mem.Corrupt(a.word(0)) },
	"snapshot":   func(s *scenario, a args) { s.saved = s.mem.Snapshot() },
	"restore":    func(s *scenario, a args) { s.mem.Restore(s.saved) },
	"cluster":    func(s *scenario, a args) { s.mem.SetCluster(uint64(a.number(0))) },
	"outside":    func(s *scenario, a args) { s.outside = a.word(0) },
	"pass":       (*scenario).pass,      // pass D, without a tick
	"step":       (*scenario).stepClock, // step D, the wall clock alone
	"undecided":  func(s *scenario, a args) { s.w.clock.SetUndecided(a.word(0) == "yes") },
	"suspend":    (*scenario).suspend, // suspend D, as pass, of a machine that sleeps
}

// nodeCommands are the commands that follow the name of a process. They return what the
// transcript shows besides the actions of the machine.
var nodeCommands = map[string]func(*scenario, *process, args) string{
	"tick":     (*scenario).tick,     // tick [D]: one tick after D
	"run":      (*scenario).ticks,    // run D: a tick whenever the machine asks for it
	"fault":    (*scenario).fault,    // fault notapplied|lostreply|late|hang|refused [KIND]
	"deliver":  (*scenario).deliver,  // deliver late requests
	"answer":   (*scenario).answer,   // answer hanging requests
	"issue":    (*scenario).issue,    // issue N
	"status":   (*scenario).status,   // status
	"gate":     (*scenario).gate,     // gate open|closed [confirmed]
	"reported": (*scenario).reported, // reported ERA REVISION
	"stop":     sends(lease.Stop{}),
	"changed":  sends(lease.Changed{}),
	"giveup":   sends(lease.GiveUp{}),
	"crash":    func(_ *scenario, p *process, _ args) string { p.ended = true; return "" },
}

func sends(ev lease.Event) func(*scenario, *process, args) string {
	return func(_ *scenario, p *process, _ args) string {
		p.step(ev)
		return ""
	}
}

// args are the words of a command after its name.
type args struct {
	t     *testing.T
	words []string
}

// word returns the i-th word, "" if there is none.
func (a args) word(i int) string {
	if i < len(a.words) {
		return a.words[i]
	}
	return ""
}

// duration returns the i-th word as a duration, 0 if there is none.
func (a args) duration(i int) time.Duration {
	a.t.Helper()
	if a.word(i) == "" {
		return 0
	}
	d, err := time.ParseDuration(a.word(i))
	if err != nil {
		a.t.Fatal(err)
	}
	return d
}

func (a args) number(i int) int64 {
	a.t.Helper()
	n, err := strconv.ParseInt(a.word(i), 10, 64)
	if err != nil {
		a.t.Fatal(err)
	}
	return n
}

// sids returns the i-th word as a range, all sids if there is none.
func (a args) sids(i int) lease.SIDRange {
	a.t.Helper()
	r, err := lease.ParseSIDRange(a.word(i))
	if err != nil {
		a.t.Fatal(err)
	}
	return r
}

func (s *scenario) start(a args) {
	node := a.word(0)
	if a.word(1) == "without-gossip" {
		s.w.without = map[string]bool{node: true}
	} else {
		s.w.sids = map[string]lease.SIDRange{node: a.sids(1)}
	}
	s.procs[string(rune('a'+len(s.procs)))] = s.w.start(node)
}

func (s *scenario) init(a args) {
	_, _, err := s.mem.Init(context.Background(), s.space(a.sids(0)), s.w.clock.Now().Wall)
	s.check(err)
}

// config edits the config of the space.
func (s *scenario) config(a args) {
	s.mem.Put("config", lease.Encode(s.space(a.sids(0))))
}

// recreate creates the space in an etcd that lost it.
func (s *scenario) recreate(args) {
	for _, key := range []string{"config", "era", "window/0", "holder/0", "ledger/0/00000000000000000001"} {
		s.mem.Delete(key)
	}
	space := s.space(lease.SIDRange{})
	space.Pool = "pool-2"
	s.mem.Put("config", lease.Encode(space))
	s.mem.Put("era", lease.Encode(lease.Era{Number: 1, Floor: s.w.clock.Now().Wall, Cluster: s.load().Cluster}))
}

// era begins an era.
func (s *scenario) era(a args) {
	v := s.load()
	e := v.Era.Value
	e.Number++
	e.Floor = s.w.clock.Now().Wall + clock.MillisOf(a.duration(0))
	e.Cluster = v.Cluster
	s.mem.Put("era", lease.Encode(e))
}

// rewrite moves the floor of the era and keeps its number.
func (s *scenario) rewrite(a args) {
	e := s.load().Era.Value
	e.Floor += clock.MillisOf(a.duration(1))
	s.mem.Put("era", lease.Encode(e))
}

// accept accepts clocks up to D from now.
func (s *scenario) accept(a args) {
	now := s.w.clock.Now().Wall
	s.check(s.mem.AcceptTime(context.Background(), s.load(), lease.AcceptedTime{
		Era:   a.number(1),
		Until: now + clock.MillisOf(a.duration(0)),
		Nonce: "operator",
		By:    "ann",
		At:    now,
	}))
}

// workers says which sids later nodes leave to workers.
func (s *scenario) workers(a args) { s.w.workers = a.sids(0) }

// worker makes a worker acquire a sid.
func (s *scenario) worker(a args) {
	id, err := s.mem.Grant(context.Background(), 24*time.Hour)
	s.check(err)
	owner, name, now := lease.Instance("worker-"+a.word(0)), a.word(1), s.w.clock.Now().Wall
	s.acquire(flake.SID(a.number(0)), id,
		lease.Holder{Instance: owner, Node: name, Worker: true},
		lease.Window{
			Instance: owner,
			Node:     name,
			Nonce:    "w",
			Since:    now,
			Ceil:     now + 60000,
			Worker:   true,
		})
}

// occupy lets others acquire sids. They stay registered and never write again.
func (s *scenario) occupy(a args) {
	for sid := a.number(0); sid <= a.number(1); sid++ {
		owner := lease.Instance(fmt.Sprintf("other-%d", sid))
		id, err := s.mem.Register(context.Background(), 0, 24*time.Hour,
			lease.Registration{Instance: owner, Node: "other", Gossip: "other:7946"})
		s.check(err)
		s.acquire(flake.SID(sid), id,
			lease.Holder{Instance: owner, Node: "other"},
			lease.Window{
				Instance: owner,
				Node:     "other",
				Nonce:    "o",
				Ceil:     s.w.clock.Now().Wall + 30000,
				Gossip:   true,
			})
	}
}

// acquire writes the first records of a holder that no command names. Its window begins now.
func (s *scenario) acquire(sid flake.SID, id lease.LeaseID, h lease.Holder, w lease.Window) {
	s.t.Helper()
	v, now := s.load(), s.w.clock.Now().Wall
	w.Era, w.Term, w.Base, w.State, w.Wall = 1, 1, now, lease.Active, now
	applied, _, err := s.mem.Commit(context.Background(), lease.Txn{
		Op:     lease.Acquire,
		SID:    sid,
		Config: v.Config,
		Era:    v.Era,
		Mark:   v.Mark,
		Lease:  id,
		Holder: h,
		Window: w,
	})
	if s.check(err); !applied {
		s.t.Fatalf("sid %d is taken", sid)
	}
	s.others = append(s.others, id)
}

// vacate ends the first N of those that occupy sids.
func (s *scenario) vacate(a args) {
	for range a.number(0) {
		s.mem.Expire(s.others[0])
		s.others = s.others[1:]
	}
}

// ceiling writes the record of a clock that is D ahead.
func (s *scenario) ceiling(a args) {
	now := s.w.clock.Now().Wall
	s.mem.Put("window/"+a.word(0), lease.Encode(lease.Window{
		Era:      1,
		Term:     9,
		Instance: "x",
		Node:     "x",
		Nonce:    "x",
		Base:     now,
		Ceil:     now + clock.MillisOf(a.duration(1)),
		State:    lease.Active,
		Wall:     now,
	}))
}

// quarantine puts a sid into quarantine as an operator does it.
func (s *scenario) quarantine(a args) {
	w := s.load().SIDs[flake.SID(a.number(0))].Window.Value
	w.State, w.Nonce, w.Term = lease.Quarantined, "operator", w.Term+1
	s.mem.Put("window/"+a.word(0), lease.Encode(w))
	s.mem.Delete("holder/" + a.word(0))
}

// reserve puts a sid aside as an operator does it, and unreserve gives it back.
func (s *scenario) reserve(a args) {
	w, _, err := repair.Reserve(s.load(), flake.SID(a.number(0)), "for java", s.operator())
	s.operated(w, err)
}

func (s *scenario) unreserve(a args) {
	slack := lease.Bounds{MaxSkew: 250 * time.Millisecond}
	s.operated(repair.Unreserve(s.load(), flake.SID(a.number(0)), 0, slack, s.operator()))
}

func (s *scenario) operator() repair.Author {
	return repair.Author{Instance: "operator", Nonce: rand.Text(), Now: s.w.clock.Now().Wall}
}

func (s *scenario) operated(w repair.Write, err error) {
	s.t.Helper()
	s.check(err)
	s.mem.Put(fmt.Sprintf("window/%d", w.SID), lease.Encode(w.Window))
	s.mem.Delete(fmt.Sprintf("holder/%d", w.SID))
}

// replace writes another holder's key, on no lease.
func (s *scenario) replace(a args) {
	name := a.word(2)
	s.mem.Put("holder/"+a.word(1), lease.Encode(lease.Holder{Instance: lease.Instance(name), Node: name}))
}

// churn makes N unrelated writes.
func (s *scenario) churn(a args) {
	for range a.number(0) {
		s.mem.Put("unrelated", "x")
	}
}

func (s *scenario) pass(a args) {
	s.w.clock.Advance(a.duration(0))
	s.mem.Advance(a.duration(0))
}

func (s *scenario) stepClock(a args) { s.w.clock.Step(a.duration(0)) }

func (s *scenario) suspend(a args) {
	s.w.clock.Suspend(a.duration(0))
	s.mem.Advance(a.duration(0))
}

func (s *scenario) tick(p *process, a args) string {
	s.pass(a)
	p.step(lease.Tick{})
	return ""
}

// ticks lets D pass and ticks p whenever it asks for it. Renewals of the lease are
// left out of the transcript unless one fails.
func (s *scenario) ticks(p *process, a args) string {
	end := s.w.clock.Now().Mono.Add(a.duration(0))
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
	return ""
}

// fault decides what becomes of the next request of p.
func (s *scenario) fault(p *process, a args) string {
	outcomes := map[string]outcome{
		"notapplied": notApplied,
		"lostreply":  lostReply,
		"late":       late,
		"refused":    refused,
		"hang":       notAnswered,
	}
	f, ok := outcomes[a.word(0)]
	if !ok {
		s.t.Fatalf("unknown fault %q", a.word(0))
	}
	s.next[p] = plannedFault{outcome: f, kind: a.word(1)}
	return ""
}

func (s *scenario) deliver(p *process, _ args) string {
	p.deliver()
	return ""
}

func (s *scenario) answer(p *process, _ args) string {
	pending := p.pending
	p.pending = nil
	for _, a := range pending {
		p.step(p.carryOut(a, answered))
	}
	return ""
}

func (s *scenario) issue(p *process, a args) string {
	n := int(a.number(0))
	b, err := p.node.Try(s.w.clock.Now(), n, 0)
	if err != nil {
		reason, _, _ := strings.Cut(err.Error(), ":")
		return "REFUSED " + reason + "\n"
	}
	p.record(b)
	return fmt.Sprintf("%d IDs from ms %d\n", n, clock.Millis(flake.Default.UnixMilli(b.First))-s.w.began)
}

func (s *scenario) status(p *process, _ args) string {
	st := p.machine.Status()
	line := st.Phase.String()
	if st.Held {
		g := st.Grant
		line += fmt.Sprintf(" sid=%d window=[%d,%d)", g.SID, g.Base-s.w.began, g.Ceil-s.w.began)
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
}

func (s *scenario) gate(p *process, a args) string {
	p.step(lease.Gate{Open: a.word(0) == "open", Confirmed: a.word(1) == "confirmed"})
	return ""
}

func (s *scenario) reported(p *process, a args) string {
	p.step(lease.ReportedRevision{Era: a.number(0), Revision: a.number(1)})
	return ""
}
