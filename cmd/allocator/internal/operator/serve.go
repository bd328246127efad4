// Package operator holds the commands that run a node and prepare what it needs:
// init, serve, health, config, keys, tokens and version.
package operator

import (
	"errors"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/inside"
)

// Settings of the garbage collector, unless GOGC or GOMEMLIMIT is set.
//
// A node holds about 3 MiB. Measured over gRPC with 16 callers, the processor time of the
// collector for each request, of about 28 µs in all: 8.1 µs with Go's default of 100 (a
// collection every 600 requests), 1.8 µs with 400, 1.0 µs with 800 (every 6,000 requests),
// which takes 30 MiB more. The memory limit keeps a node with thousands of connections from
// growing to nine times what they hold.
const (
	gcPercent   = 800
	memoryLimit = 512 << 20
)

// tuneGC sets the garbage collector.
func tuneGC() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		limit := int64(memoryLimit)
		if group := daemon.GroupMemory(); group > 0 { // what is not the heap needs a tenth
			limit = min(limit, group/10*9)
		}
		debug.SetMemoryLimit(limit)
	}
}

// ServeCommand returns "allocator serve".
func ServeCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run one node, with an etcd inside or against one of yours",
		Long: `Serve waits for etcd to answer and for the space to be initialized (see "allocator init").

With --etcd.inside the node runs a member of etcd itself, as a second process. The same
--etcd.join on three machines is a cluster; nodes without --etcd.inside are its clients.

SIGINT and SIGTERM stop it in order, and it gives its sid back. SIGHUP makes it read
certificates, tokens and gossip keys at once; without it they are read every 5 s. Settings
need a restart.`,
		Example: "  allocator serve --etcd.inside /var/lib/allocator --etcd.join 10.0.0.1,10.0.0.2,10.0.0.3\n" +
			"  allocator serve --etcd.endpoints http://10.0.0.1:2379,http://10.0.0.2:2379",
		Args: cobra.NoArgs,
	}
	load := a.Settings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, sources, err := cli.WithEtcd("serve", load)
		if err != nil {
			return err
		}
		hangup := make(chan os.Signal, 1)
		signal.Notify(hangup, syscall.SIGHUP)
		a.DetachErr()
		log := cli.Logger(c.Log, a.Err)
		program, err := os.Executable()
		if err != nil && c.Etcd.Inside.Dir != "" {
			return cli.UsageError("etcd.inside: the program does not find itself: %w", err)
		}
		traced, end, err := traces(os.Getenv, a.Build().Version, log)
		if err != nil {
			return cli.UsageError("OpenTelemetry: %w", err)
		}
		defer end()
		d, err := daemon.New(daemon.Config{
			Settings: c,
			Sources:  sources,
			Version:  a.Build().Version,
			Logger:   log,
			Program:  program,
			Host:     daemon.Host{Traces: traced},
		})
		switch {
		case errors.Is(err, inside.ErrPasses), errors.Is(err, certs.ErrTime):
			return cli.Exit(cli.ExitUnavailable, err) // A machine that starts may not know its name or the time yet.
		case err != nil && c.Etcd.Inside.Dir != "":
			return cli.Exit(cli.ExitUsage, err) // A restart would not help.
		case err != nil:
			return err
		}
		tuneGC()
		go func() {
			for range hangup {
				log.Info("SIGHUP: reading certificates, tokens and keys")
				d.Reload()
			}
		}()
		return d.Run(cmd.Context())
	}
	return cmd
}
