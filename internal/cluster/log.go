package cluster

import (
	"bytes"
	"context"
	"log"
	"log/slog"
	"sync"
	"sync/atomic"
)

const (
	// linesBurst and lineEvery bound what the library may log above debug: it
	// writes one line for each bad packet, and anybody may send those.
	linesBurst = 10
	lineEvery  = int64(1e9) // ns

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

// lineLog passes the library's log lines on to slog, at their level and no more
// than one a second. It is safe for concurrent use.
type lineLog struct {
	to      *slog.Logger
	now     func() int64 // ns, monotonic
	dropped atomic.Uint64

	mu         sync.Mutex // guards the rest
	tokens     int64
	last       int64
	suppressed int // since the last line that was written
}

func newLineLog(to *slog.Logger, now func() int64) *lineLog {
	return &lineLog{to: to, now: now, tokens: linesBurst, last: now()}
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
	ctx := context.Background()
	if !l.to.Enabled(ctx, level) {
		return n, nil
	}
	ok, suppressed := l.allow()
	if !ok {
		l.dropped.Add(1)
		return n, nil
	}
	line = bytes.TrimPrefix(bytes.TrimSpace(line), []byte("memberlist: "))
	line = line[:min(len(line), maxLine)]
	attrs := []slog.Attr{slog.String("line", string(line))}
	if suppressed > 0 {
		attrs = append(attrs, slog.Int("suppressed", suppressed))
	}
	l.to.LogAttrs(ctx, level, "gossip library", attrs...)
	return n, nil
}

// allow takes a token and returns how many lines went unwritten before.
func (l *lineLog) allow() (ok bool, suppressed int) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if grown := (now - l.last) / lineEvery; grown > 0 {
		l.tokens = min(l.tokens+grown, linesBurst)
		l.last += grown * lineEvery
	}
	if l.tokens == 0 {
		l.suppressed++
		return false, 0
	}
	l.tokens--
	suppressed, l.suppressed = l.suppressed, 0
	return true, suppressed
}
