package daemon

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// ErrClock says that the clock of this machine, or the epoch, is certainly wrong.
var ErrClock = errors.New("daemon: the clock or the epoch is wrong")

// checkClock returns an ErrClock if a clock that reads now is certainly wrong. An ID or a
// ceiling with such a time could not be taken back.
func checkClock(now, epoch clock.Millis, layout flake.Layout, built time.Time) error {
	at := now.Time().Format(time.RFC3339)
	switch end := (lease.Space{Layout: layout, Epoch: epoch}).Last(); {
	case now <= epoch:
		return fmt.Errorf("%w: the epoch %s is in the future, the clock reads %s: correct the clock of this "+
			"machine, or set an epoch that has passed", ErrClock, epoch.Time().Format(time.RFC3339), at)
	case now.Time().Before(built):
		return fmt.Errorf("%w: the clock reads %s, before this program was built (%s): correct the clock of "+
			"this machine", ErrClock, at, built.Format(time.RFC3339))
	case now > end:
		return fmt.Errorf("%w: the clock reads %s, after %s, the last time that an ID of layout %v with epoch %s "+
			"can have: set a later epoch for a new space, or correct the clock of this machine",
			ErrClock, at, end.Time().Format(time.RFC3339), layout, epoch.Time().Format(time.RFC3339))
	}
	return nil
}

// buildTime returns the time of the commit of this program; zero if it is unknown.
func buildTime() time.Time {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.time" {
				t, _ := time.Parse(time.RFC3339, s.Value)
				return t
			}
		}
	}
	return time.Time{}
}
