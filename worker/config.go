package worker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
)

// Config says which worker is opened, and how nodes are reached. Client.Targets or
// Service is required; every other field may be left at zero.
type Config struct {
	// Name is what people know the worker by, in "allocator status": 1 to 64
	// characters. "" is the host's name and the number of the process.
	Name string

	// Client says how nodes are reached: targets, TLS, token. Modes, order and
	// prefetching do not apply.
	Client client.Options
	// Service is what is asked instead of nodes, such as embed.Allocator.Workers, which
	// needs no server.
	Service pb.WorkerServiceClient

	// Unit is how long a unit of the generator's time is; 0 means 1 ms. Sonyflake's is
	// 10 ms. Permit is then asked with the first millisecond of an ID's unit.
	Unit time.Duration

	// Watermark has the space's watermark cover this worker, and wait for it: at each extension
	// the worker tells up to where it has got, and Permit refuses what is older, from a second
	// before. So the generator must ask Permit for each ID, and then use it at once. The
	// watermark is behind by up to a third of worker.window then. Without it, and with nodes
	// that do not know it, answers name the number as not covered.
	Watermark bool

	// Floor, if set, is asked before each extension and says, in Unix ms, below which time the program uses no ID any
	// more: for programs that hand intervals of time on, after Permit of their first and last unit. The watermark is
	// told so, as with Watermark. It must not wait.
	Floor func() int64

	// OpenTimeout bounds Open, whatever its context allows; 0 means
	// DefaultOpenTimeout.
	OpenTimeout time.Duration
}

// Values of Config.
const (
	// DefaultOpenTimeout outlasts the interval of a crashed worker, by default.
	DefaultOpenTimeout = 90 * time.Second
	// maxUnit is the longest unit of any layout.
	maxUnit = time.Minute
	// MaxName is the longest name of a worker, in bytes.
	MaxName = 64
)

// withDefaults checks c and fills it in. The error names the field.
func (c Config) withDefaults(host string, pid int) (Config, error) {
	c.Unit = cmp.Or(c.Unit, time.Millisecond)
	c.OpenTimeout = cmp.Or(c.OpenTimeout, DefaultOpenTimeout)
	if c.Name == "" {
		own := fmt.Sprintf("-%d", pid)
		c.Name = host[:min(len(host), MaxName-len(own))] + own
	}
	fail := func(format string, args ...any) (Config, error) {
		return c, fmt.Errorf("%w: option "+format, append([]any{ErrConfig}, args...)...)
	}
	switch {
	case len(c.Name) > MaxName:
		return fail("Name: %d characters are too many: at most %d", len(c.Name), MaxName)
	case c.Unit < time.Millisecond || c.Unit > maxUnit || c.Unit%time.Millisecond != 0:
		return fail("Unit: %v is not a whole number of milliseconds within 1ms and %v", c.Unit, maxUnit)
	case c.OpenTimeout < 0:
		return fail("OpenTimeout: %v is negative", c.OpenTimeout)
	case c.Service != nil && len(c.Client.Targets) > 0:
		return fail("Service: Client.Targets are set as well: set one of them")
	case c.Service == nil && len(c.Client.Targets) == 0:
		return fail("Client.Targets: is empty: name the gRPC address of a node, such as localhost:9000")
	}
	// An attempt waits for two or three transactions of etcd, and calls are repeated.
	c.Client.AttemptTimeout = cmp.Or(c.Client.AttemptTimeout, 2*time.Second)
	c.Client.Timeout = cmp.Or(c.Client.Timeout, 10*time.Second)
	c.Client.Mode = client.Direct
	return c, nil
}

// typed returns an error of a service as package client has it.
func typed(err error) error {
	if r := client.RefusalOf(err, ""); r != nil {
		return r
	}
	return err
}

// is reports whether err is a refusal for one of the reasons.
func is(err error, reasons ...client.Reason) bool {
	return slices.ContainsFunc(reasons, func(r client.Reason) bool {
		return errors.Is(err, &client.Refusal{Reason: r})
	})
}
