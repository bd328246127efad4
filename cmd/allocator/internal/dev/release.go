//go:build nodev

// Package dev holds the command that runs a whole cluster on this machine. With
// the build tag nodev it only reports that the build lacks it.
package dev

import (
	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

// Command returns "allocator dev".
func Command(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:                "dev",
		Short:              "Run a whole cluster on this machine (not in this build)",
		Hidden:             true,
		DisableFlagParsing: true, // the answer is the same whatever flags are given
		RunE: func(*cobra.Command, []string) error {
			return cli.UsageError("this build has no dev command: release builds leave out the etcd server that it " +
				`starts; run "go run ./cmd/allocator dev" in a checkout of the source, or install a build that has ` +
				`it with "go install ./cmd/allocator"`)
		},
	}
}
