package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/flakelease/allocator/internal/status/feed"
)

const (
	maxLines     = 2000
	maxLineBytes = 1 << 20
)

// lines is the writer of a log that keeps the latest lines. It is safe for concurrent use.
type lines struct {
	mu    sync.Mutex // guards the rest
	kept  []string   // the oldest first
	bytes int
}

// Write keeps p, which is a line.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kept, l.bytes = append(l.kept, string(p)), l.bytes+len(p)
	for len(l.kept) > maxLines || l.bytes > maxLineBytes {
		l.bytes -= len(l.kept[0])
		l.kept[0] = "" // The array stays for a while.
		l.kept = l.kept[1:]
	}
	return len(p), nil
}

// debug is a grpcserver.Debug.
func (d *Daemon) debug(ctx context.Context, profile time.Duration, send func(string, []byte) error) error {
	var b bytes.Buffer
	files := []struct {
		name string
		fill func() error
	}{
		{"status.json", func() error {
			c, err := d.reader.Cluster(ctx)
			if err == nil {
				err = json.NewEncoder(&b).Encode(c)
			}
			return err
		}},
		{"readyz.txt", func() error {
			refusal := d.node.Ready()
			fmt.Fprintf(&b, "alive: %v\nready: %v\n", d.alive() == nil, refusal == nil)
			if refusal != nil {
				fmt.Fprintln(&b, "refuses:", refusal.Reason, refusal.Message)
			}
			for _, c := range d.adminConfig().Conditions() {
				fmt.Fprintln(&b, c.OK, c.Text)
			}
			return nil
		}},
		{"callers.txt", func() error {
			fmt.Fprintln(&b, "source\tconnections\tstreams\twaiting calls\tbytes")
			for _, c := range d.callers() {
				fmt.Fprintf(&b, "%s\t%d\t%d\t%d\t%d\n", c.Source, c.Connections, c.Streams, c.Waiting, c.Bytes)
			}
			return nil
		}},
		{"settings.txt", func() error {
			for _, s := range d.sources {
				fmt.Fprintf(&b, "%s\t%s\t%s\n", s.Key, s.Value, s.Source)
			}
			return nil
		}},
		{"log.txt", func() error {
			d.lines.mu.Lock()
			defer d.lines.mu.Unlock()
			for _, line := range d.lines.kept {
				b.WriteString(line)
			}
			return nil
		}},
		{"events.jsonl", func() error {
			events, _ := d.feed.Latest(math.MaxInt32)
			for _, e := range events {
				b.Write(append(feed.JSON(e), '\n'))
			}
			return nil
		}},
		{"history.json", func() error { return json.NewEncoder(&b).Encode(d.console.History()) }},
		{"metrics.txt", func() error {
			families, err := d.metrics.Gather()
			for _, f := range families {
				_, _ = expfmt.MetricFamilyToText(&b, f) // A buffer takes all.
			}
			return err
		}},
		{"goroutines.txt", func() error { return pprof.Lookup("goroutine").WriteTo(&b, 1) }},
		{"cpu.pprof", func() error {
			if err := pprof.StartCPUProfile(&b); err != nil {
				return err
			}
			defer pprof.StopCPUProfile()
			select {
			case <-ctx.Done():
			case <-time.After(profile):
			}
			return ctx.Err()
		}},
	}
	if profile == 0 {
		files = files[:len(files)-2]
	}
	for _, f := range files {
		b.Reset()
		if err := f.fill(); err != nil {
			f.name += ".error.txt"
			b.Reset()
			fmt.Fprintln(&b, err)
		}
		if err := send(f.name, b.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
