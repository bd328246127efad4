package metrics

import (
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// Security is the source of the series about connections, certificates and
// tokens. It lists only what the node has.
type Security struct {
	Listeners    []Listener
	Files        []Files
	Certificates []Certificate
	Held         int64 // bytes that connections hold
	HeldLimit    int64 // 0: none
}

// Listener is one open port of the node.
type Listener struct {
	Name          string           // one of ListenerNames
	Open, Refused int64            // open connections; connections closed when they were accepted
	Slowed        int64            // times that a connection had to wait
	Closed        map[string]int64 // by cause
}

// Files are files that are loaded again when they change.
type Files struct {
	Name    string // one of fileKinds
	Failing bool   // their current contents cannot be used
	Reloads int64
}

// Certificate is a certificate in use.
type Certificate struct {
	Name    string // one of certificateKinds
	Expires time.Time
}

// ListenerNames are the values of the label listener.
var ListenerNames = []string{"grpc", "http", "admin", "resp"}

var (
	fileKinds        = []string{"tls", "tokens", "gossip_keys", "etcd_tls"}
	certificateKinds = []string{"server", "etcd_client"}
)

func collectSecurity(s Security, now clock.Millis, gauge, counter func(name string, v float64, labels ...string)) {
	for _, d := range s.Listeners {
		gauge(connections, float64(d.Open), d.Name)
		counter(connectionsRefused, float64(d.Refused), d.Name)
		counter(connectionsSlowed, float64(d.Slowed), d.Name)
		for cause, n := range d.Closed {
			counter(connectionsClosed, float64(n), d.Name, cause)
		}
	}
	gauge(connectionMemory, float64(s.Held))
	gauge(connectionMemoryLimit, float64(s.HeldLimit))
	for _, f := range s.Files {
		gauge(reloadFailing, flag(f.Failing), f.Name)
		counter(reloads, float64(f.Reloads), f.Name)
	}
	for _, c := range s.Certificates {
		gauge(certificateRemaining, c.Expires.Sub(now.Time()).Seconds(), c.Name)
	}
}
