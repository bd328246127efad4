// Package etcdlog hands what etcd's client and server log through zap to a slog handler.
package etcdlog

import (
	"cmp"
	"context"
	"log/slog"

	"go.uber.org/zap/zapcore"
)

// Log is a core for zap that hands entries to Handler.
type Log struct {
	Handler slog.Handler
	Level   func(zapcore.Level) slog.Level
	Message string // Each record has it, and etcd's own message as "line"; "": etcd's own alone.
}

// Enabled reports whether the handler takes a level.
func (l Log) Enabled(level zapcore.Level) bool {
	return l.Handler.Enabled(context.Background(), l.Level(level))
}

// With returns l with fields in each record.
func (l Log) With(fields []zapcore.Field) zapcore.Core {
	l.Handler = l.Handler.WithAttrs(attrs(fields))
	return l
}

// Check adds l to what logs an entry.
func (l Log) Check(e zapcore.Entry, to *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !l.Enabled(e.Level) {
		return to
	}
	return to.AddCore(e, l)
}

// Write logs an entry.
func (l Log) Write(e zapcore.Entry, fields []zapcore.Field) error {
	r := slog.NewRecord(e.Time, l.Level(e.Level), cmp.Or(l.Message, e.Message), 0)
	if l.Message != "" {
		r.AddAttrs(slog.String("line", e.Message))
	}
	if e.LoggerName != "" {
		r.AddAttrs(slog.String("logger", e.LoggerName))
	}
	r.AddAttrs(attrs(fields)...)
	return l.Handler.Handle(context.Background(), r)
}

// Sync does nothing: a record is written as a whole.
func (Log) Sync() error { return nil }

// attrs returns fields in their order.
func attrs(fields []zapcore.Field) []slog.Attr {
	out := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		enc := zapcore.NewMapObjectEncoder() // One for all fields would lose their order.
		f.AddTo(enc)
		for k, v := range enc.Fields {
			out = append(out, slog.Any(k, v))
		}
	}
	return out
}
