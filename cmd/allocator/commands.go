package main

import (
	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/admin"
	"github.com/flakelease/allocator/cmd/allocator/internal/agent"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/cluster"
	"github.com/flakelease/allocator/cmd/allocator/internal/debug"
	"github.com/flakelease/allocator/cmd/allocator/internal/dev"
	"github.com/flakelease/allocator/cmd/allocator/internal/doctor"
	"github.com/flakelease/allocator/cmd/allocator/internal/etcd"
	"github.com/flakelease/allocator/cmd/allocator/internal/etcdpod"
	"github.com/flakelease/allocator/cmd/allocator/internal/fence"
	"github.com/flakelease/allocator/cmd/allocator/internal/ids"
	"github.com/flakelease/allocator/cmd/allocator/internal/offline"
	"github.com/flakelease/allocator/cmd/allocator/internal/operator"
	"github.com/flakelease/allocator/cmd/allocator/internal/sql"
	"github.com/flakelease/allocator/cmd/allocator/internal/worker"
)

// newRoot returns the whole command line.
func newRoot(a *cli.App) *cobra.Command {
	root := &cobra.Command{
		Use:   "allocator",
		Short: "Unique, time-sorted IDs from nodes that never issue one twice",
		Long: `Allocator issues unique, time-sorted IDs. Nodes lease scalability IDs (sids) from
etcd, reserve windows of milliseconds, and issue IDs from memory; they refuse
rather than issue a duplicate. It also reads, checks and converts IDs, ULIDs and UUIDs
of any origin, and makes uncoordinated ones.

To try it, ` + cli.TryDev + `: it needs nothing else.

Results go to stdout, everything else to stderr. Exit codes: 0 all went well, 1 an ID is
invalid or a request was refused, 2 the command line or a setting is wrong, 3 etcd or every node asked is unavailable.`,
		Example: `  allocator parse 01ARZ3NDEKTSV4RRFFQ69G5FAV        # what is in an ID, whatever its form
  allocator parse --format json < ids.txt           # the same of many, one JSON object a line
  allocator parse --as uuid 01ARZ3NDEKTSV4RRFFQ69G5FAV
  allocator validate < ids.txt                      # which ones are well-formed; exit code 1 if any is not
  allocator new 3                                   # 3 random ULIDs; --kind uuid or flake for others
  allocator monotonic 3                             # 3 that rise, whatever the clock does
  allocator from-time --min 2026-11-20              # the smallest ULID of a time, for a range query
  allocator get 3                                   # 3 that are guaranteed to be unique, from a node`,
	}
	for _, g := range groups(a) {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title + ":"})
		for _, cmd := range g.commands {
			cmd.GroupID = g.title
			root.AddCommand(cmd)
		}
	}
	return root
}

// group is some commands as the help lists them.
type group struct {
	title    string
	commands []*cobra.Command
}

func groups(a *cli.App) []group {
	return []group{
		{"IDs, without a node", []*cobra.Command{
			ids.ParseCommand(a), ids.ValidateCommand(a), offline.NewCommand(a), offline.MonotonicCommand(a),
			offline.FromTimeCommand(a),
			ids.AuditCommand(a), ids.AdoptCommand(a),
		}},
		{"IDs from a cluster", []*cobra.Command{
			dev.Command(a), agent.Command(a), cluster.GetCommand(a), cluster.StatusCommand(a),
			cluster.WatermarkCommand(a), cluster.EventsCommand(a), worker.Command(a), fence.Command(a), sql.Command(a),
		}},
		{"For operators", []*cobra.Command{
			operator.InitCommand(a), operator.ServeCommand(a), operator.HealthCommand(a), doctor.Command(a),
			debug.Command(a, newRoot),
			admin.Command(a), etcd.Command(a), operator.GossipCommand(a), operator.TokenCommand(a),
			operator.ConfigCommand(a), operator.DocsCommand(a), operator.VersionCommand(a), etcdpod.Command(a),
		}},
	}
}
