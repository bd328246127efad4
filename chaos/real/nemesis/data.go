package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/flake"
)

func dataFaults() []Fault {
	return []Fault{
		{
			Name:   "lease-revoked",
			Smoke:  true,
			About:  "revoke a node's lease",
			Hold:   between(time.Second, 2*time.Second),
			Begin:  revoke,
			Fired:  seen,
			End:    nothingToHeal,
			Expect: unaffected(2 * time.Second),
		},
		{
			Name:   "holder-deleted",
			About:  "delete the holder record of a node's sid",
			Hold:   between(time.Second, 2*time.Second),
			Begin:  deleteHolder,
			Fired:  seen,
			End:    nothingToHeal,
			Expect: unaffected(2 * time.Second),
		},
		{
			Name:         "window-corrupted",
			EditsHistory: true,
			About:        "corrupt a node's window record; `admin release-sid` repairs it",
			Hold:         after(window, 2*time.Second, 3*time.Second),
			Begin:        corruptWindow,
			Fired:        alarmRaised("sid_lost"),
			End:          releaseSID,
			Expect: backWith([]string{noSID, starting, exhausted}, 3*time.Second,
				"alarm sid_lost; the sid is not used until repaired, and the node acquires another"),
		},
		{
			Name:         "window-deleted",
			Exclusive:    true,
			EditsHistory: true,
			About:        "delete a node's window record; `admin recover` begins a new era",
			Hold:         after(detection, 2*time.Second, 3*time.Second),
			Begin:        deleteWindow,
			Fired:        alarmRaised("history_rewound"),
			End:          recovered,
			Expect: func(t rig.Timing) Expect {
				return Expect{
					Must:   rewound,
					Within: detection(t),
					May:    []string{rewound},
					Settle: newEra(t),
					Text:   "HISTORY_REWOUND, no ID until \"admin recover\"",
				}
			},
		},
		{
			Name:         "etcd-restored",
			Scope:        Whole,
			EditsHistory: true,
			Smoke:        true,
			About:        "restore etcd from an older snapshot; `admin recover` begins a new era",
			Hold:         after(detection, 4*time.Second, 5*time.Second),
			Amount:       func(r *rand.Rand) int64 { return r.Int64N(2) },
			Unit:         "tokens",
			Begin:        restoreEtcd,
			Fired:        alarmEverywhere("history_rewound"),
			End:          recovered,
			Expect: func(t rig.Timing) Expect {
				return Expect{
					Must:   rewound,
					Within: 3*time.Second + detection(t),
					May:    []string{rewound, exhausted, noSID, starting},
					Settle: newEra(t),
					Text:   "HISTORY_REWOUND from every node, no ID until \"admin recover\"",
				}
			},
		},
	}
}

// detection is how soon a node detects that its record is gone: with its next write,
// or the one after on an overloaded machine.
func detection(t rig.Timing) time.Duration { return 2*t.ExtendEvery + t.CallTimeout + time.Second }

// newEra is how long a space may be without IDs after `admin recover`: its floor is
// above every ceiling by all that an unreachable node can have been granted.
func newEra(t rig.Timing) time.Duration {
	return 2*t.Window + 2*(2*rig.MaxSkew+rig.MaxLead) + 3*time.Second
}

func nothingToHeal(context.Context, *Injection) error { return nil }

// sidOf returns the sid that the node holds.
func sidOf(s *Injection) (flake.SID, error) {
	sid := s.Node.SID()
	if sid < 0 {
		return 0, fmt.Errorf("%w: %s holds no sid", errNoTarget, s.Node.Name)
	}
	return flake.SID(sid), nil
}

// edit changes a key of the node's sid.
func edit(s *Injection, what string, key func(flake.SID) string, do func(key string) error) error {
	sid, err := sidOf(s)
	if err != nil {
		return err
	}
	s.base = uint64(sid)
	if err := do(key(sid)); err != nil {
		return err
	}
	s.Seen = fmt.Sprintf("etcd confirmed: %s of sid %d", what, sid)
	return nil
}

func revoke(ctx context.Context, s *Injection) error {
	return edit(s, "lease revoked", s.Op.Holder, func(key string) error { return s.Op.RevokeLeaseOf(ctx, key) })
}

func deleteHolder(ctx context.Context, s *Injection) error {
	return edit(s, "holder deleted", s.Op.Holder, func(key string) error { return s.Op.Delete(ctx, key) })
}

func corruptWindow(ctx context.Context, s *Injection) error {
	return edit(s, "window overwritten", s.Op.Window, func(key string) error { return s.Op.Corrupt(ctx, key) })
}

func deleteWindow(ctx context.Context, s *Injection) error {
	return edit(s, "window deleted", s.Op.Window, func(key string) error { return s.Op.Delete(ctx, key) })
}

func alarms(sample *rig.Sample, kind string) float64 {
	if sample == nil {
		return 0
	}
	return sample.Metrics[`allocator_alarms_total{kind="`+kind+`"}`]
}

// alarmRaised waits until the node has raised an alarm.
func alarmRaised(kind string) func(context.Context, *Injection) (string, error) {
	return func(ctx context.Context, s *Injection) (string, error) {
		now := s.Node.Scrape(ctx)
		if !now.Up || alarms(now, kind) <= alarms(s.Before, kind) {
			return "", errNotYet
		}
		return s.Seen + "; the node raised " + kind, nil
	}
}

// alarmEverywhere waits until every node has the alarm.
func alarmEverywhere(kind string) func(context.Context, *Injection) (string, error) {
	return func(ctx context.Context, s *Injection) (string, error) {
		for _, n := range s.Nodes {
			if now := n.Scrape(ctx); !now.Up || now.Value(kind) != 1 {
				return "", fmt.Errorf("%w: %s has not detected it", errNotYet, n.Name)
			}
		}
		return s.Seen + "; every node latched " + kind, nil
	}
}

func restoreEtcd(ctx context.Context, s *Injection) error {
	if err := s.Restore(ctx, s.Snapshot, s.Amount == 1); err != nil {
		return err
	}
	s.Seen = fmt.Sprintf("etcd runs from a snapshot of revision %d", s.Snapshot.Revision)
	return nil
}

// recovered follows the runbook for a rewound history.
func recovered(ctx context.Context, s *Injection) error {
	var grpc []string
	for _, n := range s.Servers() {
		grpc = append(grpc, n.GRPC)
	}
	if err := rig.Until(ctx, 15*time.Second, "etcd answers", func(ctx context.Context) error {
		_, err := s.Op.Revision(ctx)
		return err
	}); err != nil {
		return err
	}
	do := func() (string, error) {
		_, err := s.Allocate(ctx, s.admin("recover", "--yes", "--addr", strings.Join(grpc, ","))...)
		return "a new era has begun", err
	}
	if s.Fault.Scope == Whole { // every node is a target, and refuses already
		_, err := do()
		return err
	}
	return s.AlsoInject("recover", history.ClassData, s.Names(),
		Expect{May: []string{rewound, exhausted, noSID, starting}, Settle: newEra(s.Timing)}, do)
}

func (s *Injection) admin(args ...string) []string {
	return append(append([]string{"admin"}, args...), "--root", rig.Root, "--space", rig.Space,
		"--etcd.endpoints", s.Endpoints(), "--lease.window", s.Timing.Window.String(),
		"--worker.window", s.Timing.Window.String()) // There are no workers, for whose windows a new era would wait.
}

func releaseSID(ctx context.Context, s *Injection) error {
	if s.Seen == "" {
		return nil // nothing was corrupted
	}
	out, err := s.Allocate(ctx, s.admin("release-sid", strconv.FormatUint(s.base, 10), "--yes")...)
	if err != nil {
		return errors.Join(err, errors.New(out))
	}
	s.Seen = ""
	return nil
}

// SnapshotPath is the path of the snapshot that a restore uses.
func SnapshotPath(dir string) string { return filepath.Join(dir, "etcd", "copy.db") }
