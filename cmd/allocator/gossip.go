package main

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"

	"github.com/spf13/cobra"
)

// keyBytes is the length of a gossip key: AES-256.
const keyBytes = 32

func (a *app) gossipCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gossip",
		Short: "Keys of the nodes' gossip",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.gossipKeygenCommand())
	return cmd
}

func (a *app) gossipKeygenCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "keygen",
		Short: "Print a new random key for gossip.key-file",
		Long: `Print a new random key, as a line of gossip.key-file.

Every node has the same file. To change the key without losing a message, give
all nodes the new one as the last line, then as the first, then alone: each
step to every node before the next. Nodes read the file again every 5 s.`,
		Example: "  allocator gossip keygen > gossip.keys && chmod 600 gossip.keys",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var key [keyBytes]byte
			_, _ = rand.Read(key[:]) // never fails
			_, err := fmt.Fprintln(a.out, base64.StdEncoding.EncodeToString(key[:]))
			return err
		},
	}
}
