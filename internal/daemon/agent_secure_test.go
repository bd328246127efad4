package daemon_test

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
)

// TestAgentSecure: an agent keeps TLS and tokens out of programs. Its token may be rotated, and its file
// be gone for a while; if nodes accept the token no more, programs read why until they do again.
func TestAgentSecure(t *testing.T) {
	t.Parallel()
	f := newFortress(t, func(*config.Config) {})
	files := certs.ClientFiles{CA: certstest.File(t, f.dir, "ca.pem", f.ca.PEM)}
	files.Cert, files.Key = f.good.Write(t, f.dir, "agent")
	c, err := certs.NewClient("tls", files, tls.VersionTLS13, slog.New(slog.DiscardHandler))
	fatal.If(t, err)
	its := t.TempDir()
	token := func(name string) string {
		return certstest.File(t, its, "token", []byte(f.tokens[name]+"\n"))
	}
	const maxAge = 100 * time.Millisecond
	a, out, _ := runAgent(t, its, func(cfg *daemon.AgentConfig) {
		cfg.MaxAge, cfg.Client.TokenFile, cfg.Client.PlaintextToken = maxAge, token("issue"), true // The TLS is below.
		cfg.Client.DialOptions = []grpc.DialOption{grpc.WithTransportCredentials(c.Credentials())}
	}, f.Addresses().GRPC)
	<-a.Listening()
	if line := overHTTP(t, its, http.MethodPost, "/v1/ids"); !strings.HasPrefix(line, "200") {
		t.Errorf("HTTP: %s", line)
	}
	if line := draws["gRPC"](t, its, 0); !strings.HasPrefix(line, "OK") {
		t.Errorf("gRPC: %s", line)
	}
	until := func(what, says string) {
		t.Helper()
		var line string
		defer func() {
			if t.Failed() {
				t.Logf("%s: the last answer is %q", what, line)
			}
		}()
		wait.Until(t, what, func() bool {
			line = overRESP(t, its, "ID.NEXT")
			return strings.Contains(line, says)
		})
	}
	const served = "$13\r\n"
	until("the first token is good", served)

	token("read")
	until("a token that may not issue is refused", "PERMISSION_DENIED")
	token("large")
	until("the next token is good", served)
	fatal.If(t, os.Remove(filepath.Join(its, "token")))
	// Each ID is older than the one of a block that the agent fetched before it.
	for began := time.Now(); time.Since(began) < 4*maxAge; {
		if line := overRESP(t, its, "ID.NEXT"); line != served {
			t.Errorf("while the file is gone: %q", line)
		}
	}

	path := f.cfg.Auth.TokenFile
	lines, err := os.ReadFile(path)
	fatal.If(t, err)
	var without strings.Builder
	for line := range strings.Lines(string(lines)) {
		if !strings.HasPrefix(line, "large ") {
			without.WriteString(line)
		}
	}
	certstest.File(t, f.dir, "tokens", []byte(without.String()))
	until("a token that was revoked is refused", "UNAUTHENTICATED")
	if line := overHTTP(t, its, http.MethodPost, "/v1/ids"); !strings.HasPrefix(line, "401") {
		t.Errorf("HTTP, after the token was revoked: %s", line)
	}
	token("issue")
	until("the file is there again", served)
	for name, secret := range f.tokens {
		if strings.Contains(out.String(), secret) {
			t.Errorf("the log has the token %s:\n%s", name, out)
		}
	}
}
