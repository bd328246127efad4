package cluster

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// linesBurst and linesPerSecond bound what the library may log: it writes one
	// line for each bad packet, and anybody may send those.
	linesBurst     = 10
	linesPerSecond = 1

	// maxLine cuts a line, in bytes: names in it come from other machines.
	maxLine = 512
)

// levels are the marks that the library puts before its lines.
var levels = []struct {
	mark  string
	level slog.Level
}{
	{"[DEBUG] ", slog.LevelDebug}, {"[INFO] ", slog.LevelInfo}, {"[WARN] ", slog.LevelWarn},
	{"[ERR] ", slog.LevelError}, {"[ERROR] ", slog.LevelError}, {"Err: ", slog.LevelError},
}

// probes begin the lines about connections that sent nothing, as port checks such as
// doctor's make them. The library calls them errors.
var probes = [][]byte{
	[]byte(`memberlist: discarding stream with unacceptable label "": `),
	[]byte("memberlist: failed to receive and remove the stream label header: "),
}

// lineLog passes the library's log lines on to slog, at their level and no more
// than one a second. It is safe for concurrent use.
type lineLog struct {
	to         *slog.Logger
	now        func() int64 // ns, monotonic
	limit      *rate.Limiter
	dropped    atomic.Uint64
	suppressed atomic.Int64 // since the last line that was written
}

func newLineLog(to *slog.Logger, now func() int64) *lineLog {
	return &lineLog{to: to, now: now, limit: rate.NewLimiter(linesPerSecond, linesBurst)}
}

// logger returns what the library is given to write to.
func (l *lineLog) logger() *log.Logger { return log.New(l, "", 0) }

// Write takes one line.
func (l *lineLog) Write(line []byte) (int, error) {
	n, level := len(line), slog.LevelInfo
	for _, v := range levels {
		if rest, ok := bytes.CutPrefix(line, []byte(v.mark)); ok {
			line, level = rest, v.level
			break
		}
	}
	for _, probe := range probes {
		if bytes.HasPrefix(line, probe) {
			level = slog.LevelDebug
		}
	}
	ctx := context.Background()
	if !l.to.Enabled(ctx, level) {
		return n, nil
	}
	if !l.limit.AllowN(time.Unix(0, l.now()), 1) {
		l.dropped.Add(1)
		l.suppressed.Add(1)
		return n, nil
	}
	line = bytes.TrimPrefix(bytes.TrimSpace(line), []byte("memberlist: "))
	line = line[:min(len(line), maxLine)]
	attrs := []slog.Attr{slog.String("line", string(line))}
	if suppressed := l.suppressed.Swap(0); suppressed > 0 {
		attrs = append(attrs, slog.Int64("suppressed", suppressed))
	}
	l.to.LogAttrs(ctx, level, "gossip library", attrs...)
	return n, nil
}
