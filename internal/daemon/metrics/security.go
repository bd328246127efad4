package metrics

import (
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/status/feed"
)

// Security is the source of the series about connections, certificates and
// tokens. It lists only what the node has.
type Security struct {
	Listeners    map[string]quota.Stats // by one of listenerNames
	Files        map[string]feed.Files  // tls, tokens, gossip_keys and etcd_tls
	Certificates map[string]time.Time   // The certificates in use, server and etcd_client, expire at these times.
	Held         int64                  // bytes that connections hold
	HeldLimit    int64                  // 0: none
}

// listenerNames are the values of the label listener.
var listenerNames = []string{"grpc", "http", "admin", "resp"}

func collectSecurity(s Security, now clock.Millis, gauge, counter func(name string, v float64, labels ...string)) {
	for name, l := range s.Listeners {
		gauge(connections, float64(l.Open), name)
		counter(connectionsRefused, float64(l.Refused), name)
		counter(connectionsSlowed, float64(l.Slowed), name)
		for cause, n := range l.Closed {
			counter(connectionsClosed, float64(n), name, cause)
		}
	}
	gauge(connectionMemory, float64(s.Held))
	gauge(connectionMemoryLimit, float64(s.HeldLimit))
	for name, f := range s.Files {
		gauge(reloadFailing, flag(f.Failing), name)
		counter(reloads, float64(f.Reloads), name)
	}
	for name, expires := range s.Certificates {
		gauge(certificateRemaining, expires.Sub(now.Time()).Seconds(), name)
	}
}
