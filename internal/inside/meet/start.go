package meet

import (
	"context"
	"errors"
	"time"

	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// Shell is what a member's start needs of the machine it runs on.
type Shell interface {
	// Ask asks the other addresses of the list. Its error ends the start.
	Ask(ctx context.Context) (member.Heard, error)
	// AskAt asks the URL of a member what is there.
	AskAt(ctx context.Context, url string) member.Answer
	// Write carries out Intend or Discard. Its error ends the start.
	Write(step member.Step) error
	// Dial connects to members of the cluster.
	Dial(clients []string) (*etcdstore.Group, error)
	// Say is told each step before it is carried out.
	Say(step member.Step)
}

// Start carries out the steps of m until etcd can start, and returns the last one. It pauses after a step that waits
// or failed.
func Start(ctx context.Context, m *member.Machine, sh Shell, pause time.Duration) (member.Step, error) {
	for e := member.Event(member.Tick{}); ; {
		step := m.Step(e)
		sh.Say(step)
		var err error
		switch step.Action {
		case member.Ask:
			e, err = sh.Ask(ctx)
		case member.AskAt:
			e = member.There(sh.AskAt(ctx, step.At))
		case member.Wait:
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			e = member.Tick{}
		case member.Intend, member.Discard:
			e, err = member.Done{}, sh.Write(step)
		case member.Start, member.Begin, member.Join:
			return step, nil
		default:
			e = call(ctx, sh, step)
		}
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if err != nil {
			return member.Step{}, err
		}
	}
}

// call has members of the cluster carry out a step.
func call(ctx context.Context, sh Shell, step member.Step) member.Event {
	var listed member.Listed
	err := Call(ctx, sh.Dial, step.Clients, func(ctx context.Context, g *etcdstore.Group) (err error) {
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
func Call(ctx context.Context, dial func([]string) (*etcdstore.Group, error), clients []string,
	f func(context.Context, *etcdstore.Group) error) error {
	if len(clients) == 0 {
		return errors.New("no member of the cluster says where it answers")
	}
	g, err := dial(clients)
	if err != nil {
		return err
	}
	defer g.Close()
	return Limited(ctx, 2*Timeout, func(ctx context.Context) error { return f(ctx, g) })
}
