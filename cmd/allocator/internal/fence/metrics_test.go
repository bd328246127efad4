package fence

import (
	"log/slog"
	"net/http"
	"regexp"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/internal/fence"
)

// TestBrowsersDoNotGuess: what is served is what its Content-Type says.
func TestBrowsersDoNotGuess(t *testing.T) {
	var log output.Text
	stop, err := collector(new(fence.Movers)).Serve(t.Context(), "127.0.0.1:0",
		slog.New(slog.NewTextHandler(&log, nil)))
	fatal.If(t, err)
	defer stop()
	address := regexp.MustCompile(`address=(\S+)`).FindStringSubmatch(log.String())
	if address == nil {
		t.Fatalf("no address in %s", log.String())
	}
	for path, code := range map[string]int{"/metrics": http.StatusOK, "/healthz": http.StatusOK, "/none": http.StatusNotFound} {
		res, err := http.Get("http://" + address[1] + path)
		fatal.If(t, err)
		_ = res.Body.Close()
		if res.StatusCode != code || res.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %s, %v", path, res.Status, res.Header)
		}
	}
}
