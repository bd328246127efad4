//go:build linux

package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/unixsocket"
	"github.com/flakelease/allocator/worker"
)

// requestTimeout bounds a request to the sidecar.
const requestTimeout = 5 * time.Second

// serveCommand returns "allocator worker serve".
func serveCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Hold a worker number for a program in another container",
		Long: `Serve keeps a worker number extended until it is interrupted. It answers GET /v1/worker on a
Unix socket, in JSON: the number, and the interval in which it may be used. With --file a
program can map the interval into its memory and compare each ID with it.

The number is for one generator. Serve cannot stop a program: one that does not compare its
IDs with the interval may make duplicates when the number cannot be extended. If the number
is lost serve exits with 3, and the program has to start again as well.`,
		Example: "  allocator worker serve --listen unix:/run/worker/socket --file /run/worker/worker",
		Args:    cobra.NoArgs,
	}
	config := workerFlags(a, cmd)
	listen := cmd.Flags().String("listen", "unix:/run/worker.sock", "unix:PATH of the socket to listen on")
	path := cmd.Flags().String("file", "", "path of the file with the interval; unless given, there is none")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !unixsocket.Is(*listen) {
			return cli.UsageError("--listen: %s is not unix:PATH", cli.Show(*listen))
		}
		host, _ := os.Hostname()
		a.DetachErr()
		cfg, err := config(host)
		if err != nil {
			return err
		}
		return serve(cmd.Context(), logger(a), cfg, *listen, *path)
	}
	return cmd
}

func serve(ctx context.Context, log *slog.Logger, cfg worker.Config, listen, path string) (err error) {
	// First, so that nothing is acquired where another one listens. Programs of other users may read the interval,
	// which is no secret.
	l, err := unixsocket.Listen(ctx, unixsocket.Config{Addr: listen, Mode: 0o666})
	if err != nil {
		return cli.Exit(cli.ExitUsage, fmt.Errorf("--listen: %w", err))
	}
	defer func() { _ = l.Close() }() // removes the socket
	w, err := openWorker(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		// What the program has made is not known here, so the interval stays reserved.
		if released := w.Release(0); released != nil {
			log.Warn("the worker number could not be given back: it is free when its interval has passed",
				"worker", w.ID(), "err", released)
		}
	}()
	from, to := w.Interval()
	now := held{Worker: w.Number(), Term: w.Term(), NotBefore: from, NotAfter: to}.split()
	var f *file
	if path != "" {
		if f, err = createFile(path, now); err != nil {
			return cli.Exit(cli.ExitUsage, err)
		}
		defer f.remove()
	}
	server := &http.Server{
		Handler:        handler(w, now),
		ReadTimeout:    requestTimeout,
		WriteTimeout:   requestTimeout,
		MaxHeaderBytes: 8 << 10,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	defer func() { _ = server.Close() }()
	log.Info("worker acquired", "worker", now.Worker, "term",
		now.Term, "name", w.Name(), "listen", listen, "file", path)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return fmt.Errorf("listen: %w", err)
		case <-w.Lost():
			return cli.Exit(cli.ExitUnavailable, fmt.Errorf("worker %s: %w", w.ID(), w.Err()))
		case <-ticker.C:
			if _, notAfter := w.Interval(); f != nil && notAfter > to {
				to = notAfter
				f.set(to)
			}
		}
	}
}

// handler answers GET /v1/worker.
func handler(w *worker.Worker, h held) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/worker", func(out http.ResponseWriter, _ *http.Request) {
		now := h
		_, now.NotAfter = w.Interval()
		code := http.StatusOK
		if err := w.Err(); now.NotAfter == 0 || errors.Is(err, worker.ErrLost) {
			code = http.StatusServiceUnavailable
		}
		out.Header().Set("Content-Type", "application/json")
		out.WriteHeader(code)
		_ = json.NewEncoder(out).Encode(now) // the client has left
	})
	return cli.NoSniff(mux)
}

// showCommand returns "allocator worker show".
func showCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the file of a worker",
		Long: `Show prints what the file of a worker says, and exits with 1 if this machine's clock is
not in the interval now.`,
		Example: "  allocator worker show --file /run/worker/worker",
		Args:    cobra.NoArgs,
	}
	path := cmd.Flags().String("file", "", "path of the file (or $"+envFile+")")
	_ = cmd.MarkFlagFilename("file")
	cmd.RunE = func(*cobra.Command, []string) error {
		name := cmp.Or(*path, a.Getenv(envFile))
		if name == "" {
			return cli.UsageError("--file: is not given, and $%s is empty", envFile)
		}
		b, err := readFile(name)
		if err != nil {
			return err
		}
		h, err := decode(b)
		if err != nil {
			return fmt.Errorf("%s: %w", cli.Show(name), err)
		}
		if err := cli.PrintLine(a.Out, h); err != nil {
			return err
		}
		if now := time.Now().UnixMilli(); now < h.NotBefore || now >= h.NotAfter {
			return cli.ErrInvalid
		}
		return nil
	}
	return cmd
}
