package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/status/feed"
)

// The latest lines are kept in order, at most 2,000 of them and a MiB.
func TestLatestLines(t *testing.T) {
	for _, tc := range []struct {
		written, bytes int // lines, and the length of each
		kept           int
	}{
		{3, 100, 3},
		{maxLines, 100, maxLines},
		{3*maxLines + 1, 100, maxLines},
		{maxLines, 10_000, maxLineBytes / 10_000},
		{2, maxLineBytes + 1, 0},
	} {
		var l lines
		var want []string
		for i := range tc.written {
			line := fmt.Sprintf("%8d", i) + strings.Repeat("x", tc.bytes-8)
			if n, err := l.Write([]byte(line)); n != len(line) || err != nil {
				t.Fatal(n, err)
			}
			want = append(want, line)
		}
		if want = want[len(want)-tc.kept:]; !slices.Equal(l.kept, want) || l.bytes != len(strings.Join(want, "")) {
			t.Errorf("%d lines of %d bytes: %d are kept, with %d bytes", tc.written, tc.bytes, len(l.kept), l.bytes)
		}
	}
}

// Who restored the data of the member inside is a line of the log and an event, without etcd.
func TestRestoredIsTold(t *testing.T) {
	var log output.Text
	c := config.Default()
	c.Node.Name, c.Etcd.Endpoints = "n1", []string{"127.0.0.1:1"}
	d, err := New(Config{Settings: c, Version: "test", Logger: slog.New(slog.NewTextHandler(&log, nil))})
	fatal.If(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- d.runActs(ctx) }()
	d.restored <- lease.Act{Action: "restore member a from b.db", By: "ann@db-1", Reason: "data lost", At: 1, Nonce: "n"}
	const line = `msg="action of an operator" action="restore member a from b.db" caller=ann@db-1 by=os-user from=etcd reason="data lost"`
	wait.Until(t, "the log says it", func() bool { return strings.Contains(log.String(), line) })
	stop()
	fatal.If(t, <-ended)
	events, _ := d.feed.Latest(9)
	if len(events) != 1 || events[0].Kind != feed.OperatorActed || events[0].Message != "ann@db-1: restore member a from b.db: data lost" {
		t.Errorf("%+v", events)
	}
}
