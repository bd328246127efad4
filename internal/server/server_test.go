package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/internal/server"
)

// TestObserve: each request is timed once, under its surface.
func TestObserve(t *testing.T) {
	var seen []string
	env := servertest.New(t, func(c *servertest.Config) {
		c.Observe = func(surface string, took time.Duration) { seen = append(seen, fmt.Sprint(surface, took)) }
	})
	env.Do("POST", "/v1/ids", "")
	env.Do("POST", "/v1/ids?count=0", "")
	env.Do("GET", "/v1/ids/1", "")
	if want := []string{"http_ids0s", "http_ids0s", "http_decode0s"}; !slices.Equal(seen, want) {
		t.Errorf("got %v", seen)
	}
}

func TestConfig(t *testing.T) {
	n := servertest.New(t).Node
	for field, cfg := range map[string]server.Config{
		"node": {}, "max text count": {Node: n, MaxTextCount: -1},
	} {
		if _, err := server.New(cfg); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
