package status

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

// Any number of requests fail during an outage of etcd, or of one damaged record
// between others, and the log has one line of it a minute.
func TestReadsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		r := &Reader{log: slog.New(slog.NewTextHandler(&log, nil)), failures: rate.Sometimes{Interval: time.Minute}}
		away := errors.New("away")
		for range 2 {
			for _, err := range []error{nil, away, away, away, nil, nil, away, away} {
				r.logRead("ledger", err)
			}
			time.Sleep(time.Minute)
			r.logRead("ledger", nil)
		}
		if n := strings.Count(log.String(), "read of etcd for a request failed"); n != 2 {
			t.Errorf("%d lines of two minutes:\n%s", n, &log)
		}
	})
}
