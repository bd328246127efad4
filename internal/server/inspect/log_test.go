package inspect

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// Any number of requests fail during an outage of etcd, and the log has one line of it.
func TestReadsAreLoggedOnce(t *testing.T) {
	var log strings.Builder
	in := &Inspector{log: slog.New(slog.NewTextHandler(&log, nil))}
	away := errors.New("away")
	for _, err := range []error{nil, away, away, away, nil, nil, away, away} {
		in.logRead("ledger", err)
	}
	if n := strings.Count(log.String(), "read of etcd for a request failed"); n != 2 {
		t.Errorf("%d lines of two outages:\n%s", n, &log)
	}
}
