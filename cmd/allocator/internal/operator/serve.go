// Package operator holds the commands that run a node and prepare what it needs:
// init, serve, health, config, keys, tokens and version.
package operator

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/daemon"
)

// rest is memory in bytes that is asked for and never touched, so the system does
// not give it. The collector runs when memory has doubled, and a node holds so
// little that it would run many times a second: that took a tenth of what a
// request costs. With this it waits for some 32 MiB of garbage, however many
// connections there are.
const rest = 32 << 20

func ServeCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run one node against etcd",
		Long: `Serve runs one node until it is interrupted. It waits for etcd to answer and for the
space to be initialized (see "allocator init"), and gives its sid back when it stops.`,
		Example: "  allocator serve --etcd.endpoints http://10.0.0.1:2379,http://10.0.0.2:2379",
		Args:    cobra.NoArgs,
	}
	load := a.Settings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, _, err := load()
		if err != nil {
			return err
		}
		if len(c.Etcd.Endpoints) == 0 {
			return cli.NoEndpoints("serve")
		}
		if err := c.Validate(); err != nil {
			return cli.InvalidSettings(err)
		}
		d, err := daemon.New(daemon.Config{Settings: c, Version: a.Build().Version, Logger: cli.Logger(c.Log, a.Err)})
		if err != nil {
			return err
		}
		defer runtime.KeepAlive(make([]byte, rest))
		return d.Run(cmd.Context())
	}
	return cmd
}
