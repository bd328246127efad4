// Package remote is how commands reach nodes: the flags that say which and how, and
// requests that go from one node to the next until one answers.
package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/text"
	"github.com/flakelease/allocator/internal/unixsocket"
)

// Dialer is how a client command reaches nodes: with or without TLS, and with
// which token.
type Dialer struct {
	TLS       *certs.Client // nil: no TLS
	Token     string        // "": none
	files     Files
	anonymous bool // It shows no certificate.
}

// systemRoots is the value of --ca that means no file.
const systemRoots = "system"

// DialFlags adds the flags of Files to cmd, and returns what reads the files.
func DialFlags(a *cli.App, cmd *cobra.Command) func() (Dialer, error) {
	files := FileFlags(cmd)
	return func() (Dialer, error) { return files().Dialer(a, slog.New(slog.DiscardHandler)) }
}

// FileFlags adds --ca, --cert, --key, --token-file and --plaintext-token to cmd, and returns
// what gives their values.
func FileFlags(cmd *cobra.Command) func() Files {
	ca := cmd.Flags().String("ca", "", "use TLS: PEM `file` of the authorities that sign nodes' certificates, or "+
		"system for this machine's")
	cert := cmd.Flags().String("cert", "", "PEM `file` of the certificate to show to nodes; with --ca and --key")
	key := cmd.Flags().String("key", "", "PEM `file` of its key")
	tokenFile := cmd.Flags().String("token-file", "",
		"`file` with the token to show to nodes (or $"+config.EnvToken+", the token itself)")
	for _, name := range []string{"ca", "cert", "key", "token-file"} {
		_ = cmd.MarkFlagFilename(name)
	}
	plaintext := cmd.Flags().Bool("plaintext-token", false,
		"send the token without TLS to other machines, for networks that encrypt")
	return func() Files {
		return Files{CA: *ca, Cert: *cert, Key: *key, TokenFile: *tokenFile, PlaintextToken: *plaintext}
	}
}

// ClientFlags adds --addr and the flags of DialFlags to cmd, and returns what gives the
// options of a client that lives as long as the command: it reads the files of the token and of TLS
// again when they change, and logs what is wrong with those of TLS.
func ClientFlags(a *cli.App, cmd *cobra.Command) func(*slog.Logger) (client.Options, error) {
	options := clientFlags(a, cmd, false)
	return func(log *slog.Logger) (client.Options, error) { return first(options(log)) }
}

// SpaceClientsFlags is ClientFlags for a command that asks several spaces: each --addr has nodes
// of one.
func SpaceClientsFlags(a *cli.App, cmd *cobra.Command) func(*slog.Logger) ([]client.Options, error) {
	return clientFlags(a, cmd, true)
}

// first returns what a command of one space has.
func first[T any](list []T, err error) (one T, _ error) {
	if err == nil {
		one = list[0]
	}
	return one, err
}

func clientFlags(a *cli.App, cmd *cobra.Command, spaces bool) func(*slog.Logger) ([]client.Options, error) {
	addrs := addrFlag(a, cmd, spaces, DefaultAddr)
	files := FileFlags(cmd)
	return func(log *slog.Logger) (all []client.Options, _ error) {
		f := files()
		d, err := f.Dialer(a, log) // checks all of them
		if err != nil {
			return nil, err
		}
		for _, list := range addrs() {
			if err := d.MayCall(list...); err != nil {
				return nil, err
			}
			o := client.Options{Targets: list, PlaintextToken: true} // MayCall has decided.
			if d.TLS != nil {
				o.DialOptions = append(o.DialOptions, grpc.WithTransportCredentials(d.TLS.Credentials()))
			}
			switch {
			case f.TokenFile != "":
				o.TokenFile = f.TokenFile
			case d.Token != "":
				o.Token = func(context.Context) (string, error) { return d.Token, nil }
			}
			all = append(all, o)
		}
		if d.TLS != nil {
			go func() { _ = d.TLS.Run(cmd.Context()) }() // until the command is told to end
		}
		return all, nil
	}
}

// MayCall returns an error if calls to one of the addresses would show the token to the network:
// without TLS it goes to this machine alone, unless that was allowed.
func (d Dialer) MayCall(addrs ...string) error {
	if d.Token == "" || d.TLS != nil || d.files.PlaintextToken {
		return nil
	}
	if i := slices.IndexFunc(addrs, remote); i >= 0 {
		return cli.UsageError("the token would be sent unencrypted to %s: give --ca with the file of the nodes' "+
			"authority, or --plaintext-token if the network encrypts", addrs[i])
	}
	return nil
}

// remote reports whether an address is, or may be, that of another machine.
func remote(target string) bool {
	if unixsocket.Is(target) {
		return false
	}
	host, _, err := net.SplitHostPort(target)
	if err != nil {
		host = target
	}
	return host != "localhost" && !net.ParseIP(host).IsLoopback()
}

// Files say how nodes are called: the files of those flags, and whether the token needs no TLS.
type Files struct {
	CA             string
	Cert           string
	Key            string
	TokenFile      string
	PlaintextToken bool
}

// Dialer reads the files. The log is of those of TLS.
func (f Files) Dialer(a *cli.App, log *slog.Logger) (d Dialer, err error) {
	d.files = f
	switch {
	case (f.Cert == "") != (f.Key == ""):
		return d, cli.UsageError("only one of --cert and --key is given: give both or neither")
	case f.Cert != "" && f.CA == "":
		return d, cli.UsageError("--cert needs TLS: give --ca as well, a file or system")
	case f.CA != "":
		files := certs.ClientFiles{CA: f.CA, Cert: f.Cert, Key: f.Key, Prefix: "--"}
		if files.CA == systemRoots {
			files.CA = ""
		}
		if d.TLS, err = certs.NewClient("tls", files, tls.VersionTLS13, log); err != nil {
			return d, cli.UsageError("%w", err)
		}
	}
	d.Token, err = token(a, f.TokenFile)
	return d, err
}

// Anonymous returns a Dialer that shows nodes neither a token nor a certificate.
func (d Dialer) Anonymous() Dialer { return Dialer{TLS: d.TLS, anonymous: true} }

// Anyway is Dialer for those who only look: without a certificate that is not valid now, which is logged.
func (f Files) Anyway(a *cli.App, log *slog.Logger) (Dialer, error) {
	d, err := f.Dialer(a, log)
	if errors.Is(err, certs.ErrTime) {
		log.Error("going on without a certificate", "error", err)
		f.Cert, f.Key = "", ""
		d, err = f.Dialer(a, log)
	}
	return d, err
}

// token returns what a file or the environment has; "" if neither is given. Its
// errors quote nothing.
func token(a *cli.App, file string) (string, error) {
	token, from := a.Getenv(config.EnvToken), "$"+config.EnvToken
	if file != "" {
		f, err := os.Open(file)
		if err != nil {
			return "", cli.UsageError("--token-file: %w", err)
		}
		defer func() { _ = f.Close() }()
		b, err := io.ReadAll(io.LimitReader(f, access.MaxTokenFile))
		if err != nil {
			return "", cli.UsageError("--token-file: %w", err)
		}
		token, from = strings.TrimSpace(string(b)), "--token-file "+file
		if token == "" {
			return "", cli.UsageError("%s is empty", from)
		}
	}
	if token == "" {
		return "", nil
	}
	if _, err := access.Bearer("Bearer " + token); err != nil {
		return "", cli.UsageError("%s is not one token: it takes what \"allocator token new\" prints, and not the "+
			"line of auth.token-file", from)
	}
	return token, nil
}

// bearer shows a token with every request. plain: MayCall allows it without TLS.
type bearer struct {
	token string
	plain bool
}

func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

func (b bearer) RequireTransportSecurity() bool { return !b.plain }

// Dial returns a connection that contacts nobody yet, or the error of MayCall.
//
// A Unix socket is never encrypted: --ca does not count for one.
func (d Dialer) Dial(addr string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	target, creds := "passthrough:///"+addr, insecure.NewCredentials()
	if unixsocket.Is(addr) {
		if err := unixsocket.Check(addr); err != nil {
			return nil, cli.UsageError("--addr: %w", err)
		}
		path, _ := unixsocket.Path(addr)
		target = "unix://" + path
	} else {
		_, port, err := net.SplitHostPort(addr)
		if err != nil || strings.HasPrefix(addr, ":") {
			return nil, NotHostPort(addr)
		}
		if n, err := net.LookupPort("tcp", port); err != nil || n == 0 {
			return nil, cli.UsageError("--addr: %q: there is no port %q: ports are 1 to 65535", addr, port)
		}
		if d.TLS != nil {
			creds = d.TLS.Credentials()
		}
		if d.anonymous && d.TLS != nil {
			creds = d.TLS.WithoutCertificate()
		}
	}
	if err := d.MayCall(addr); err != nil {
		return nil, err
	}
	opts = append(opts, grpc.WithTransportCredentials(creds))
	if d.Token != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(bearer{d.Token, d.TLS == nil || unixsocket.Is(addr)}))
	}
	c, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, cli.UsageError("--addr: %q: %w", addr, err)
	}
	return c, nil
}

// NotHostPort is the error of an address in --addr that is none.
func NotHostPort(addr string) error {
	_, port, _ := net.SplitHostPort(DefaultAddr)
	return cli.UsageError("--addr: %s", text.NotHostPort(addr, port))
}

// Hint explains a failure to speak with a node, in a line to put before it: another port than the gRPC port,
// TLS on one side alone, or a certificate. It is "" for others.
func (d Dialer) Hint(message string) string {
	switch {
	case strings.Contains(message, "looked like an HTTP/1.1 header"):
		return "An HTTP/1.1 server answers there. Give the gRPC port of the node (listen.grpc, 9000 by default), " +
			"not its HTTP or admin port.\n"
	case d.TLS == nil && (strings.Contains(message, "error reading server preface") ||
		strings.Contains(message, "connection reset")):
		return "If that is the gRPC port of the node (listen.grpc) and the node uses TLS, give --ca with the file " +
			"of its authority, or --ca system.\n"
	case d.TLS != nil && strings.Contains(message, "first record does not look like a TLS handshake"):
		return "The node does not use TLS: omit --ca.\n"
	case d.TLS == nil:
		return ""
	case strings.Contains(message, "no application protocol"), strings.Contains(message, "missing selected ALPN"):
		return "A server with TLS answers there that does not speak gRPC. Give the gRPC port of the node " +
			"(listen.grpc, 9000 by default), not its HTTP or Redis port.\n"
	case strings.Contains(message, "signed by unknown authority"):
		return "A node answers, but no authority in --ca signed its certificate: give the file of its authority.\n"
	case strings.Contains(message, "failed to verify certificate"):
		return "A node answers, but its certificate does not do: renew it, or call the node by a name that is in it.\n"
	}
	// In TLS 1.3 a client learns that its certificate does not do when it has begun
	// to speak: as an alert, or as a connection that breaks under it.
	signs := []string{"certificate required", "bad certificate", "unknown certificate authority", "broken pipe",
		"connection reset", "EOF"}
	switch {
	case !slices.ContainsFunc(signs, func(sign string) bool { return strings.Contains(message, sign) }):
		return ""
	case d.files.Cert != "":
		return "Check that the node trusts the authority of the certificate in --cert, and that it has not expired.\n"
	}
	return "If the node asks for a certificate, give --cert and --key.\n"
}
