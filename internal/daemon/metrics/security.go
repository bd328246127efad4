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

func collectSecurity(s Security, now clock.Millis, out sink) {
	for name, l := range s.Listeners {
		out.send(connections, float64(l.Open), name)
		out.send(connectionsRefused, float64(l.Refused), name)
		out.send(connectionsSlowed, float64(l.Slowed), name)
		for cause, n := range l.Closed {
			out.send(connectionsClosed, float64(n), name, cause)
		}
	}
	out.send(connectionMemory, float64(s.Held))
	out.send(connectionMemoryLimit, float64(s.HeldLimit))
	for name, f := range s.Files {
		out.flag(reloadFailing, f.Failing, name)
		out.send(reloads, float64(f.Reloads), name)
	}
	for name, expires := range s.Certificates {
		out.send(certificateRemaining, expires.Sub(now.Time()).Seconds(), name)
	}
}
