package status

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/clocktest"
)

// Any number of requests fail during an outage of etcd, or of one damaged record
// between others, and the log has one line of it a minute.
func TestReadsAreLoggedOnce(t *testing.T) {
	var log strings.Builder
	now := clocktest.NewManual(0)
	r := &Reader{log: slog.New(slog.NewTextHandler(&log, nil)), clock: now}
	away := errors.New("away")
	for range 2 {
		for _, err := range []error{nil, away, away, away, nil, nil, away, away} {
			r.logRead("ledger", err)
		}
		now.Advance(time.Minute)
		r.logRead("ledger", nil)
	}
	if n := strings.Count(log.String(), "read of etcd for a request failed"); n != 2 {
		t.Errorf("%d lines of two minutes:\n%s", n, &log)
	}
}
