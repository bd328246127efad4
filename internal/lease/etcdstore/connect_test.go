package etcdstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
)

// TestWithoutAClient: before there is a client every call says why, and sends nothing.
// After Connect they reach etcd, and a watch that began before does too.
func TestWithoutAClient(t *testing.T) {
	s, err := New(nil, "test", "without-a-client")
	fatal.If(t, err)
	ctx := timeout(t, time.Minute)
	calls := map[string]func() error{
		"load":       func() error { _, err := s.Load(ctx); return err },
		"read":       func() error { _, err := s.Read(ctx, 1); return err },
		"commit":     func() error { _, _, err := s.Commit(ctx, lease.Txn{Lease: 1}); return err },
		"register":   func() error { _, err := s.Register(ctx, 0, time.Minute, lease.Registration{Instance: "a"}); return err },
		"grant":      func() error { _, err := s.Grant(ctx, time.Minute); return err },
		"keep alive": func() error { return s.KeepAlive(ctx, 1) },
		"revoke":     func() error { return s.Revoke(ctx, 1) },
		"holder":     func() error { _, _, err := s.Holder(ctx, 1, 1); return err },
		"init":       func() error { _, _, err := s.Init(ctx, space, 1); return err },
		"survey":     func() error { _, _, err := s.Survey(ctx, 1); return err },
		"repair":     func() error { return s.Repair(ctx, repair.Write{}) },
		"begin era":  func() error { return s.BeginEra(ctx, lease.View{}, lease.Era{}) },
		"accept":     func() error { return s.AcceptTime(ctx, lease.View{}, lease.AcceptedTime{}) },
		"group":      func() error { _, err := s.Group(); return err },
		"compacted":  func() error { _, err := s.Compacted(ctx, 1); return err },
		"role":       func() error { _, err := s.Role(ctx); return err },
	}
	fail := func(want error) {
		t.Helper()
		for name, call := range calls {
			if err := call(); !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
	}
	opened := make(chan struct{}, 100)
	go func() { _ = s.Watch(ctx, time.Minute, func(lease.Watched) { opened <- struct{}{} }) }()
	fail(ErrNotConnected)

	denied := errors.New("the password file is empty")
	if _, err := s.Connect(func() (Config, error) { return Config{}, denied }); !errors.Is(err, denied) {
		t.Errorf("connecting without a configuration: %v", err)
	}
	fail(denied)
	if _, err := s.Connect(func() (Config, error) { return Config{}, nil }); !errors.Is(err, ErrConfig) {
		t.Errorf("connecting with a bad configuration: %v", err)
	}
	fail(ErrConfig)
	select {
	case <-opened:
		t.Error("a watch was opened without a client")
	default:
	}

	disconnect, err := s.Connect(func() (Config, error) { return Config{Endpoints: []string{shared.Endpoint()}}, nil })
	fatal.If(t, err)
	t.Cleanup(disconnect)
	if _, err := s.Load(ctx); err != nil {
		t.Error(err)
	}
	await(t, opened)
	if err := context.Cause(ctx); err != nil {
		t.Error(err)
	}
}
