package main

import (
	"bytes"
	"encoding/base64"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/certs/reload"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// A node whose stderr is a full pipe that nobody reads issues IDs, and SIGTERM ends it in
// order.
func TestStderrThatNobodyReads(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	r, w, err := os.Pipe()
	fatal.If(t, err)
	defer r.Close()
	defer w.Close()
	fill(t, w)
	addr := loopback.Address()
	node := exec.Command("allocator", "serve", "--etcd.endpoints", d.etcd.Endpoint(), "--listen.grpc", addr, "--listen.http", "", "--listen.admin", "",
		"--log.level", "debug")
	node.Stderr = w
	p := proc.Run(t, node)
	d.eventually(cli.ExitOK, []string{"get", "--addr", addr}, `^[0-9A-Z]{13}$`)
	if err := p.Stop(wait.Most); err != nil {
		t.Error(err)
	}
	d.eventually(cli.ExitOK, []string{"doctor"}, `^ok +unreleased `)
}

// SIGHUP does not end a node: it reads its files at once, not at the next interval.
func TestHangup(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	tokens, keys := filepath.Join(t.TempDir(), "tokens"), filepath.Join(t.TempDir(), "keys")
	write := func(round int) {
		t.Helper()
		_, line, err := access.NewToken("ops", "admin")
		if err == nil {
			err = os.WriteFile(tokens, []byte(line+"\n"), 0o600)
		}
		key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(round)}, 32))
		fatal.If(t, errors.Join(err, os.WriteFile(keys, []byte(key+"\n"), 0o600)))
	}
	write(0)
	node := d.serve("one", "--auth.token-file", tokens, "--gossip.key-file", keys)
	last := time.Now().Add(-time.Hour)
	for round := 1; ; round++ {
		write(round)
		fatal.If(t, node.Signal(syscall.SIGHUP))
		wait.Until(t, "the files are read again", func() bool {
			return strings.Count(node.Log(), `"msg":"files reloaded"`) >= 2*round
		})
		now := time.Now()
		if now.Sub(last) < reload.Every/2 {
			return
		}
		if last = now; round > 20 { // No machine is busy in every round.
			t.Fatal("the files were read at their interval")
		}
	}
}

// fill writes to a pipe until it is full.
func fill(t *testing.T, w *os.File) {
	t.Helper()
	fd := int(w.Fd())
	fatal.If(t, syscall.SetNonblock(fd, true))
	for {
		_, err := syscall.Write(fd, make([]byte, 4096))
		if err == syscall.EAGAIN {
			break
		}
		fatal.If(t, err)
	}
	fatal.If(t, syscall.SetNonblock(fd, false))
}
