package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// SpaceError says that a space exists with another layout or epoch than configured.
type SpaceError struct {
	Name        string
	Have, Asked flake.Format
}

// Error prints both.
func (e *SpaceError) Error() string {
	show := func(f flake.Format) string {
		return fmt.Sprintf("layout %s and epoch %s", f.Layout, clock.Millis(f.Epoch).Time().Format(time.RFC3339Nano))
	}
	return fmt.Sprintf("space %q has %s, but the configuration has %s: configure the layout and epoch of the space, or another space", e.Name, show(e.Have), show(e.Asked))
}

// Init creates the space of cfg, or finds it with the same layout and epoch. It reports
// which, and returns the records of the space.
//
// fresh says that no allocator ever issued IDs for this space: then IDs may begin at once.
// Otherwise they begin after all IDs that nodes may still issue whose etcd was lost, which
// is about 31 s with the defaults.
//
// It returns ErrClock before it connects, a *SpaceError for a space that differs, and the store's errors.
func Init(ctx context.Context, cfg config.Config, fresh bool, log *slog.Logger) (created bool, now lease.View, err error) {
	src := clock.NewSystem(clock.SystemConfig{})
	if err := checkClock(src.Read().WallMillis(), cfg.Epoch, cfg.Layout, buildTime()); err != nil {
		return false, lease.View{}, err
	}
	floor := src.Now().Wall
	if !fresh {
		floor += clock.MillisOf(cfg.Lease.Window + 2*cfg.Issue.MaxSkew + cfg.Issue.MaxLead)
	}
	space := lease.Space{Layout: cfg.Layout, Epoch: cfg.Epoch, Pool: uuid.NewString()}
	err = onSpace(cfg, log, func(store *etcdstore.Store) error {
		created, now, err = store.Init(ctx, space, floor)
		return err
	})
	if err == nil {
		err = sameSpace(cfg, now)
	}
	return created && err == nil, now, err
}

// ErrNoSpace says that a space is not initialized.
var ErrNoSpace = errors.New("daemon: the space is not initialized: run \"allocator init\"")

// FindSpace returns the records of the space of cfg.
//
// It returns ErrNoSpace if there is none, a *SpaceError if it differs from cfg, and the
// store's errors.
func FindSpace(ctx context.Context, cfg config.Config, log *slog.Logger) (now lease.View, err error) {
	err = onSpace(cfg, log, func(store *etcdstore.Store) error {
		now, err = store.Load(ctx)
		return err
	})
	switch {
	case err != nil:
		return now, err
	case !now.Config.Exists():
		return now, ErrNoSpace
	}
	return now, sameSpace(cfg, now)
}

// onSpace calls f with the store of cfg's space.
func onSpace(cfg config.Config, log *slog.Logger, f func(*etcdstore.Store) error) error {
	dial, _, err := DialConfig(cfg.Etcd, log)
	if err != nil {
		return err
	}
	client, err := etcdstore.Dial(dial)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	store, err := etcdstore.New(client, cfg.Root, cfg.Space)
	if err != nil {
		return err
	}
	return f(store)
}

// sameSpace compares the space with cfg.
func sameSpace(cfg config.Config, now lease.View) error {
	if now.Config.Err != nil {
		return fmt.Errorf("config of space %q: %w", cfg.Space, now.Config.Err)
	}
	asked := flake.Format{Layout: cfg.Layout, Epoch: int64(cfg.Epoch)}
	if have := now.Config.Value.Format(); have != asked {
		return &SpaceError{Name: cfg.Space, Have: have, Asked: asked}
	}
	return nil
}
