package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/flakelease/allocator/chaos/rig"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

func clusterFaults() []Fault {
	seen := func(_ context.Context, s *Strike) (string, error) { return s.Seen, seenOr(s.Seen) }
	return []Fault{
		{
			Name: "other-layout", Class: Cluster, Scope: Aside, Smoke: true,
			About: "start a node that is set to another layout",
			Hold:  between(time.Second, time.Second),
			Begin: misconfigured("--layout", "fleet"), Fired: seen, End: stopSpare,
			Expect: refusedToJoin,
		},
		{
			Name: "other-epoch", Class: Cluster, Scope: Aside,
			About: "start a node that is set to another epoch",
			Hold:  between(time.Second, time.Second),
			Begin: misconfigured("--epoch", "2020-01-01T00:00:00Z"), Fired: seen, End: stopSpare,
			Expect: refusedToJoin,
		},
		{
			Name: "liar", Class: Cluster, Scope: Whole, Smoke: true,
			About: "a registered member of gossip, with the key, tells false clocks and a false history",
			Hold:  between(6*time.Second, 7*time.Second),
			// What it lies about: 0 late by an hour, 1 early by an hour, 2 swinging, 3 at random.
			Amount: func(r *rand.Rand) int64 { return r.Int64N(4) }, Unit: "kind of lie",
			Begin: startLiar, Fired: liarHeard, End: func(_ context.Context, s *Strike) error { return s.undo() },
			Expect: unharmed(2 * time.Second),
		},
		{
			Name: "pool-full", Class: Cluster, Scope: Whole,
			About: "every sid is held (what is free, by the harness), and one more node starts",
			Hold:  between(5*time.Second, 6*time.Second),
			Begin: fillPool, Fired: onStandby, End: emptyPool,
			Expect: func(rig.Timing) Expect {
				return Expect{Settle: 2 * time.Second, Word: "it stands by with NO_SID; it issues when a sid is freed; others serve"}
			},
		},
	}
}

func refusedToJoin(rig.Timing) Expect {
	return Expect{Settle: time.Second, Word: "it ends with an error that names the difference, and has issued nothing; others serve"}
}

func misconfigured(flag, value string) func(context.Context, *Strike) error {
	return func(ctx context.Context, s *Strike) error {
		n := s.Spare()
		if err := n.Start(flag, value); err != nil {
			return err
		}
		if err := rig.Until(ctx, 10*time.Second, "the node gives up", func(ctx context.Context) error {
			if n.Ready(ctx) == nil {
				return fmt.Errorf("%s with %s %s is ready", n.Name, flag, value)
			}
			if n.Running() {
				return errNotYet
			}
			return nil
		}); err != nil {
			return err
		}
		out := n.Output(n.Run())
		if strings.Contains(n.Exit(), "exit status 0") || !strings.Contains(out, strings.TrimPrefix(flag, "--")) {
			return fmt.Errorf("%s ended with %s, and did not say why: %s", n.Name, n.Exit(), out)
		}
		s.Seen = fmt.Sprintf("%s %s: %s", flag, value, n.Exit())
		return nil
	}
}

func stopSpare(_ context.Context, s *Strike) error { return s.Spare().Kill() }

func startLiar(ctx context.Context, s *Strike) error {
	random := rand.New(rand.NewPCG(s.Seed, uint64(s.ID)))
	jitter := make([]time.Duration, 997)
	for i := range jitter {
		jitter[i] = time.Duration(random.Int64N(int64(2*time.Hour))) - time.Hour
	}
	lies := []func(time.Duration) time.Duration{
		func(time.Duration) time.Duration { return -time.Hour },
		func(time.Duration) time.Duration { return time.Hour },
		func(since time.Duration) time.Duration {
			return time.Duration(since.Milliseconds()%2000-1000) * time.Millisecond
		},
		func(since time.Duration) time.Duration { return jitter[int(since.Milliseconds())%len(jitter)] },
	}
	l, err := s.StartLiar(ctx, lies[s.Amount%int64(len(lies))])
	if err != nil {
		return err
	}
	s.heard = l.Told
	s.Undo = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return l.Stop(ctx)
	}
	return nil
}

// liarHeard waits until every node has had answers.
func liarHeard(_ context.Context, s *Strike) (string, error) {
	if s.heard == nil {
		return "", errNotYet
	}
	told, doubted := s.heard(), 0
	for _, n := range s.Nodes {
		if n.Sample().Value("clock_falsetickers") > 0 {
			doubted++
		}
	}
	if told < 2*uint64(len(s.Nodes)) || doubted == 0 && s.Amount < 2 {
		return "", errNotYet
	}
	return fmt.Sprintf("%d lies were told; %d nodes call it a falseticker", told, doubted), nil
}

// poolSize is how many sids the layout has.
var poolSize = flake.Scalable.Holders()

func fillPool(ctx context.Context, s *Strike) error {
	taken, free, err := s.Op.Occupy(ctx, poolSize, lease.Holder{Instance: lease.Instance(uuid.NewString()), Node: "harness"})
	s.Undo = func() error {
		if free == nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return free(ctx)
	}
	if err != nil {
		return err
	}
	s.base = uint64(taken)
	return s.Spare().Start()
}

// onStandby waits until the extra node refuses as it should, and looks whether it
// goes on to do so.
func onStandby(ctx context.Context, s *Strike) (string, error) {
	now := s.Spare().Look(ctx)
	if now.Up && now.Value("sid") >= 0 {
		return "", fmt.Errorf("%s holds sid %.0f of a full pool", s.Spare().Name, now.Value("sid"))
	}
	if !now.Up || now.Reason != noSID {
		return "", fmt.Errorf("%w: it refuses with %q", errNotYet, now.Reason)
	}
	return fmt.Sprintf("%d sids taken by the harness; the extra node stands by with %s", s.base, now.Reason), nil
}

// emptyPool frees the sids and waits for the extra node to get one.
func emptyPool(ctx context.Context, s *Strike) error {
	if s.Undo == nil {
		return nil
	}
	err := s.undo()
	n := s.Spare()
	if err == nil && n.Running() {
		err = rig.Until(ctx, 2*s.Timing.TTL+5*time.Second, n.Name+" takes a sid that was freed", n.Ready)
	}
	return errors.Join(err, n.Terminate(10*time.Second))
}
