package daemon

import (
	"log/slog"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/config"
)

// TestInstances: two processes of one node's name have nothing in common that one
// could take the other's writes for its own by. They must not even when nothing
// else differs, as with a pod that is deleted by force and started again.
func TestInstances(t *testing.T) {
	c := config.Default()
	c.Node.Name, c.Etcd.Endpoints = "pod-0", []string{"127.0.0.1:1"} // nobody is asked
	seen := map[string]bool{}
	for range 10 {
		d, err := New(Config{Settings: c, Version: "test", Logger: slog.New(slog.DiscardHandler)})
		fatal.If(t, err)
		if seen[string(d.instance)] || d.instance == "" {
			t.Errorf("instance %q twice", d.instance)
		}
		seen[string(d.instance)] = true
	}
}
