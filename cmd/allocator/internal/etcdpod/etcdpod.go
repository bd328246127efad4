// Package etcdpod holds the commands of the pods of the chart's own etcd: what runs a member,
// makes its certificates, takes and offers snapshots, and defragments. People look after the members
// with "allocator etcd", as they do on machines, so the help does not list these.
//
// What a member does when it starts is decided by internal/inside/member.
package etcdpod

import (
	"crypto/tls"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// The ports of a member.
const (
	clientPort  = "2379"
	peerPort    = "2380"
	metricsPort = "2381"
	reportPort  = "2382"
)

// The names in certificates. A member's is no user of etcd.
const (
	memberName = "etcd-member"
	rootName   = "root"
)

// Command returns "allocator etcd-pod".
func Command(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:    "etcd-pod",
		Short:  "Run and look after a member of the chart's etcd",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(runCommand(a), secretsCommand(a), snapshotCommand(a), keepCommand(a))
	return cmd
}

// logFormat is the form of the logs of these commands, and of their etcd.
const logFormat = "json"

// logger returns what the commands log to.
func logger(a *cli.App) *slog.Logger {
	return cli.Logger(config.Log{Level: "info", Format: logFormat}, a.Err)
}

// The names of the files in the directory of a certificate, as in a Secret of cert-manager.
func files(dir string) (ca, cert, key string) {
	return filepath.Join(dir, "ca.crt"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
}

// clientTLS returns the configuration from the files as they are now.
func clientTLS(dir string, log *slog.Logger) (*tls.Config, error) {
	ca, cert, key := files(dir)
	c, err := certs.NewClient("etcd", certs.ClientFiles{CA: ca, Cert: cert, Key: key}, tls.VersionTLS12, log)
	if err != nil {
		return nil, err
	}
	return c.Config(), nil
}

// hosts reads NAME=ADDRESS of each member.
func hosts(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, s := range list {
		name, address, ok := strings.Cut(s, "=")
		if !ok || name == "" || address == "" {
			return nil, cli.UsageError("--members has %q: write NAME=ADDRESS", s)
		}
		for n, a := range out {
			if n == name || a == address {
				return nil, cli.UsageError("--members names %s or %s twice: give each member its own", name, address)
			}
		}
		out[name] = address
	}
	if len(out) == 0 {
		return nil, cli.UsageError("--members is empty: write NAME=ADDRESS of each member")
	}
	return out, nil
}

// adminFlags adds the flags of commands that connect as root, and returns what connects.
func adminFlags(a *cli.App, cmd *cobra.Command) func() (*etcdstore.Group, error) {
	known := strings.FieldsFunc(a.Getenv("ALLOCATOR_ETCD_ENDPOINTS"), func(r rune) bool { return r == ',' })
	endpoints := cmd.Flags().StringSlice("endpoints", known, "client URLs of the members")
	dir := cmd.Flags().String("root-tls", "/etc/etcd/root", "directory with ca.crt, and tls.crt and tls.key of root")
	return func() (*etcdstore.Group, error) {
		if len(*endpoints) == 0 {
			return nil, cli.UsageError("--endpoints is empty: give the client URLs of the members")
		}
		t, err := clientTLS(*dir, logger(a))
		if err != nil {
			return nil, cli.Exit(cli.ExitUsage, err)
		}
		return etcdstore.OpenGroup(etcdstore.Config{Endpoints: *endpoints, TLS: t})
	}
}
