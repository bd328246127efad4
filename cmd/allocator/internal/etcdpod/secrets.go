package etcdpod

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/certs"
)

// Lifetimes of certificates. A leaf is replaced when a third of its lifetime is left.
const (
	authorityLife = 20 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
)

// answerLimit bounds an answer of the API server, in bytes.
const answerLimit = 4 << 20

func secretsCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "secrets",
		Short: "Make the certificates of etcd, its nodes and its root user, as Secrets of Kubernetes",
		Long: `Secrets makes what is missing of NAME-ca, NAME-server, NAME-client and NAME-root, and renews
certificates of which less than a third of the lifetime is left, or that lack a DNS name. Others are left alone.`,
		Args: cobra.NoArgs,
	}
	name := cmd.Flags().String("name", "", "first part of the names of the Secrets")
	names := cmd.Flags().StringSlice("dns", nil, "names and addresses of the members")
	user := cmd.Flags().String("user", "", "user of the nodes")
	dir := cmd.Flags().String("account", "/var/run/secrets/kubernetes.io/serviceaccount",
		"directory with the token, namespace and ca.crt of the service account")
	api := cmd.Flags().String("api", "https://kubernetes.default.svc",
		"URL of the API server, unless the environment has its address")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *name == "" || len(*names) == 0 || *user == "" {
			return cli.UsageError("--name, --dns or --user is empty: give all three")
		}
		url := *api
		if h, p := a.Getenv("KUBERNETES_SERVICE_HOST"), a.Getenv("KUBERNETES_SERVICE_PORT"); h != "" && p != "" {
			url = "https://" + net.JoinHostPort(h, p)
		}
		k, err := inCluster(*dir, url)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Minute)
		defer cancel()
		return ensure(ctx, k, a.Out, *name, *user, *names, time.Now())
	}
	return cmd
}

// secret is a Secret, as far as it matters here.
type secret struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   map[string]any    `json:"metadata"`
	Type       string            `json:"type"`
	Data       map[string][]byte `json:"data"`
}

// wanted are the certificates that the authority signs.
type wanted struct {
	name, common string
	dns          []string
}

// ensure makes and renews the Secrets.
func ensure(ctx context.Context, k *kubernetes, out io.Writer, name, user string, dns []string, now time.Time) error {
	ca, err := k.get(ctx, name+"-ca")
	if err != nil {
		return err
	}
	if ca == nil {
		p, err := certs.Issue(nil, name+"-ca", nil, now, authorityLife)
		if err != nil {
			return err
		}
		ca = &secret{Data: dataOf(p, p)}
		if err := k.put(ctx, name+"-ca", ca, false); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s-ca: made\n", name)
	}
	authority, err := certs.ParsePair(ca.Data["tls.crt"], ca.Data["tls.key"])
	if err != nil {
		return fmt.Errorf("read Secret %s-ca: %w; delete it, and those of %s that it signed, to begin again", name, err,
			name)
	}
	for _, w := range []wanted{
		{name + "-server", memberName, dns}, {name + "-client", user, nil}, {name + "-root", rootName, nil},
	} {
		old, err := k.get(ctx, w.name)
		if err != nil {
			return err
		}
		why := "made"
		if old != nil {
			if why = stale(old.Data, authority, w, now); why == "" {
				fmt.Fprintf(out, "%s: unchanged\n", w.name)
				continue
			}
		}
		p, err := certs.Issue(authority, w.common, w.dns, now, leafLife)
		if err != nil {
			return err
		}
		s := &secret{}
		if old != nil {
			s = old
		}
		s.Data = dataOf(p, authority)
		if err := k.put(ctx, w.name, s, old != nil); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: %s\n", w.name, why)
	}
	return nil
}

// stale returns why a certificate has to be replaced; "": it has not.
func stale(data map[string][]byte, authority *certs.Pair, w wanted, now time.Time) string {
	p, err := certs.ParsePair(data["tls.crt"], data["tls.key"])
	if err != nil {
		return "made again: " + err.Error()
	}
	life := p.Cert.NotAfter.Sub(p.Cert.NotBefore)
	switch {
	case p.Cert.CheckSignatureFrom(authority.Cert) != nil,
		!bytes.Equal(data["ca.crt"], authority.CertPEM):
		return "made again: another authority signed it"
	case p.Cert.Subject.CommonName != w.common:
		return "made again: it is of " + p.Cert.Subject.CommonName
	case p.Cert.NotAfter.Sub(now) < life/3:
		return "renewed: it would have expired at " + p.Cert.NotAfter.UTC().Format(time.RFC3339)
	}
	for _, n := range w.dns {
		if p.Cert.VerifyHostname(n) != nil {
			return "made again: it lacks " + n
		}
	}
	return ""
}

// dataOf is the contents of a Secret, as cert-manager writes it.
func dataOf(p, authority *certs.Pair) map[string][]byte {
	return map[string][]byte{"tls.crt": p.CertPEM, "tls.key": p.KeyPEM, "ca.crt": authority.CertPEM}
}

// kubernetes are the Secrets of a namespace, over the API.
type kubernetes struct {
	client         *http.Client
	url, namespace string
	token          string
}

// inCluster connects as the service account of the pod.
func inCluster(dir, url string) (*kubernetes, error) {
	token, err1 := os.ReadFile(filepath.Join(dir, "token"))
	namespace, err2 := os.ReadFile(filepath.Join(dir, "namespace"))
	ca, err3 := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, fmt.Errorf("service account: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(dir, "ca.crt"))
	}
	trust := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return &kubernetes{
		client:    &http.Client{Transport: &http.Transport{TLSClientConfig: trust}},
		url:       url,
		namespace: string(bytes.TrimSpace(namespace)),
		token:     string(bytes.TrimSpace(token)),
	}, nil
}

func (k *kubernetes) do(ctx context.Context, method, name string, body any) (int, []byte, error) {
	var in io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		in = bytes.NewReader(b)
	}
	url := k.url + "/api/v1/namespaces/" + k.namespace + "/secrets"
	if name != "" {
		url += "/" + name
	}
	r, err := http.NewRequestWithContext(ctx, method, url, in)
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Authorization", "Bearer "+k.token)
	r.Header.Set("Content-Type", "application/json")
	answer, err := k.client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(answer.Body, answerLimit))
	return answer.StatusCode, b, err
}

// failed is the error of an answer that is none of those expected.
func failed(what string, status int, b []byte) error {
	var s struct{ Message string }
	_ = json.Unmarshal(b, &s)
	return fmt.Errorf("%s: %d %s: %s", what, status, http.StatusText(status), cli.Show(s.Message))
}

// get returns nil if there is no such Secret.
func (k *kubernetes) get(ctx context.Context, name string) (*secret, error) {
	status, b, err := k.do(ctx, http.MethodGet, name, nil)
	switch {
	case err != nil:
		return nil, fmt.Errorf("get Secret %s: %w", name, err)
	case status == http.StatusNotFound:
		return nil, nil
	case status != http.StatusOK:
		return nil, failed("get Secret "+name, status, b)
	}
	s := &secret{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("get Secret %s: %w", name, err)
	}
	return s, nil
}

// put creates a Secret that get did not return, and fails if another process was first.
func (k *kubernetes) put(ctx context.Context, name string, s *secret, exists bool) error {
	method, path := http.MethodPut, name
	if !exists {
		method, path = http.MethodPost, ""
		s.Metadata = map[string]any{"name": name}
		s.Type = "kubernetes.io/tls"
	}
	s.APIVersion, s.Kind = "v1", "Secret"
	status, b, err := k.do(ctx, method, path, s)
	switch {
	case err != nil:
		return fmt.Errorf("write Secret %s: %w", name, err)
	case status != http.StatusOK && status != http.StatusCreated:
		return failed("write Secret "+name, status, b)
	}
	return nil
}
