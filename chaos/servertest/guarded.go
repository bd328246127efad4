package servertest

import (
	"strings"
	"testing"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
)

// NewGuarded returns an Env that requires tokens, and a token of each scope.
func NewGuarded(t testing.TB, cfg access.Config,
	change ...func(*Config)) (e *Env, tokens map[string]string, guard *access.Guard) {
	t.Helper()
	tokens = map[string]string{}
	var file strings.Builder
	for _, scope := range []string{"issue", "read", "worker", "admin"} {
		token, line, err := access.NewToken("the-"+scope, scope)
		if err != nil {
			t.Fatal(err)
		}
		tokens[scope] = token
		file.WriteString(line + "\n")
	}
	var err error
	if cfg.Tokens, err = access.ParseTokens([]byte(file.String())); err != nil {
		t.Fatal(err)
	}
	if cfg.Now == nil {
		cfg.Now = func() clock.Mono { return 0 }
	}
	guard = access.New(cfg)
	return New(t, append(change, func(c *Config) { c.Guard = guard })...), tokens, guard
}
