package etcdpod

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/flakelease/allocator/internal/member"
)

// What a member reports is what its volume holds, from its first answer on: the others may begin
// because of it.
func TestFirstReport(t *testing.T) {
	s := settings{name: "a", members: []string{"a=127.0.0.1"}, dir: t.TempDir(), token: "1", user: "u", prefix: "/p/"}
	v := volume{filepath.Join(s.dir, s.token)}
	reports := func() member.Holds {
		t.Helper()
		r, err := newRunner(s, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return r.state.report.Holds
	}
	if got := reports(); got != member.HoldsNothing {
		t.Errorf("an empty volume: %s", got)
	}
	if err := v.intend(); err != nil {
		t.Fatal(err)
	}
	if got := reports(); got != member.HoldsIntent {
		t.Errorf("intended: %s", got)
	}
	wal := filepath.Join(v.data(), "member", "wal")
	if err := os.MkdirAll(wal, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := reports(); got != member.HoldsIntent {
		t.Errorf("a directory without a log: %s", got)
	}
	if err := os.WriteFile(filepath.Join(wal, "0-0.wal"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := reports(); got != member.HoldsData {
		t.Errorf("with a log: %s", got)
	}
	if err := v.identify(7); err != nil {
		t.Fatal(err)
	}
	if holds, id, err := v.state(); err != nil || holds != member.HoldsData || id != 7 {
		t.Errorf("identified: %s, %x, %v", holds, id, err)
	}
}

// Members that restore different snapshots under one token are not one cluster, and say what they restore.
func TestClusterOfSnapshot(t *testing.T) {
	seen := map[string]string{}
	for _, snapshot := range []string{"", "s1.snapshot", "s2.snapshot"} {
		r, err := newRunner(settings{
			name:     "a",
			members:  []string{"a=127.0.0.1"},
			dir:      t.TempDir(),
			cluster:  "allocator",
			token:    "restored-1",
			snapshot: snapshot,
			user:     "u",
			prefix:   "/p/",
		}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		token := r.clusterToken()
		if other, ok := seen[token]; ok {
			t.Errorf("snapshots %q and %q are one cluster: %s", snapshot, other, token)
		}
		seen[token] = snapshot
		if got := r.state.report.Snapshot; got != snapshot {
			t.Errorf("reports snapshot %q, has %q", got, snapshot)
		}
	}
}
