package cluster

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/text"
)

const (
	// watchEvery is the time between two views.
	watchEvery = time.Second
	// eventsShown is how many events stand below a view, the latest.
	eventsShown = 8
)

// watcher shows the cluster on a terminal, again each second.
type watcher struct {
	nodes   *remote.Nodes
	body    []string // lines of the last view
	events  []string // lines
	after   string   // ID of the last event
	failing time.Time
}

// run shows the cluster until ctx ends. A node that does not answer at first is an error for the shell.
func (w *watcher) run(ctx context.Context, terminal *os.File) error {
	if err := w.look(ctx); err != nil {
		return err
	}
	fmt.Fprint(terminal, "\x1b[?1049h\x1b[?25l") // the other screen, without a cursor
	defer fmt.Fprint(terminal, "\x1b[?25h\x1b[?1049l")
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for err := error(nil); ; err = w.look(ctx) {
		width, height := 0, 0
		if size, err := unix.IoctlGetWinsize(int(terminal.Fd()), unix.TIOCGWINSZ); err == nil {
			width, height = int(size.Col), int(size.Row)
		}
		lines := w.screen(err, time.Now(), width, height)
		if _, err := fmt.Fprint(terminal, "\x1b[H", strings.Join(lines, "\x1b[K\r\n"), "\x1b[K\x1b[J"); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return cli.ErrInterrupted
		}
	}
}

// look reads the cluster and what happened since the last look.
func (w *watcher) look(ctx context.Context) error {
	var c status.Cluster
	err := w.nodes.Ask(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		if c, err = status.Ask(ctx, conn); err == nil {
			w.follow(ctx, pb.NewAdminServiceClient(conn))
		}
		return err
	})
	if err != nil {
		return err
	}
	var out strings.Builder
	if err := (view{c, true}).print(&out); err != nil {
		return err
	}
	w.body = strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	return nil
}

// follow reads what happened since it was last called. A node without events has none.
func (w *watcher) follow(ctx context.Context, admin pb.AdminServiceClient) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := admin.WatchEvents(ctx, &pb.WatchEventsRequest{After: w.after})
	for err == nil {
		var m *pb.WatchEventsResponse
		m, err = stream.Recv()
		switch {
		case err != nil:
		case m.GetMissed() != nil:
			w.events = nil // those before are of another node
		case m.GetEvent() == nil:
			return
		default:
			w.events = append(w.events, eventText(m.GetEvent()))
			w.events = w.events[max(len(w.events)-eventsShown, 0):]
			w.after = m.GetEvent().GetId()
		}
	}
}

// screen returns the lines of a screen, cut to its size; 0: of any size. Err is the answer of the last look.
func (w *watcher) screen(err error, now time.Time, width, height int) []string {
	var lines []string
	if err == nil {
		w.failing = time.Time{}
	} else {
		if w.failing.IsZero() {
			w.failing = now
		}
		first, _, _ := strings.Cut(err.Error(), "\n")
		lines = append(lines, fmt.Sprintf("NO ANSWER for %v, below is what was before: %s",
			now.Sub(w.failing).Round(time.Second), text.Printable(first)), "")
	}
	lines = append(lines, w.body...)
	below := append([]string{""}, w.events...)
	if room := height - len(below); height > 0 && len(lines) > room {
		lines = append(lines[:max(room-1, 0)], "… more: allocator status")
	}
	lines = append(lines, below...)
	if height > 0 {
		lines = lines[:min(len(lines), height)]
	}
	if width > 0 {
		for i, l := range lines {
			if runes := []rune(l); len(runes) > width {
				lines[i] = string(runes[:width-1]) + "…"
			}
		}
	}
	return lines
}
