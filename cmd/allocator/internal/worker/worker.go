// Package worker holds the commands that hold worker numbers for programs that cannot do so
// themselves.
package worker

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/durable"
	"github.com/flakelease/allocator/worker"
)

// Command returns "allocator worker".
func Command(a *cli.App) *cobra.Command {
	cmd := cli.Parent("worker", "Hold a worker number for a program with a Snowflake library",
		runCommand(a), serveCommand(a), showCommand(a), installCommand())
	cmd.Long = `A worker number is a sid of the space that a node grants to a program which makes IDs
itself, for an interval that is extended while the program runs. "allocator status" lists
the workers. Nodes need a range of sids for them: worker.sid-range.`
	return cmd
}

// installCommand returns "allocator worker install".
func installCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "install PATH",
		Short: "Copy this program to a path",
		Long: `Install copies the program that runs to a path, for an init container: the image has no
shell and no cp. Containers of the same pod then find it in a shared volume.`,
		Example: "  allocator worker install /worker/allocator",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			return install(self, args[0])
		},
	}
}

// install copies a program. Who starts the copy meanwhile gets the old one or the new one.
func install(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	return durable.Replace(to, 0o755, durable.From(in))
}

// workerFlags adds the flags that say which worker is taken, and from whom, and returns
// what reads them. The name of a worker is that of the program unless another is given.
func workerFlags(a *cli.App, cmd *cobra.Command) func(program string) (worker.Config, error) {
	name := cmd.Flags().String("name", "",
		"name of the worker for people, as in \"allocator status\"; unless given, the program's")
	wait := cmd.Flags().Duration("wait", worker.DefaultOpenTimeout,
		"how long to wait for a number, as until that of a crashed predecessor is free")
	connect := remote.ClientFlags(a, cmd)
	return func(program string) (worker.Config, error) {
		if *wait <= 0 {
			return worker.Config{}, cli.UsageError("--wait is %v: it has to be above 0", *wait)
		}
		program = filepath.Base(program)
		cfg := worker.Config{Name: cmp.Or(*name, program[:min(len(program), worker.MaxName)]), OpenTimeout: *wait}
		var err error
		cfg.Client, err = connect(logger(a))
		return cfg, err
	}
}

// openWorker opens a worker. Its errors have exit codes.
func openWorker(ctx context.Context, cfg worker.Config) (*worker.Worker, error) {
	w, err := worker.Open(ctx, cfg)
	var refusal *client.Refusal
	switch {
	case err == nil:
		return w, nil
	case errors.Is(ctx.Err(), context.Canceled):
		return nil, cli.ErrInterrupted
	case errors.Is(err, worker.ErrConfig):
		return nil, cli.Exit(cli.ExitUsage, err)
	case errors.As(err, &refusal):
		return nil, cli.Exit(cli.ExitInvalid, err)
	}
	return nil, cli.Exit(cli.ExitUnavailable, err)
}

// logger returns what the commands log to.
func logger(a *cli.App) *slog.Logger {
	return cli.Logger(config.Log{Level: "info", Format: "text"}, a.Err)
}
