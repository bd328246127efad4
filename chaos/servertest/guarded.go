package servertest

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// NewGuarded returns an Env that requires tokens, and a token of each scope.
func NewGuarded(t testing.TB, cfg access.Config,
	change ...func(*Config)) (e *Env, tokens map[string]string, guard *access.Guard) {
	t.Helper()
	cfg.Tokens, tokens = Tokens(t, "issue", "read", "worker", "admin")
	if cfg.Now == nil {
		cfg.Now = func() clock.Mono { return 0 }
	}
	guard = access.New(cfg)
	return New(t, append(change, func(c *Config) { c.Guard = guard })...), tokens, guard
}

// Tokens returns new tokens of scopes, as a guard takes them and by scope. Each is named after its scope, as
// "the-read".
func Tokens(t testing.TB, scopes ...string) (list *access.Tokens, tokens map[string]string) {
	t.Helper()
	tokens = map[string]string{}
	var file strings.Builder
	for _, scope := range scopes {
		token, line, err := access.NewToken("the-"+scope, scope)
		fatal.If(t, err)
		tokens[scope] = token
		file.WriteString(line + "\n")
	}
	list, err := access.ParseTokens([]byte(file.String()))
	fatal.If(t, err)
	return list, tokens
}

// Shown are what callers of a guarded Env may show: no token, one that nobody has, and one of
// each scope.
var Shown = []string{"", "unknown", "read", "issue", "worker", "admin"}

// Verdict is what must become of a call that needs a scope, with one of Shown.
func Verdict(needs, shown string) node.Reason {
	switch {
	case needs == "", shown == needs, shown == "admin":
		return 0
	case shown == "", shown == "unknown":
		return node.Unauthenticated
	}
	return node.PermissionDenied
}

// ProblemIn returns the HTTP error in an answer, or none.
func ProblemIn(res *http.Response) (p Problem) {
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json") {
		return p
	}
	body, _ := io.ReadAll(res.Body)
	_ = json.Unmarshal(body, &p)
	return p
}
