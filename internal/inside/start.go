package inside

import (
	"context"
	"errors"
	"time"

	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// Shell is what differs between nodes and pods in the start of a member.
type Shell interface {
	// Ask asks the other addresses of the list. Its error ends the start.
	Ask(ctx context.Context) (member.Heard, error)
	// Write carries out Intend or Discard, as Site.Write does. Its error ends the start.
	Write(step member.Step) error
	// Say is told each step before it is carried out.
	Say(step member.Step)
}

// Start carries out the steps of a start with what the directory holds, until etcd can start. It returns the last step
// and the data that are there then. It pauses after a step that waits or failed.
func (s *Site) Start(ctx context.Context, own member.Own, data *member.Data, sh Shell, pause time.Duration) (
	member.Step, *member.Data, error) {
	m := member.NewMachine(own, data)
	for e := member.Event(member.Tick{}); ; {
		step := m.Step(e)
		sh.Say(step)
		var err error
		switch step.Action {
		case member.Ask:
			e, err = sh.Ask(ctx)
		case member.AskAt:
			e = member.There(s.AskAt(ctx, step.At))
		case member.Wait:
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			e = member.Tick{}
		case member.Intend, member.Discard:
			e, err = member.Done{}, sh.Write(step)
		case member.Start, member.Begin, member.Join:
			return step, m.Data(), nil
		default:
			e = s.carryOut(ctx, step)
		}
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			return member.Step{}, nil, err
		}
	}
}

// carryOut has members of the cluster carry out a step.
func (s *Site) carryOut(ctx context.Context, step member.Step) member.Event {
	var listed member.Listed
	err := s.Call(ctx, step.Clients, func(ctx context.Context, g *etcdstore.Group) (err error) {
		switch step.Action {
		case member.List:
			listed.Cluster, listed.Members, err = g.List(ctx)
		case member.Add:
			_, err = g.Add(ctx, step.At)
		case member.Move:
			err = g.Move(ctx, step.ID, step.At)
		case member.Remove:
			err = g.Remove(ctx, step.ID)
		}
		return err
	})
	switch {
	case err != nil:
		return member.Failed{Err: err}
	case step.Action == member.List:
		return listed
	}
	return member.Done{}
}

// Call calls members of the cluster.
func (s *Site) Call(ctx context.Context, clients []string, f func(context.Context, *etcdstore.Group) error) error {
	if len(clients) == 0 {
		return errors.New("no member of the cluster says where it answers")
	}
	g, err := s.Dial(clients)
	if err != nil {
		return err
	}
	defer g.Close()
	return meet.Limited(ctx, 2*meet.Timeout, func(ctx context.Context) error { return f(ctx, g) })
}
