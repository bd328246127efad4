package metrics

import (
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// Security is what the series about connections, certificates and tokens are
// made of. What a node does not have is not in it.
type Security struct {
	Doors        []Door
	Files        []Files
	Certificates []Certificate
}

// Door is a port of ours.
type Door struct {
	Name          string // one of Doors
	Open, Refused int64  // connections now; and turned away so far
}

// Files are read again when they change.
type Files struct {
	Name    string // one of fileKinds
	Failing bool   // they cannot be used as they are
	Reloads int64
}

// Certificate is one that is in use.
type Certificate struct {
	Name    string // one of certificateKinds
	Expires time.Time
}

// Doors are the values of the label door.
var Doors = []string{"grpc", "http", "admin", "resp"}

var (
	fileKinds        = []string{"tls", "tokens", "etcd_tls"}
	certificateKinds = []string{"server", "etcd_client"}
)

func collectSecurity(s Security, now clock.Millis, gauge, counter func(name string, v float64, labels ...string)) {
	for _, d := range s.Doors {
		gauge(connections, float64(d.Open), d.Name)
		counter(connectionsRefused, float64(d.Refused), d.Name)
	}
	for _, f := range s.Files {
		gauge(reloadFailing, flag(f.Failing), f.Name)
		counter(reloads, float64(f.Reloads), f.Name)
	}
	for _, c := range s.Certificates {
		gauge(certificateRemaining, c.Expires.Sub(now.Time()).Seconds(), c.Name)
	}
}
