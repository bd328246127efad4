package server

import (
	"strings"
	"time"

	"github.com/flakelease/allocator/internal/node"
)

const (
	maxName = 128 // bytes of X-Request-Id, of traceparent and of a path
	// Callers that are refused must not fill the log: lines at once, and how long one more takes.
	refusedLines = 30
	refusedEvery = 5 * time.Second
)

// Named returns attributes for a line of the log about a request: "request" is its X-Request-Id, "trace" and "span" are
// in its traceparent. header returns the values of a header. A malformed value, or two, are left out.
//
// Source: W3C Trace Context, section 3.2.
func Named(header func(name string) []string) (attrs []any) {
	if v := header("x-request-id"); len(v) == 1 && v[0] != "" && len(v[0]) <= maxName && visible(v[0]) {
		attrs = append(attrs, "request", v[0])
	}
	v := header("traceparent")
	if len(v) != 1 || len(v[0]) > maxName {
		return attrs
	}
	f := strings.Split(v[0], "-")
	if len(f) < 4 || len(f) > 4 && f[0] == "00" || !hex(f[0], 2) || f[0] == "ff" || !hex(f[3], 2) {
		return attrs
	}
	if hex(f[1], 32) && hex(f[2], 16) && strings.Trim(f[1], "0") != "" && strings.Trim(f[2], "0") != "" {
		attrs = append(attrs, "trace", f[1], "span", f[2])
	}
	return attrs
}

func visible(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

func hex(s string, n int) bool { return len(s) == n && strings.Trim(s, "0123456789abcdef") == "" }

// LogRefused logs that a request was refused, if it has a name. Call is a method or a path, source an address.
func (s *Service) LogRefused(reason node.Reason, message, call, source string, header func(name string) []string) {
	if named := Named(header); s.cfg.Logger != nil && len(named) > 0 && s.refused.Allow() {
		call = call[:min(len(call), maxName)]
		s.cfg.Logger.With(named...).Info("request refused", "call", call, "source", source, "reason", reason,
			"message", message)
	}
}
