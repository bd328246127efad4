package server_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/server"
)

// TestPanicEndsTheProcess: package net/http would go on behind one.
func TestPanicEndsTheProcess(t *testing.T) {
	const here = "ALLOCATOR_TEST_PANIC"
	if os.Getenv(here) != "" {
		w := newWorld(t, func(c *server.Config) {
			c.Observe = func(string, time.Duration) { panic("a claim that does not hold") }
		})
		s := httptest.NewServer(w.server.HTTP())
		_, _ = http.Post(s.URL+"/v1/ids", "", nil)
		return // and so with success
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), here+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panic: server: a claim that does not hold") || !strings.Contains(string(out), "serveIDs") {
		t.Errorf("%v: %s", err, out)
	}
}
