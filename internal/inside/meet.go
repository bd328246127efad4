package inside

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/member"
)

// Members that have no data yet meet on the port where etcd will listen: each says that it waits,
// and asks the others. Where etcd listens already, it answers with its members instead.
const (
	meetPath    = "/allocator/waiting"
	membersPath = "/members" // etcd answers there
	clusterID   = "X-Etcd-Cluster-ID"
	askTimeout  = 2 * time.Second
	maxAnswer   = 256 << 10
)

// tlsOf returns the configuration of both sides of a connection between members; nil: no TLS.
func tlsOf(files config.TLS) (*tls.Config, error) {
	if files == (config.TLS{}) {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
	if err != nil {
		return nil, fmt.Errorf("etcd.tls.cert: %w", err)
	}
	text, err := os.ReadFile(files.CA)
	if err != nil {
		return nil, fmt.Errorf("etcd.tls.ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("etcd.tls.ca: %s has no certificate in PEM", files.CA)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{pair},
		RootCAs:      pool,
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
	}, nil
}

// checkTLS says why the other members would not accept this member's certificate.
func checkTLS(files config.TLS, host string, now time.Time) error {
	c, err := tlsOf(files)
	if c == nil || err != nil {
		return err
	}
	leaf := c.Certificates[0].Leaf
	if err := leaf.VerifyHostname(host); err != nil {
		return fmt.Errorf("etcd.tls.cert: %w: it is not for %s; \"allocator etcd certs --hosts %s\" makes one",
			err, host, host)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := leaf.Verify(x509.VerifyOptions{
			Roots:       c.RootCAs,
			CurrentTime: now,
			KeyUsages:   []x509.ExtKeyUsage{usage},
		})
		var invalid x509.CertificateInvalidError
		if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
			return fmt.Errorf("etcd.tls.cert: it is valid from %s to %s, and the clock of this machine is at %s: "+
				"correct the clock, or make another certificate", stamp(leaf.NotBefore), stamp(leaf.NotAfter),
				stamp(now))
		}
		if err != nil {
			return fmt.Errorf("etcd.tls.cert: %w: members show it to each other both ways, so etcd.tls.ca has to "+
				"sign it for servers and for clients", err)
		}
	}
	return nil
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// meeting answers the other members until it is closed.
type meeting struct{ server *http.Server }

func (i *Inside) meet() (*meeting, error) {
	c, err := tlsOf(i.cfg.Etcd.TLS)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(i.ip, strconv.Itoa(i.cfg.Etcd.Inside.PeerPort)))
	if err != nil {
		return nil, fmt.Errorf("%w; is another etcd running there?", err)
	}
	if c != nil {
		l = tls.NewListener(l, c)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+meetPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(i.waiting())
	})
	m := &meeting{&http.Server{
		Handler:           mux,
		ReadHeaderTimeout: askTimeout,
		WriteTimeout:      askTimeout,
		IdleTimeout:       askTimeout,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          slog.NewLogLogger(i.cfg.Log.Handler(), slog.LevelDebug),
	}}
	go func() { _ = m.server.Serve(l) }()
	return m, nil
}

func (m *meeting) close() {
	if m != nil {
		_ = m.server.Close()
	}
}

func (i *Inside) waiting() member.Waiting {
	return member.Waiting{
		Host:     i.host,
		Node:     i.cfg.Node,
		Process:  i.process,
		Join:     i.join,
		Insecure: i.cfg.Etcd.TLS == config.TLS{},
		Now:      time.Now(),
	}
}

// ask asks the other addresses of the list.
func (i *Inside) ask(ctx context.Context) map[string]member.Answer {
	out := map[string]member.Answer{}
	c, err := tlsOf(i.cfg.Etcd.TLS)
	var from net.Dialer
	if ip := net.ParseIP(i.ip); ip != nil && !ip.IsLoopback() {
		// etcd compares the address of the caller with its certificate, and calls from there too.
		from.LocalAddr = &net.TCPAddr{IP: ip}
	}
	client := &http.Client{
		Timeout: askTimeout,
		Transport: &http.Transport{
			DialContext:       from.DialContext,
			TLSClientConfig:   c,
			DisableKeepAlives: true,
		},
	}
	var mu sync.Mutex // guards out
	var all sync.WaitGroup
	for _, host := range i.join {
		if host == i.host {
			continue
		}
		if err != nil {
			out[host] = member.Answer{Err: err}
			continue
		}
		all.Go(func() {
			a := askOne(ctx, client, i.cfg.Etcd.PeerURL(host))
			mu.Lock()
			defer mu.Unlock()
			out[host] = a
		})
	}
	all.Wait()
	return out
}

// askOne asks one address what is there.
func askOne(ctx context.Context, client *http.Client, base string) (a member.Answer) {
	get := func(path string) (code int, body []byte, header http.Header, err error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
		if err != nil {
			return 0, nil, nil, err
		}
		r, err := client.Do(req)
		if err != nil {
			return 0, nil, nil, explain(err)
		}
		defer r.Body.Close()
		body, err = io.ReadAll(io.LimitReader(r.Body, maxAnswer))
		return r.StatusCode, body, r.Header, err
	}
	code, body, _, err := get(meetPath)
	switch {
	case err != nil:
		return member.Answer{Err: err}
	case code == http.StatusOK:
		a.Waiting, a.Err = ParseWaiting(body)
		return a
	}
	code, body, header, err := get(membersPath)
	if err != nil {
		return member.Answer{Err: err}
	}
	if code != http.StatusOK {
		return member.Answer{Err: fmt.Errorf("HTTP status %d: no etcd inside is there", code)}
	}
	a.Members, a.Err = ParseMembers(body)
	if a.Err == nil {
		a.Cluster, a.Err = strconv.ParseUint(header.Get(clusterID), 16, 64)
	}
	if a.Err != nil {
		return member.Answer{Err: a.Err}
	}
	return a
}

// explain says what to do about a certificate whose time is wrong.
func explain(err error) error {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.Expired {
		return fmt.Errorf("%w: compare the clocks of both machines", err)
	}
	if u := errors.Unwrap(err); u != nil {
		return u // without the method and the URL
	}
	return err
}

// ParseWaiting reads what a waiting member answers.
func ParseWaiting(body []byte) (*member.Waiting, error) {
	var w member.Waiting
	if err := json.Unmarshal(body, &w); err != nil {
		return nil, fmt.Errorf("its answer is not that of a waiting member: %w", err)
	}
	if w.Host == "" || w.Process == "" {
		return nil, errors.New("its answer is not that of a waiting member: it has no host and process")
	}
	return &w, nil
}

// ParseMembers reads the list of members that etcd gives to other members.
func ParseMembers(body []byte) (out []member.Member, err error) {
	var list []struct {
		ID      uint64   `json:"id"`
		Peers   []string `json:"peerURLs"`
		Name    string   `json:"name"`
		Clients []string `json:"clientURLs"`
		Learner bool     `json:"isLearner"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("its answer is not that of an etcd: %w", err)
	}
	for _, m := range list {
		out = append(out, member.Member{ID: m.ID, Name: m.Name, Peers: m.Peers, Clients: m.Clients, Learner: m.Learner})
	}
	return out, nil
}
