package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/internal/lease"
)

func clusterFaults() []Fault {
	return []Fault{
		{
			Name:   "layout-mismatch",
			Scope:  Extra,
			Smoke:  true,
			About:  "start a node configured with another layout",
			Hold:   between(time.Second, time.Second),
			Begin:  misconfigured("--layout", "fleet"),
			Fired:  seen,
			End:    stopSpare,
			Expect: refusedToJoin,
		},
		{
			Name:   "epoch-mismatch",
			Scope:  Extra,
			About:  "start a node configured with another epoch",
			Hold:   between(time.Second, time.Second),
			Begin:  misconfigured("--epoch", "2020-01-01T00:00:00Z"),
			Fired:  seen,
			End:    stopSpare,
			Expect: refusedToJoin,
		},
		{
			Name:  "byzantine-peer",
			Scope: Whole,
			Smoke: true,
			About: "a member of gossip, with the key, reports false clocks and a false history: " +
				"as a registered node, or as each of the others",
			Hold: between(6*time.Second, 7*time.Second),
			// 0 an hour behind, 1 an hour ahead, 2 oscillating, 3 at random; 4 as the others under
			// names of its own, 5 as the others when it has said that they left.
			Amount: func(r *rand.Rand) int64 { return r.Int64N(6) },
			Unit:   "kind",
			Begin:  startByzantinePeer,
			Fired:  falseReportsAnswered,
			End:    stopByzantinePeer,
			Expect: unaffected(2 * time.Second),
		},
		{
			Name:  "pool-full",
			Scope: Whole,
			About: "every sid is held (what the nodes leave, by the harness), and one node more starts, the 33rd of " +
				"layout scalable",
			Hold:  between(5*time.Second, 6*time.Second),
			Begin: fillPool,
			Fired: onStandby,
			End:   emptyPool,
			Expect: backWith(nil, 2*time.Second,
				"it stays not ready and answers NO_SID; it issues once a sid is free; others issue"),
		},
	}
}

var refusedToJoin = backWith(nil, time.Second,
	"it exits with an error that names the difference, and has issued nothing; others issue")

func misconfigured(flag, value string) func(context.Context, *Injection) error {
	return func(ctx context.Context, s *Injection) error {
		n := s.Spare()
		if err := n.Start(flag, value); err != nil {
			return err
		}
		if err := rig.Until(ctx, 10*time.Second, "the node exits", func(ctx context.Context) error {
			if n.Ready(ctx) == nil {
				return fmt.Errorf("%w: %s with %s %s is ready", rig.ErrBroken, n.Name, flag, value)
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
			return fmt.Errorf("%w: %s ended with %s, and did not state why: %s", rig.ErrBroken, n.Name, n.Exit(), out)
		}
		s.Seen = fmt.Sprintf("%s %s: %s", flag, value, n.Exit())
		return nil
	}
}

func stopSpare(_ context.Context, s *Injection) error { return s.Spare().Kill() }

func startByzantinePeer(ctx context.Context, s *Injection) error {
	random := s.random()
	jitter := make([]time.Duration, 997)
	for i := range jitter {
		jitter[i] = time.Duration(random.Int64N(int64(2*time.Hour))) - time.Hour
	}
	wrong := []func(time.Duration) time.Duration{
		func(time.Duration) time.Duration { return -time.Hour },
		func(time.Duration) time.Duration { return time.Hour },
		func(since time.Duration) time.Duration {
			return time.Duration(since.Milliseconds()%2000-1000) * time.Millisecond
		},
		func(since time.Duration) time.Duration { return jitter[int(since.Milliseconds())%len(jitter)] },
	}
	wrongly, as := wrong[1], rig.Itself
	switch s.Amount {
	case 4:
		as = rig.OthersRenamed
	case 5:
		as = rig.Others
	default:
		wrongly = wrong[s.Amount%int64(len(wrong))]
	}
	for _, n := range s.Nodes {
		s.base += uint64(n.Sample().Value(impostors))
	}
	l, err := s.StartByzantinePeer(ctx, as, wrongly)
	if err != nil {
		return err
	}
	s.replies = l.Replies
	s.Undo = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return l.Stop(ctx)
	}
	return nil
}

// impostors counts announcements that a node refused since another had registered the instance.
const impostors = `gossip_dropped_total{reason="impostor"}`

// stopByzantinePeer stops it, and waits until all nodes that are ready have each other as
// members again.
func stopByzantinePeer(ctx context.Context, s *Injection) error {
	if err := s.undo(); err != nil || s.Amount < 4 {
		return err
	}
	return rig.Until(ctx, 40*time.Second, "all nodes are members of gossip again", func(ctx context.Context) error {
		up := 0
		for _, n := range s.Nodes {
			if n.Running() {
				up++
			}
		}
		for _, n := range s.Nodes {
			if members := n.Scrape(ctx).Value("gossip_members"); n.Running() && members < float64(up) {
				return fmt.Errorf("%w: %s has %.0f of %d members", errNotYet, n.Name, members, up)
			}
		}
		return nil
	})
}

// falseReportsAnswered waits until every node has had false replies. Where the peer is not
// registered it is asked nothing, and is refused.
func falseReportsAnswered(_ context.Context, s *Injection) (string, error) {
	if s.replies == nil {
		return "", errNotYet
	}
	if s.Amount >= 4 {
		var refused uint64
		for _, n := range s.Nodes {
			refused += uint64(n.Sample().Value(impostors))
		}
		if refused < s.base+2*uint64(len(s.Nodes)) {
			return "", errNotYet
		}
		if n := s.replies(); n > 0 {
			return "", fmt.Errorf("%w: %d questions for other nodes were sent to it", rig.ErrBroken, n)
		}
		return fmt.Sprintf("%d announcements of other nodes' instances were refused", refused-s.base), nil
	}
	replies, suspected := s.replies(), 0
	for _, n := range s.Nodes {
		if n.Sample().Value("clock_falsetickers") > 0 {
			suspected++
		}
	}
	if replies < 2*uint64(len(s.Nodes)) || suspected == 0 && s.Amount < 2 {
		return "", errNotYet
	}
	return fmt.Sprintf("%d false replies; %d nodes classify it as a falseticker", replies, suspected), nil
}

// fillPool takes every free sid and starts the extra node.
func fillPool(ctx context.Context, s *Injection) error {
	taken, free, err := s.Op.Occupy(ctx, lease.Space{Layout: s.Format.Layout}.SIDs().Len(),
		lease.Holder{Instance: lease.Instance(uuid.NewString()), Node: "harness"})
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
	s.taken = taken
	return s.Spare().Start()
}

// seen returns the effect that Begin or End saw.
func seen(_ context.Context, s *Injection) (string, error) {
	if s.Seen == "" {
		return "", errNotYet
	}
	return s.Seen, nil
}

// hasNoSID returns nil if the extra node answers NO_SID.
func hasNoSID(ctx context.Context, s *Injection) error {
	n := s.Spare()
	now := n.Scrape(ctx)
	if now.Up && now.Value("sid") >= 0 {
		return fmt.Errorf("%s holds sid %.0f of a full pool", n.Name, now.Value("sid"))
	}
	if n.Ready(ctx) == nil {
		return fmt.Errorf("%s reports ready, without a sid", n.Name)
	}
	status, answer, err := n.Ask(ctx)
	if err == nil && status == http.StatusOK {
		return fmt.Errorf("%s issued without a sid: %s", n.Name, answer)
	}
	if err != nil || status != http.StatusServiceUnavailable || !strings.Contains(answer, `"`+noSID+`"`) {
		return fmt.Errorf("%w: it answers %d %s %v", errNotYet, status, answer, err)
	}
	return nil
}

func onStandby(ctx context.Context, s *Injection) (string, error) {
	if err := hasNoSID(ctx, s); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d processes and %d records hold %d sids; the extra process is not ready and answers 503 %s",
		len(s.Nodes), len(s.taken), len(s.Nodes)+len(s.taken), noSID), nil
}

// emptyPool frees one sid, waits for the extra node to have it, and then frees the
// rest.
func emptyPool(ctx context.Context, s *Injection) error {
	if s.Undo == nil {
		return nil
	}
	n := s.Spare()
	if !n.Running() {
		return s.undo()
	}
	err := hasNoSID(ctx, s) // still
	if err == nil {
		err = s.handOver(ctx)
	}
	err = errors.Join(err, n.Terminate(10*time.Second), s.undo())
	for _, n := range s.Nodes {
		if !n.Running() {
			err = errors.Join(err, n.Start())
		}
	}
	return err
}

// handOver frees one sid for the extra node: one of the harness, or if it has none,
// that of a node that is terminated.
func (s *Injection) handOver(ctx context.Context) error {
	n, within := s.Spare(), 2*s.Timing.TTL+5*time.Second
	wait := func() error {
		from := time.Now()
		err := rig.Until(ctx, within, n.Name+" takes the sid that was freed", n.Ready)
		s.Healed = fmt.Sprintf("one sid was freed, and it was ready %d ms later", time.Since(from).Milliseconds())
		return err
	}
	if len(s.taken) > 0 {
		sid := s.taken[len(s.taken)-1]
		if err := s.Op.Delete(ctx, s.Op.Holder(sid)); err != nil {
			return err
		}
		if err := wait(); err != nil {
			return err
		}
		if got := n.Scrape(ctx).Value("sid"); got != float64(sid) {
			return fmt.Errorf("sid %d was freed, and %s has %.0f", sid, n.Name, got)
		}
		return nil
	}
	last := s.Nodes[len(s.Nodes)-1]
	gone := Expect{May: []string{connection, timeout, draining, starting, noSID}, Settle: restartSettle}
	return s.AlsoInject("hand-over", history.ClassProcess, []string{last.Name}, gone, func() (string, error) {
		if err := last.Terminate(10 * time.Second); err != nil {
			return "", err
		}
		if err := wait(); err != nil {
			return "", err
		}
		if err := n.Terminate(10 * time.Second); err != nil {
			return "", err
		}
		if err := last.Start(); err != nil {
			return "", err
		}
		return last.Name + " gave its sid to the extra node, and got it back",
			rig.Until(ctx, within, last.Name+" issues again", last.Ready)
	})
}
