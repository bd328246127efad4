package dev

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
)

// etcd itself waits without a limit for data that another process has open.
func TestDataDirInUse(t *testing.T) {
	dir := t.TempDir()
	other, err := etcdserver.Start(t.Context(), etcdserver.Alone{Dir: dir, NoSync: true})
	fatal.If(t, err)
	var stderr strings.Builder
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Run(context.WithoutCancel(t.Context()), []string{"dev", "--data-dir", dir}, strings.NewReader(""), io.Discard, &stderr, nil, "", root)
	}()
	select {
	case code := <-ended:
		if code != cli.ExitInvalid || !strings.Contains(stderr.String(), "--data-dir "+dir+" is in use") {
			t.Errorf("exit code %d: %s", code, stderr.String())
		}
	case <-time.After(wait.Most):
		t.Error("still waiting")
	}
	_ = other.Close()
}
