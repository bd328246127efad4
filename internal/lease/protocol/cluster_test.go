package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/storetest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/keeper"
	"github.com/flakelease/allocator/internal/lease/protocol"
	"github.com/flakelease/allocator/internal/node"
)

// cluster is a store, a clock and processes. It does what package keeper does,
// without goroutines, and can fail any call.
type cluster struct {
	store   keeper.Store
	clock   *clocktest.Manual // true time, and monotonic time everywhere
	window  time.Duration     // W; the other times keep their proportions to it
	began   clock.Millis      // the clock's first reading: times in transcripts start there
	procs   int
	nonce   int
	hist    history.History
	moments clock.Mono
	sids    map[string]lease.SIDRange // that a node of that name may take; absent: all
	without map[string]bool           // nodes without gossip
	workers lease.SIDRange            // that are for workers
	marks   bool                      // the watermark is raised

	// fault decides the outcome of a call; nil: all succeed.
	fault func(p *process, a lease.Action) outcome
}

// outcome of a store call.
type outcome int

const (
	answered    outcome = iota // carried out, and answered
	notApplied                 // the request was lost
	lostReply                  // carried out, and the answer was lost
	late                       // answered with an error, and carried out later
	notAnswered                // left pending; see process.pending
	refused                    // answered that it is not carried out
)

var errLost = errors.New("deadline exceeded")

// process is one run of one node: a machine, a generator and its open requests.
type process struct {
	w       *cluster
	name    string // of the process in the history: unique
	machine *protocol.Machine
	node    *node.Node
	pending []lease.Action // requests that the test answers later
	late    []lease.Action // requests that the store will see after their deadline
	log     []string       // actions, as transcripts show them
	ended   bool           // done, failed or crashed
	failure error
	offset  time.Duration // of its wall clock from the true time
}

// Now reads the process's clock, which is wrong by its offset.
func (p *process) Now() clock.Reading {
	now := p.w.clock.Now()
	now.Wall += clock.MillisOf(p.offset)
	return now
}

// moment numbers events in the order in which they happen.
func (w *cluster) moment() clock.Mono { w.moments++; return w.moments }

func (w *cluster) config(nodeName, instance string, jitter func(time.Duration) time.Duration) lease.Config {
	gossip := nodeName + ":7946"
	if w.without[nodeName] {
		gossip = ""
	}
	markEvery := time.Duration(0)
	if w.marks {
		markEvery = w.window / 24
	}
	return lease.Config{
		Mark:           lease.MarkRules{Every: markEvery, Grace: time.Second, Late: w.window / 3},
		Registration:   lease.Registration{Instance: lease.Instance(instance), Node: nodeName, Version: "test", Gossip: gossip},
		Format:         flake.Default,
		SIDRange:       w.sids[nodeName],
		Workers:        w.workers,
		Bounds:         lease.Bounds{Window: w.window, WorkerWindow: 2 * w.window, MaxSkew: 250 * time.Millisecond, MaxLead: 250 * time.Millisecond},
		ExtendEvery:    w.window / 6,
		TTL:            w.window / 2,
		KeepAliveEvery: w.window / 10,
		ReloadEvery:    w.window / 3,
		RetryAfter:     250 * time.Millisecond,
		Nonce:          func() string { w.nonce++; return fmt.Sprintf("n%d", w.nonce) },
		Jitter:         jitter,
	}
}

// start begins a new process of the named node.
func (w *cluster) start(nodeName string) *process {
	w.procs++
	instance := fmt.Sprintf("%s-%d", nodeName, w.procs)
	p := &process{w: w, name: instance}
	p.machine = protocol.New(w.config(nodeName, instance, func(time.Duration) time.Duration { return 0 }))
	p.node = node.New(node.Config{
		Name:     nodeName,
		Instance: lease.Instance(instance),
		Gen:      gen.Config{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), MaxLead: 250, MaxStep: 255},
		MaxWait:  0,
		MaxSkew:  250 * time.Millisecond,
	}, p, rand.NewPCG(1, uint64(w.procs)))
	return p
}

// step passes ev to the machine, carries out its actions, and goes on with the
// events that follow at once.
func (p *process) step(ev lease.Event) {
	queue := []lease.Event{ev}
	for len(queue) > 0 && !p.ended {
		actions := p.machine.Step(p.Now(), queue[0])
		queue = queue[1:]
		status := p.machine.Status()
		if fresh := p.machine.FreshStatus(); !reflect.DeepEqual(status, fresh) {
			panic(fmt.Sprintf("after %T the status is\n%+v\nand not\n%+v", queue, status, fresh))
		}
		p.node.Report(status)
		for _, a := range actions {
			p.log = append(p.log, p.w.show(a))
			switch a := a.(type) {
			case lease.Begin:
				p.node.Begin(a.Grant)
			case lease.Lift:
				p.node.Lift(a.Floor)
			case lease.Raise:
				p.node.Raise(a.Ceil)
			case lease.Seal:
				queue = append(queue, lease.Sealed{Ceil: p.node.Seal()})
			case lease.Alarm, lease.Rewatch:
			case lease.Fail:
				p.ended, p.failure = true, a.Err
			case lease.Done:
				p.ended = true
			default:
				outcome := answered
				if p.w.fault != nil {
					outcome = p.w.fault(p, a)
				}
				if outcome == notAnswered {
					p.pending = append(p.pending, a)
				} else if ev := p.carryOut(a, outcome); !p.ended {
					queue = append(queue, ev)
				}
			}
		}
	}
}

// confirm records the windows that a response of the store confirmed to the
// process, whatever the machine does with the response.
func (p *process) confirm(v lease.View) {
	for sid, s := range v.SIDs {
		if w := s.Window.Value; s.Window.Err == nil && string(w.Instance) == p.name && w.State == lease.Active {
			p.w.hist.Grants = append(p.w.hist.Grants, history.Grant{
				Process: p.name, SID: sid, Base: w.Base, Ceil: w.Ceil, At: p.w.moment(),
			})
		}
	}
}

// carryOut carries a request out with the given outcome and returns the answer.
func (p *process) carryOut(a lease.Action, f outcome) lease.Event {
	answer := storetest.Failed(a, errLost)
	switch f {
	case refused:
		answer = storetest.Failed(a, lease.ErrRefused)
	case late:
		p.late = append(p.late, a)
	case answered, lostReply:
		real := p.ask(a)
		if f == answered {
			answer = real
			switch ev := real.(type) {
			case lease.Loaded:
				p.confirm(ev.View)
			case lease.Committed:
				p.confirm(ev.View)
			}
		}
	}
	return answer
}

// deliver carries out every request that was late.
func (p *process) deliver() {
	for _, a := range p.late {
		p.ask(a)
	}
	p.late = nil
}

// ask carries a request out against the store.
func (p *process) ask(a lease.Action) lease.Event {
	_, answer, _ := keeper.Ask(context.Background(), p.w.store, a)
	if c, ok := answer.(lease.Committed); ok && c.Applied && a.(lease.Commit).Txn.Op != lease.Expire {
		sid := a.(lease.Commit).Txn.SID
		w := c.View.SIDs[sid].Window
		p.w.hist.Writes = append(p.w.hist.Writes, history.Write{
			SID: sid, Rev: w.Rev, Term: w.Value.Term, Base: w.Value.Base, Ceil: w.Value.Ceil,
			Released: w.Value.State == lease.Released,
		})
	}
	if m, ok := answer.(lease.Marked); ok && m.Applied {
		p.w.hist.Marks = append(p.w.hist.Marks, history.Mark{Below: m.Mark.Value.At, At: p.w.moment()})
	}
	return answer
}

// issue asks the process for n IDs and records them. It reports whether it got any.
func (p *process) issue(n int) bool {
	b, err := p.node.Try(p.Now(), n, 0)
	if err != nil {
		return false
	}
	p.record(b)
	return true
}

func (p *process) record(b gen.Block) {
	p.w.hist.Issues = append(p.w.hist.Issues, history.Issue{
		Process: p.name, First: b.First, Count: b.Count, Stride: b.Stride, Begin: p.w.moment(), End: p.w.moment(),
	})
}

// show prints an action as transcripts do.
func (w *cluster) show(a lease.Action) string {
	switch a := a.(type) {
	case lease.Load:
		return "load"
	case lease.Read:
		return fmt.Sprintf("read sid=%d", a.SID)
	case lease.Commit:
		put := a.Txn.Window
		if a.Txn.Op == lease.Expire {
			return fmt.Sprintf("expire sid=%d over revision %d", a.Txn.SID, a.Txn.Seen.Window.Rev)
		}
		return fmt.Sprintf("%s sid=%d term=%d window=[%d,%d) over revision %d",
			a.Txn.Op, a.Txn.SID, put.Term, put.Base-w.began, put.Ceil-w.began, a.Txn.Seen.Window.Rev)
	case lease.Register:
		if a.Lease != 0 {
			return "register on the same lease"
		}
		return "register"
	case lease.KeepAlive:
		return "keep alive"
	case lease.Revoke:
		return "revoke"
	case lease.Begin:
		g := a.Grant
		return fmt.Sprintf("BEGIN sid=%d term=%d window=[%d,%d)", g.SID, g.Term, g.Base-w.began, g.Ceil-w.began)
	case lease.PutMark:
		return fmt.Sprintf("mark at=%d", a.Txn.Mark.At-w.began)
	case lease.Lift:
		return fmt.Sprintf("LIFT floor=%d", a.Floor-w.began)
	case lease.Raise:
		return fmt.Sprintf("RAISE ceil=%d", a.Ceil-w.began)
	case lease.Seal:
		return "SEAL"
	case lease.Alarm:
		return fmt.Sprintf("ALARM %s: %s", a.Kind, a.Message)
	case lease.Rewatch:
		return "REWATCH"
	case lease.Fail:
		return "FAIL " + strings.ReplaceAll(a.Err.Error(), "\n", " ")
	case lease.Done:
		return "done"
	}
	panic(fmt.Sprintf("unknown action %T", a))
}
