package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/config"
)

// dialer is how a client command reaches nodes: in clear or by TLS, and with
// which token.
type dialer struct {
	tls   *certs.Client // nil: in clear
	cert  bool          // and it shows a certificate
	token string        // "": none
	opts  []grpc.DialOption
}

// systemRoots is the value of --ca that means no file.
const systemRoots = "system"

// dialFlags adds --ca, --cert, --key and --token-file to cmd, and returns what
// reads them.
func (a *app) dialFlags(cmd *cobra.Command) func() (dialer, error) {
	ca := cmd.Flags().String("ca", "", "speak TLS: PEM `file` of the authorities that sign nodes' certificates, or system for this machine's")
	cert := cmd.Flags().String("cert", "", "PEM `file` of the certificate to show to nodes; with --ca and --key")
	key := cmd.Flags().String("key", "", "PEM `file` of its key")
	tokenFile := cmd.Flags().String("token-file", "", "`file` with the token to show to nodes (or $"+config.EnvToken+", the token itself)")
	for _, name := range []string{"ca", "cert", "key", "token-file"} {
		_ = cmd.MarkFlagFilename(name)
	}
	return func() (dialer, error) {
		d := dialer{opts: []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}}
		switch {
		case (*cert == "") != (*key == ""):
			return d, usage("--cert and --key come together")
		case *cert != "" && *ca == "":
			return d, usage("--cert is shown over TLS alone: give --ca as well, a file or system")
		case *ca != "":
			files := certs.ClientFiles{CA: *ca, Cert: *cert, Key: *key}
			if files.CA == systemRoots {
				files.CA = ""
			}
			var err error
			if d.tls, err = certs.NewClient("tls", files, tls.VersionTLS13, slog.New(slog.DiscardHandler)); err != nil {
				return d, usage("--ca, --cert, --key: %w", err)
			}
			d.cert = *cert != ""
			d.opts = []grpc.DialOption{grpc.WithTransportCredentials(d.tls.Credentials())}
		}
		token, err := a.token(*tokenFile)
		if err != nil {
			return d, err
		}
		d.token = token
		if token != "" {
			d.opts = append(d.opts, grpc.WithPerRPCCredentials(bearer{token: token, plain: d.tls == nil}))
		}
		return d, nil
	}
}

// token returns what a file or the environment has; "" if neither is given. Its
// errors quote nothing.
func (a *app) token(file string) (string, error) {
	token, from := a.getenv(config.EnvToken), "$"+config.EnvToken
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return "", usage("--token-file: %w", err)
		}
		defer func() { _ = f.Close() }()
		b, err := io.ReadAll(io.LimitReader(f, access.MaxTokenFile))
		if err != nil {
			return "", usage("--token-file: %w", err)
		}
		token, from = strings.TrimSpace(string(b)), "--token-file "+file
		if token == "" {
			return "", usage("%s is empty", from)
		}
	}
	if token == "" {
		return "", nil
	}
	if _, err := access.Bearer("Bearer " + token); err != nil {
		return "", usage("%s is not one token: it takes what «allocator token new» prints, and not the line of auth.token-file", from)
	}
	return token, nil
}

// bearer shows a token with every request.
type bearer struct {
	token string
	plain bool // without TLS, as nodes on loopback or behind a mesh have it
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return !b.plain }

// dial returns a connection that contacts nobody yet.
func (d dialer) dial(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil || strings.HasPrefix(addr, ":") {
		return nil, usage("--addr: %q is not host:port", addr)
	}
	c, err := grpc.NewClient("passthrough:///"+addr, append(opts, d.opts...)...)
	if err != nil {
		return nil, usage("--addr: %q: %w", addr, err)
	}
	return c, nil
}

// hint says what a failure of TLS commonly means; "" where it is none.
func (d dialer) hint(message string) string {
	switch {
	case d.tls == nil && (strings.Contains(message, "error reading server preface") || strings.Contains(message, "connection reset")):
		return "\nDoes the node speak TLS? Then give --ca with the file of its authority, or --ca system."
	case d.tls != nil && strings.Contains(message, "first record does not look like a TLS handshake"):
		return "\nThe node does not speak TLS: leave --ca away."
	case d.tls == nil:
		return ""
	}
	// In TLS 1.3 a client learns that its certificate does not do when it has begun
	// to speak: as an alert, or as a connection that breaks under it.
	for _, sign := range []string{"certificate required", "bad certificate", "unknown certificate authority", "broken pipe", "connection reset", "EOF"} {
		switch {
		case !strings.Contains(message, sign):
		case d.cert:
			return "\nDoes the node know the authority of the certificate in --cert, and is that still good?"
		default:
			return "\nDoes the node ask for a certificate? Then give --cert and --key."
		}
	}
	return ""
}

func (a *app) tokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Tokens of those who may call nodes",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.tokenNewCommand())
	return cmd
}

func (a *app) tokenNewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Make a token, and its line of auth.token-file",
		Long: `New makes a random token. It prints the token's line of auth.token-file to stdout, and
the token itself to stderr: once, since nobody can tell it from the line. With --out the
token goes into a file instead, which only its owner may read.

Scopes are issue (draw IDs), read (decode IDs, see the cluster) and admin (all, and
drain a node). Nodes read the file again every 5 s. To change a token, let its new line
stand beside the old one, of the same name, until the caller has the new token.`,
		Example: `  allocator token new checkout --scopes issue >> tokens
  allocator token new ops --scopes admin --out ops.token >> tokens`,
		Args: cobra.ExactArgs(1),
	}
	scopes := cmd.Flags().String("scopes", "issue", "what the token allows, comma-separated: issue, read, admin")
	out := cmd.Flags().String("out", "", "`file` to write the token to; it must not exist")
	_ = cmd.MarkFlagFilename("out")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		token, line, err := access.NewToken(args[0], *scopes)
		if err != nil {
			return usage("%w", err)
		}
		if *out == "" {
			if _, err := fmt.Fprintln(a.err, token); err != nil {
				return err
			}
		} else if err := writeSecret(*out, token); err != nil {
			return &exitError{exitInvalid, fmt.Errorf("--out: %w", err)}
		}
		_, err = fmt.Fprintln(a.out, line)
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
