package embed

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease"
)

// Config says what a program is as a node. Endpoints is required, and Gossip where
// etcd is not on this machine alone; every other field may be left at zero.
//
// All other settings of a node, such as etcd.tls.ca or gossip.key-file, are in
// Settings, File or Env, by the keys of docs/reference/allocator.sample.yaml. The named fields
// come before Settings, these before Env, and that before File.
type Config struct {
	Endpoints []string // Endpoints are etcd's, as URLs or host:port.
	Space     string   // "" is "default"

	// Name is the program's as a node, for people. A program that starts under the
	// name of one that died may take that one's sid over, so no two that live have
	// the same. "" is the host's name with the number of the process, and of the
	// allocator if it is not the only one there; containers that share the host's
	// name may share such numbers too, and need names.
	Name string

	// SIDs is which sids the program may take: "first-last", or All. "" is what
	// sid-range says, and without that DefaultSIDs; in layout fleet there is no
	// default.
	SIDs string
	// Reserve is how many sids of the range Open must leave free, for programs
	// that are restarted before their old sid is. It is looked at before a sid is
	// taken: programs that open at the same moment can take one more each.
	Reserve int

	// Gossip is the ip:port to listen on, UDP and TCP, where the other nodes reach
	// this program; port 0 is any. Beyond loopback the setting gossip.key-file is
	// needed too. "" is what listen.gossip says, and without that 127.0.0.1:0
	// where etcd is on loopback. NoGossip is none; the package comment says what
	// that costs.
	Gossip string

	// OpenTimeout bounds Open, whatever its context allows; 0 means
	// DefaultOpenTimeout.
	OpenTimeout time.Duration

	Settings map[string]string // by key
	Env      []string          // variables ALLOCATOR_…, such as os.Environ(); nil: none is read
	File     string            // path of a YAML file; "": none

	Logger *slog.Logger // nil: nothing is logged
}

// Values of Config.
const (
	// All lets the program take any sid of the space.
	All = "all"
	// DefaultSIDs is the quarter of layout scalable that programs have, where
	// servers have the other three.
	DefaultSIDs = "24-31"
	// NoGossip leaves the program's clock uncompared.
	NoGossip = "none"
	// DefaultOpenTimeout outlasts a crashed predecessor's lease and window.
	DefaultOpenTimeout = time.Minute
)

// ErrConfig says that a Config cannot work. It comes wrapped: the text behind it names
// the field or key.
var ErrConfig = errors.New("embed")

// maxWorkers is how many workers a program may hold, unless worker.per-client says it.
const maxWorkers = 128

// node returns the settings of the node that c asks for. number is asked for one
// that tells apart the allocators of this process, if c has no name.
func (c Config) node(number func() int) (config.Config, error) {
	fail := func(err error) (config.Config, error) { return config.Config{}, fmt.Errorf("%w: %w", ErrConfig, err) }
	if c.Reserve < 0 || c.OpenTimeout < 0 {
		return fail(fmt.Errorf("options Reserve %d and OpenTimeout %v must not be negative", c.Reserve, c.OpenTimeout))
	}
	given := map[string]string{}
	maps.Copy(given, c.Settings)
	for key, v := range map[string]string{
		"etcd.endpoints": strings.Join(c.Endpoints, ","), "space": c.Space, "node.name": c.Name,
		"sid-range": c.SIDs, "listen.gossip": c.Gossip,
	} {
		if v != "" {
			given[key] = v
		}
	}
	if c.SIDs == All {
		given["sid-range"] = ""
	}
	if c.Gossip == NoGossip {
		given["listen.gossip"] = ""
	}
	base := config.Default()
	host := base.Node.Name
	base.Node.Name = ownName(host, 1)
	base.Listen.Gossip = ""
	n, settings, err := config.Load(config.Sources{File: c.File, Env: c.Env, Given: given, Base: &base})
	if err != nil {
		return fail(err)
	}
	said := func(key string) bool {
		return slices.ContainsFunc(settings,
			func(s config.Setting) bool { return s.Key == key && s.Source != "default" })
	}
	if !said("node.name") {
		n.Node.Name = ownName(host, number())
	}
	if len(n.Etcd.Endpoints) == 0 {
		return fail(errors.New("option Endpoints: is empty: name the members of etcd, such as http://127.0.0.1:2379"))
	}
	if !said("sid-range") {
		if n.Layout != flake.Scalable {
			return fail(fmt.Errorf("option SIDs: layout %v has no default: name the range for programs, such as "+
				"768-1023, or All", n.Layout))
		}
		if n.SIDRange, err = lease.ParseSIDRange(DefaultSIDs); err != nil {
			return fail(err)
		}
	}
	if !said("listen.gossip") {
		if !slices.ContainsFunc(n.Etcd.Endpoints, remote) {
			n.Listen.Gossip = "127.0.0.1:0"
		} else {
			return fail(errors.New("option Gossip: is empty: name the ip:port at which the other nodes reach this " +
				"program, or NoGossip"))
		}
	}
	if n.Worker.PerClient == 0 { // The program is the one client, and has no listener for others.
		n.Worker.PerClient = maxWorkers
	}
	// A file or environment shared with servers names their listeners, not ours.
	n.Listen = config.Listen{Gossip: n.Listen.Gossip}
	n.Advertise = config.Advertise{Gossip: n.Advertise.Gossip}
	n.Drain.Delay = 0 // no load balancer has to notice
	if err := n.Validate(); err != nil {
		return fail(err)
	}
	return n, nil
}

// ownName returns a name that no other process of the machine has, and no other
// allocator of this one: by the name of one that lives its sid could be taken over.
func ownName(host string, number int) string {
	own := fmt.Sprintf("-%d", os.Getpid())
	if number > 1 {
		own += fmt.Sprintf("-%d", number)
	}
	return host[:min(len(host), 63-len(own))] + own
}

// numbers are those of the allocators without a name that live in this process,
// from 1 on.
type numbers struct {
	mu   sync.Mutex // guards used
	used map[int]bool
}

var living numbers

func (n *numbers) take() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.used == nil {
		n.used = map[int]bool{}
	}
	i := 1
	for n.used[i] {
		i++
	}
	n.used[i] = true
	return i
}

func (n *numbers) giveBack(i int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.used, i)
}

// remote reports whether an endpoint of etcd may be on another machine.
func remote(endpoint string) bool {
	host := member.HostOf(endpoint)
	return host != "localhost" && !net.ParseIP(host).IsLoopback()
}
