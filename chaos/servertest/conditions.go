package servertest

import (
	"context"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Condition is a state of a node in which it refuses, and the way back; Cure nil: none.
type Condition struct {
	Name string
	Set  func(*Env)
	Cure func(*Env)
}

// Report changes what the lease reports to the node.
func (e *Env) Report(change func(*lease.Status)) {
	st := e.Node.Stats().Lease
	change(&st)
	e.Node.Report(st)
}

// SetVerdict sets the verdict on the clock.
func (e *Env) SetVerdict(s clock.State) {
	e.Node.SetVerdict(clock.Verdict{State: s, Offset: 900, Limit: 250})
}

// The conditions.
var (
	Healthy  = Condition{"healthy", func(*Env) {}, func(*Env) {}}
	Draining = Condition{"draining", func(e *Env) { e.Drainer.Stop() }, nil}
	Rewound  = Condition{
		"rewound",
		func(e *Env) {
			e.Node.Seal()
			e.Report(func(s *lease.Status) { s.Phase, s.Problem = lease.Rewound, "history went back" })
		},
		func(e *Env) {
			e.Report(func(s *lease.Status) { s.Phase, s.Problem = lease.Holding, "" })
			begin(e)
		},
	}
	Skewed = Condition{"skewed", func(e *Env) { e.SetVerdict(clock.Skewed) }, func(e *Env) {
		e.SetVerdict(clock.Open)
	}}
	Unverified = Condition{"unverified", func(e *Env) { e.SetVerdict(clock.Unverified) }, func(e *Env) {
		e.SetVerdict(clock.Open)
	}}
	Starting = Condition{
		"starting",
		func(e *Env) {
			e.Node.Seal()
			e.Report(func(s *lease.Status) {
				*s = lease.Status{Phase: lease.Seeking, SIDs: lease.SIDRange{To: 32}, Pool: lease.Pool{Size: 32}}
			})
		},
		begin,
	}
	Standby = Condition{
		"standby",
		func(e *Env) {
			e.Node.Seal()
			e.Report(func(s *lease.Status) {
				pool := lease.Pool{Size: 32, Held: 32}
				*s = lease.Status{Phase: lease.Standby, SIDs: lease.SIDRange{To: 32}, Pool: pool}
			})
		},
		begin,
	}
	// These keep the tenure. The first 40,000 IDs reach into the second millisecond.
	Exhausted = Condition{
		"exhausted",
		func(e *Env) {
			e.Node.Seal()
			e.Node.Begin(lease.Grant{SID: 7, Term: 2, Base: Start + 1, Ceil: Start + 3})
			e.Clock.Advance(time.Millisecond)
			e.MustIssue(40_000)
		},
		func(e *Env) { e.Node.Raise(Start + 30_000) },
	}
	Regression = Condition{
		"regression",
		func(e *Env) { e.MustIssue(40_000); e.Clock.Step(-time.Second) },
		func(e *Env) { e.Clock.Step(time.Second) },
	}
	Overflow = Condition{
		"overflow",
		func(e *Env) { e.MustIssue(98_304); e.MustIssue(32_000) },
		func(e *Env) { e.Clock.Advance(5 * time.Millisecond) },
	}
)

func begin(e *Env) {
	e.Node.Begin(lease.Grant{SID: 7, Term: 3, Base: Start, Ceil: Start + 30_000})
}

// MustIssue issues count IDs.
func (e *Env) MustIssue(count int) {
	e.T.Helper()
	if _, err := e.Node.Next(context.Background(), count, 0); err != nil {
		e.T.Fatal(err)
	}
}
