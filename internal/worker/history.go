package worker

import (
	"fmt"

	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// checkSpace takes over config and era of a view, or returns why no view of this store
// can be used.
func (c *Call) checkSpace(v lease.View) *node.Refusal {
	known := c.known.Status
	switch {
	case !v.Config.Exists() || !v.Era.Exists():
		return rewound("the space's config or era is gone")
	case v.Config.Err != nil, v.Era.Err != nil:
		return &node.Refusal{Reason: node.Starting, RetryAfter: retry, Message: "the space's config or era is unreadable: ask its operator"}
	case v.Config.Value.Pool != known.Space.Pool:
		return rewound("the space is another one: pool %s, was %s", v.Config.Value.Pool, known.Space.Pool)
	}
	c.config, c.era = v.Config, v.Era
	return nil
}

// checkHistory is checkSpace for a view that was read after the node knew what known
// says, and also finds whether it is of an earlier point in history, as protocol.Machine
// does. The node finds that out for itself, and stops.
func (c *Call) checkHistory(v lease.View) *node.Refusal {
	if r := c.checkSpace(v); r != nil {
		return r
	}
	known, era := c.known.Status, v.Era.Value
	switch {
	case era.Number < known.Era.Number:
		return rewound("the era went back from %d to %d", known.Era.Number, era.Number)
	case era.Cluster != v.Cluster:
		return rewound("etcd's cluster is %x, but era %d began on %x", v.Cluster, era.Number, era.Cluster)
	case era.Number > known.Era.Number: // the node has not read it yet
	case era != known.Era:
		return rewound("era %d was rewritten", era.Number)
	case v.Cluster != known.Cluster:
		return rewound("etcd's cluster changed from %x to %x", known.Cluster, v.Cluster)
	case v.Revision < known.Revision:
		return rewound("etcd's revision went back from %d to %d", known.Revision, v.Revision)
	}
	return nil
}

func rewound(format string, args ...any) *node.Refusal {
	return &node.Refusal{Reason: node.HistoryRewound, RetryAfter: retry, Message: "etcd's history cannot be trusted: " + fmt.Sprintf(format, args...)}
}
