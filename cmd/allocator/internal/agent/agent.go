// Package agent holds the command that serves the processes of one machine with IDs of nodes.
package agent

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
)

// settings are those that an agent has with serve.
var settings = []string{
	"node.name", "listen.grpc", "listen.http", "listen.resp", "listen.admin", "listen.socket-mode",
	"listen.socket-group", "listen.insecure", "http.hosts", "limit.requests-per-second", "limit.connections",
	"log.level", "log.format",
}

// defaultWait has time for a node that does not answer and for another one that does.
const defaultWait = 2 * time.Second

// Command returns "allocator agent".
func Command(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent --addr NODE:9000,NODE:9000 --listen.resp unix:/run/allocator/agent.sock",
		Short: "Serve the processes of this machine with IDs of nodes, on a socket",
		Long: `Agent holds IDs of the nodes in --addr, and gives them to the processes of one machine or pod
over RESP, HTTP and gRPC, on Unix sockets or loopback. It is for programs that do not live long
enough to hold IDs themselves: PHP-FPM, pre-forking servers, scripts. A request costs no call to a
node, unless it is the first for a minute, or for more IDs than the agent holds. The agent goes to
another node when one fails, and keeps TLS and tokens out of the programs.

IDs of one agent rise from call to call. An ID is at most --max-age older than the request. IDs
that the agent holds when it ends are never used, and nothing else is lost.

It answers as a node does, with the refusals of its nodes. It decodes IDs, but does not know their
holders. Status, the watermark, workers, events and admin calls are answered by nodes alone: the
error of such a call names those in --addr.

It listens once a node has answered. SIGINT and SIGTERM stop it in order.

Of the settings of serve it has node.name, listen.grpc, listen.http, listen.resp, listen.admin
(none unless set), listen.socket-*, listen.insecure, http.hosts, limit.* and log.*.`,
		Example: `  allocator agent --addr node1:9000,node2:9000 --listen.resp unix:/run/allocator/agent.sock
  redis-cli -s /run/allocator/agent.sock ID.NEXT
  allocator agent --addr node1:9000 --ca ca.pem --token-file token --listen.http unix:/run/allocator/http.sock
  curl --unix-socket /run/allocator/http.sock -X POST http://localhost/v1/ids`,
		Args: cobra.NoArgs,
	}
	options := remote.ClientFlags(a, cmd)
	maxAge := cmd.Flags().Duration("max-age", client.DefaultMaxAge,
		"how old an ID may be when it is given; older ones are dropped")
	maxWait := cmd.Flags().Duration("max-wait", defaultWait,
		"how long a request may wait for a node, where no ID is there")
	load := a.SettingsOf(cmd, base(), settings...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, _, err := load()
		if err != nil {
			return err
		}
		a.DetachErr()
		log := cli.Logger(c.Log, a.Err)
		o, err := options(log)
		if err != nil {
			return err
		}
		d, err := daemon.NewAgent(daemon.AgentConfig{
			Settings: c,
			Client:   o,
			MaxAge:   *maxAge,
			MaxWait:  *maxWait,
			Version:  a.Build().Version,
			Logger:   log,
		})
		if err != nil {
			return cli.Exit(cli.ExitUsage, err)
		}
		return d.Run(cmd.Context())
	}
	return cmd
}

// base are the settings of an agent that is told nothing: it listens nowhere.
func base() config.Config {
	c := config.Default()
	c.Listen = config.Listen{Socket: c.Listen.Socket}
	return c
}
