package operator

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/config"
)

// HealthCommand returns "allocator health".
func HealthCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask the node on this machine whether it is healthy",
		Long: `Health asks the admin port of the node that runs here with the same settings whether it
would serve a request now, and exits with 1 if not. It is for containers without curl.

With --live it asks only whether the process is alive. Use that where a failure restarts the
process, since a node that is restarted loses its window.`,
		Example: `  allocator health                        # would it serve?
  allocator health --live                 # is it alive?
  allocator health --verbose              # each condition of serving on a line`,
		Args: cobra.NoArgs,
	}
	live := cmd.Flags().Bool("live", false, "ask whether the process is alive, not whether it would serve")
	verbose := cmd.Flags().BoolP("verbose", "v", false, "each condition of serving on a line")
	timeout := cmd.Flags().Duration("timeout", 2*time.Second, "how long the answer may take")
	cmd.MarkFlagsMutuallyExclusive("live", "verbose")
	load := a.Settings(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, _, err := load()
		if err != nil {
			return err
		}
		if *timeout <= 0 {
			return cli.UsageError("--timeout is %v: it has to be above 0", *timeout)
		}
		target, client, err := adminOf(c)
		if err != nil {
			return err
		}
		target.Path = "/readyz"
		switch {
		case *live:
			target.Path = "/livez"
		case *verbose:
			target.RawQuery = "verbose"
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		return ask(ctx, client, target.String(), a.Out)
	}
	return cmd
}

// adminOf returns where the admin port of the node on this machine is, and what asks there.
func adminOf(c config.Config) (at url.URL, client *http.Client, err error) {
	if c.Listen.Admin == "" {
		return at, nil, cli.UsageError("the node has no admin port to ask: listen.admin is empty")
	}
	host, port, err := net.SplitHostPort(c.Listen.Admin)
	if err != nil || port == "0" {
		return at, nil,
			cli.UsageError("listen.admin is %q: health needs the port that the node listens on", c.Listen.Admin)
	}
	// Who listens on every address is asked on loopback, by number: an image from
	// scratch need not know any names.
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	transport := &http.Transport{DisableKeepAlives: true} // and no proxy: it is this machine
	at = url.URL{Scheme: "http", Host: net.JoinHostPort(host, port)}
	if c.TLS.Admin && c.TLS.Cert != "" {
		at.Scheme = "https"
		if transport.TLSClientConfig, err = pinned(c.TLS); err != nil {
			return at, nil, cli.UsageError("tls.admin: %w", err)
		}
	}
	return at, &http.Client{Transport: transport}, nil
}

// pinned takes the node's own certificate for the node and no other, whatever
// name it is for: it was issued for how others call this machine. The node is
// shown the same one, in case it asks for any (tls.client-ca).
func pinned(files config.ServerTLS) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{own},
		InsecureSkipVerify: true, // VerifyConnection does it
		VerifyConnection: func(s tls.ConnectionState) error {
			if !s.PeerCertificates[0].Equal(own.Leaf) {
				return errors.New("the program that listens there does not use the certificate of tls.cert")
			}
			return nil
		},
	}, nil
}

// maxAnswer is more than a node answers, in bytes.
const maxAnswer = 64 << 10

// ask prints the node's answer to w. It returns errors with the exit codes 1 for
// a node that is not well, and 3 for one that does not answer.
func ask(ctx context.Context, client *http.Client, target string, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return cli.UsageError("listen.admin: %w", err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return cli.Exit(cli.ExitUnavailable,
			fmt.Errorf("no answer from the admin port: %w; check that the node runs, with the same listen.admin",
				errors.Unwrap(err)))
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return cli.Exit(cli.ExitUnavailable, fmt.Errorf("the answer of %s was cut short: %w", target, err))
	}
	if _, err := fmt.Fprintln(w, strings.TrimRight(string(body), "\n")); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return cli.ErrInvalid
	}
	return nil
}
