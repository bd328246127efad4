//go:build !linux

package worker

import (
	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

// The commands need what only Linux has: children that are killed with their parent, and
// processes of which none is missed.
func linuxOnly(use string) *cobra.Command {
	return &cobra.Command{
		Use:                use,
		Short:              "Needs Linux",
		DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error {
			return cli.UsageError("allocator worker %s needs Linux; on other systems use package worker or the API",
				use)
		},
	}
}

func runCommand(*cli.App) *cobra.Command   { return linuxOnly("run") }
func serveCommand(*cli.App) *cobra.Command { return linuxOnly("serve") }
func showCommand(*cli.App) *cobra.Command  { return linuxOnly("show") }
