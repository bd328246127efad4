package main

import (
	"context"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/certs/reload"
)

// TestCommandFollowsItsFiles: the client of a command reads its TLS files again while the command runs, and
// its log says what is wrong with them.
func TestCommandFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	ca := certstest.File(t, dir, "ca.pem", certstest.NewAuthority(t, "ca").PEM)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cmd, out := &cobra.Command{}, &output.Text{}
		cmd.SetContext(ctx)
		a := &cli.App{Out: io.Discard, Err: io.Discard}
		options := remote.ClientFlags(a, cmd)
		fatal.If(t, cmd.ParseFlags([]string{"--ca", ca}))
		if _, err := options(slog.New(slog.NewTextHandler(out, nil))); err != nil {
			t.Fatal(err)
		}
		for _, tc := range []struct {
			pem  []byte
			says string
		}{
			{[]byte("nonsense"), "ca"},
			{certstest.NewAuthority(t, "another").PEM, "files reloaded"},
		} {
			certstest.File(t, dir, "ca.pem", tc.pem)
			before := len(out.String())
			time.Sleep(reload.Every + time.Second)
			if said := out.String()[before:]; !strings.Contains(said, tc.says) {
				t.Errorf("the log says %q, and not %q", said, tc.says)
			}
		}
	})
}
