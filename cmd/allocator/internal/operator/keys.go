package operator

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/access"
)

// keyBytes is the length of a gossip key: AES-256.
const keyBytes = 32

// GossipCommand returns "allocator gossip".
func GossipCommand(a *cli.App) *cobra.Command {
	return cli.Parent("gossip", "Keys of the nodes' gossip", gossipKeygenCommand(a))
}

// gossipKeygenCommand returns "allocator keygen".
func gossipKeygenCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "keygen",
		Short: "Print a new random key for gossip.key-file",
		Long: `Every node has the same file. To change the key without losing a message, give
all nodes the new one as the last line, then as the first, then alone: each
step to every node before the next. Nodes read the file again every 5 s.`,
		Example: "  allocator gossip keygen > gossip.keys && chmod 600 gossip.keys",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			var key [keyBytes]byte
			_, _ = rand.Read(key[:]) // never fails
			_, err := fmt.Fprintln(a.Out, base64.StdEncoding.EncodeToString(key[:]))
			return err
		},
	}
}

// TokenCommand returns "allocator token".
func TokenCommand(a *cli.App) *cobra.Command {
	return cli.Parent("token", "Tokens of clients that may call nodes", tokenNewCommand(a))
}

// tokenNewCommand returns "allocator new".
func tokenNewCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Make a token, and its line of auth.token-file",
		Long: `New prints the token's line of auth.token-file to stdout, and the token itself to stderr:
once, since it cannot be recovered from the line. With --out the token goes into a file,
which only its owner may read.

Scopes are issue (draw IDs), read (decode IDs, see the cluster), worker (hold worker
numbers) and admin (all, and drain a node). To change a token, keep its new line beside the
old one, of the same name, until the caller has the new token.`,
		Example: `  allocator token new checkout --scopes issue >> tokens
  allocator token new ops --scopes admin --out ops.token >> tokens`,
		Args: cobra.ExactArgs(1),
	}
	scopes := cmd.Flags().String("scopes", "issue",
		"what the token allows, comma-separated: issue, read, worker, admin")
	workers := cmd.Flags().Int("workers", 0,
		"how many workers the token may hold at once; 0: worker.per-client of the nodes")
	out := cmd.Flags().String("out", "", "`file` to write the token to; it must not exist")
	_ = cmd.MarkFlagFilename("out")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		token, line, err := access.NewToken(args[0], *scopes)
		if err != nil {
			return cli.UsageError("%w", err)
		}
		if *workers < 0 || *workers > access.MaxWorkers {
			return cli.UsageError("--workers: %d is out of range: it must be 0 to %d", *workers, access.MaxWorkers)
		}
		if *workers > 0 {
			line = fmt.Sprintf("%s workers=%d", line, *workers)
		}
		if *out == "" {
			if _, err := fmt.Fprintln(a.Err, token); err != nil {
				return err
			}
		} else if err := writeSecret(*out, token); err != nil {
			return cli.Exit(cli.ExitInvalid, fmt.Errorf("--out: %w", err))
		}
		_, err = fmt.Fprintln(a.Out, line)
		return err
	}
	return cmd
}

// writeSecret makes a file that only its owner may read.
func writeSecret(path, secret string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, secret)
	return errors.Join(err, f.Close())
}
