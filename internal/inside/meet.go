package inside

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
)

// Members that have no data yet, or restored data alone, meet on the port where etcd will listen: each
// says that it waits, and asks the others. Where etcd listens already, it answers with its members instead.
const (
	meetPath    = "/allocator/waiting"
	membersPath = "/members" // etcd answers there
	clusterID   = "X-Etcd-Cluster-ID"
)

// tlsOf returns the configuration of both sides of a connection between members, from the files as
// they are now; nil: no TLS.
func tlsOf(files config.TLS) (*tls.Config, error) {
	if files == (config.TLS{}) {
		return nil, nil
	}
	from := certs.ClientFiles{CA: files.CA, Cert: files.Cert, Key: files.Key, Prefix: "etcd.tls."}
	c, err := certs.NewClient("etcd", from, tls.VersionTLS12, nil)
	if err != nil {
		return nil, err
	}
	both := c.Config()
	both.ClientCAs, both.ClientAuth = both.RootCAs, tls.RequireAndVerifyClientCert
	return both, nil
}

// checkTLS says why the other members would not accept this member's certificate.
func checkTLS(files config.TLS, host string, now time.Time) error {
	c, err := tlsOf(files)
	if c == nil || err != nil {
		return err
	}
	leaf, between := c.Certificates[0].Leaf, x509.NewCertPool()
	for _, der := range c.Certificates[0].Certificate[1:] {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("etcd.tls.cert: a certificate after the first: %w", err)
		}
		between.AddCert(cert)
	}
	if err := leaf.VerifyHostname(host); err != nil {
		return fmt.Errorf("etcd.tls.cert: %w: it is not for %s; \"allocator etcd certs --hosts %s\" makes one",
			err, host, host)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := leaf.Verify(x509.VerifyOptions{
			Roots:         c.RootCAs,
			Intermediates: between,
			CurrentTime:   now,
			KeyUsages:     []x509.ExtKeyUsage{usage},
		}); err != nil {
			if invalid := (x509.CertificateInvalidError{}); errors.As(err, &invalid) && invalid.Reason == x509.Expired {
				return fmt.Errorf("etcd.tls.cert or etcd.tls.ca: %w: %w", certs.ErrTime, err)
			}
			return fmt.Errorf("etcd.tls.cert: %w: members show it to each other both ways, so etcd.tls.ca has to "+
				"sign it for servers and for clients", err)
		}
	}
	return nil
}

// meet answers the other members until the server is closed: also whether own intends to begin the cluster, then or
// since.
func (i *Inside) meet(own member.Own, since *atomic.Bool) (*http.Server, error) {
	c, err := i.TLS()
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(i.Etcd.IP, strconv.Itoa(i.cfg.Etcd.Inside.PeerPort)))
	if err != nil {
		return nil, fmt.Errorf("%w; is another etcd running there?", err)
	}
	if c != nil {
		l = tls.NewListener(l, c)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+meetPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(member.Waiting{Host: own.Host, Node: own.Node, Process: own.Process,
			Join: own.Join, Token: own.Token, Intends: own.Intends || since.Load(), Now: time.Now()})
	})
	server := meet.Server(mux, i.cfg.Log)
	server.WriteTimeout = meet.Timeout
	go func() { _ = server.Serve(l) }()
	return server, nil
}

// ask asks the other addresses of the list.
func (i *Inside) ask(ctx context.Context, own member.Own) map[string]member.Answer {
	out := map[string]member.Answer{}
	var mu sync.Mutex // guards out
	var all sync.WaitGroup
	for _, host := range own.Join {
		if host == own.Host {
			continue
		}
		all.Go(func() {
			a := i.AskAt(ctx, i.Peer(host))
			mu.Lock()
			defer mu.Unlock()
			out[host] = a
		})
	}
	all.Wait()
	return out
}
