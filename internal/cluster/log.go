package cluster

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/flakelease/allocator/internal/text"
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

// otherNode begins the library's line about a ping for a node that had this address before, as after each restart.
var otherNode = []byte("memberlist: Got ping for unexpected node")

// lineLog passes the library's log lines on to slog, at their level, no more than one a second, and each kind
// of warning once a minute. It is safe for concurrent use by one logger.
type lineLog struct {
	to            *slog.Logger
	now           func() int64 // ns, monotonic
	limit         *rate.Limiter
	said          text.Said    // warnings; the library's logger guards it
	suppressed    atomic.Int64 // since the last line that was written
	refusedLimit  *rate.Limiter
	refusedCount  atomic.Int64 // since the last line about connections
	impostorLimit *rate.Limiter
	impostors     atomic.Int64 // since the last line about them
}

func newLineLog(to *slog.Logger, now func() int64) *lineLog {
	return &lineLog{
		to:            to,
		now:           now,
		limit:         rate.NewLimiter(linesPerSecond, linesBurst),
		refusedLimit:  rate.NewLimiter(rate.Every(time.Minute), 1),
		impostorLimit: rate.NewLimiter(rate.Every(time.Minute), 1),
	}
}

// refused logs a connection that was refused, at most one a minute.
func (l *lineLog) refused(reason, from string, why error) {
	l.refusedCount.Add(1)
	if l.refusedLimit.AllowN(time.Unix(0, l.now()), 1) {
		l.to.Warn("gossip connection closed: it is not of a node with the same root, space and key; check who can "+
			"reach the port",
			"reason", reason, "from", from, "count", l.refusedCount.Swap(0), "error", why)
	}
}

// impostor logs that somebody announced another node's instance, at most once a minute.
func (l *lineLog) impostor(name, addr, instance string) {
	l.impostors.Add(1)
	if l.impostorLimit.AllowN(time.Unix(0, l.now()), 1) {
		l.to.Error("gossip member refused: it claims to be another node; whoever sent this has the gossip key: "+
			"change the key",
			"name", name, "addr", addr, "instance", instance, "count", l.impostors.Swap(0))
	}
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
	if bytes.HasPrefix(line, otherNode) {
		level = slog.LevelDebug
	}
	if !l.to.Enabled(context.Background(), level) {
		return n, nil
	}
	now := time.Unix(0, l.now())
	if !l.limit.AllowN(now, 1) || level >= slog.LevelWarn && !l.said.New(string(line), now) {
		l.suppressed.Add(1)
		return n, nil
	}
	line = bytes.TrimPrefix(bytes.TrimSpace(line), []byte("memberlist: "))
	line = line[:min(len(line), maxLine)]
	attrs := []slog.Attr{slog.String("line", string(line))}
	if suppressed := l.suppressed.Swap(0); suppressed > 0 {
		attrs = append(attrs, slog.Int64("suppressed", suppressed))
	}
	l.to.LogAttrs(context.Background(), level, "gossip library", attrs...)
	return n, nil
}
