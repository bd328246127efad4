package httpserver_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/servertest"
)

// TestPanicEndsTheProcess: package net/http would go on behind one.
func TestPanicEndsTheProcess(t *testing.T) {
	const here = "ALLOCATOR_TEST_PANIC"
	if os.Getenv(here) != "" {
		env := servertest.New(t, func(c *servertest.Config) {
			c.Observe = func(string, time.Duration) { panic("a claim that does not hold") }
		})
		s := httptest.NewServer(env.HTTP)
		_, _ = http.Post(s.URL+"/v1/ids", "", nil)
		return // and so with success
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=60s")
	cmd.Env = append(os.Environ(), here+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "panic: httpserver: a claim that does not hold") || !strings.Contains(string(out), "serveIDs") {
		t.Errorf("%v: %s", err, out)
	}
}
