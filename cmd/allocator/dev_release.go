//go:build nodev

package main

import "github.com/spf13/cobra"

// tryDev is how to start a cluster for a trial. Release builds leave dev out: the
// etcd server that it starts is half of the binary and most of its modules.
const tryDev = `run "go run ./cmd/allocator dev" in a checkout of the source`

func (a *app) devCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "dev",
		Short:              "Run a whole cluster on this machine (not in this build)",
		Hidden:             true,
		DisableFlagParsing: true, // the answer is the same whatever flags are given
		RunE: func(*cobra.Command, []string) error {
			return usage(`this build has no dev command: release builds leave out the etcd server that it starts; ` +
				`run "go run ./cmd/allocator dev" in a checkout of the source, or install a build that has it with "go install ./cmd/allocator"`)
		},
	}
}
