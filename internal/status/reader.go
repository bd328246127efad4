package status

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/watermark"
)

// Directory reads the store. Its calls honor ctx and are safe for concurrent use.
type Directory interface {
	// Load reads the whole space at one revision.
	Load(ctx context.Context) (lease.View, error)
	// Holder returns the entry of the ledger that covers sid at a Unix time: the
	// last one that began at or before it. The result is false if there is none.
	Holder(ctx context.Context, sid flake.SID, at clock.Millis) (lease.LedgerLine, bool, error)
}

// Config is what a Reader needs. Node, Directory and Space are required.
type Config struct {
	Node      *node.Node
	Directory Directory
	Space     string       // its name in the configuration
	Version   string       // Answers show it as this node's version.
	Logger    *slog.Logger // nil: slog.Default
	// Clocks, if set, returns the measurements of this node's clock and its peers'.
	// It must be safe for concurrent use.
	Clocks func() clock.Report
	// Reports, if set, returns what each live member of gossip reported of itself, by instance,
	// and if look is set, has them asked again for some seconds; nil: gossip does not run yet.
	// It must be safe for concurrent use.
	Reports func(look bool) map[string]Heard
	// Ask, if set, asks them for an answer that is not kept up to date by Reports, and returns
	// when it has come or does not. It must be safe for concurrent use.
	Ask func(context.Context)
	// Members, if set, asks the members of etcd. It must be safe for concurrent use.
	Members func(context.Context) Etcd
	// Work, if set, returns how requests of this node went lately, and how many IDs a second it
	// issued. It must be safe for concurrent use.
	Work func() (w Work, rate int64)
	// Callers, if set, returns who holds most of this node, and no more than a person reads. It must be safe for
	// concurrent use.
	Callers func() []quota.Caller
	Marks   *watermark.Reader // It reads the watermark; nil: nobody does.
	Bounds  lease.Bounds      // They say which records no sound clock can have written.
	// Expected is how many nodes there should be; 0: not known.
	Expected int
}

// Heard is what was heard of another node.
type Heard struct {
	Report *Report       // nil: it sent none
	Owed   time.Duration // since it was first asked for one that it has not sent; 0: it has
}

// Reader answers requests about IDs and the cluster. It is safe for concurrent
// use.
type Reader struct {
	cfg    Config
	node   *node.Node
	clock  clock.Source
	format flake.Format
	log    *slog.Logger

	failures rate.Sometimes // It logs them.

	loads   singleflight.Group // reads of the whole space, at most one at a time
	lookups chan struct{}      // a slot for each read of the ledger that is under way
	making  sync.Mutex         // held while a picture is made, so that these take one processor at most

	ending context.Context // It ends with the Reader: set by New, like end.
	end    context.CancelFunc
	reads  sync.WaitGroup // those that begin started

	mu       sync.Mutex // guards the rest; never held during a read
	read     reading
	readErr  error            // result of the latest read of the space
	failedAt clock.Mono       // when that was returned
	failed   bool             // the latest read of etcd failed
	members  *Etcd            // what members of etcd answered lately; nil: nothing
	knownAt  clock.Mono       // when they did
	askedAt  clock.Mono       // when they were asked last
	asking   chan struct{}    // closed when those that are asked now have answered; nil: none are
	doing    map[string]doing // what nodes did at the latest Glance, by instance
	notedAt  int64            // when that was, Unix ms; 0: there was none
}

// doing is what a node does, as Node.What has it, and since when.
type doing struct {
	what  string // "": it is not listed
	since int64  // Unix ms
	began bool   // A Glance before it saw the node do something else, or not yet started.
	wrong int64  // since when a majority finds its clock wrong, Unix ms; 0: none does
}

// New returns a Reader.
func New(cfg Config) *Reader {
	if cfg.Reports == nil {
		cfg.Reports = func(bool) map[string]Heard { return nil }
	}
	g := cfg.Node.Config().Gen
	ending, end := context.WithCancel(context.Background())
	return &Reader{
		ending: ending, end: end,
		cfg: cfg, node: cfg.Node, clock: cfg.Node.Clock(), log: cmp.Or(cfg.Logger, slog.Default()),
		format:   flake.Format{Layout: g.Layout, Epoch: int64(g.Epoch)},
		lookups:  make(chan struct{}, maxLookups),
		failures: rate.Sometimes{Interval: time.Minute},
	}
}

// End ends the reads of etcd that are under way, and returns when they have ended. None begins then.
func (r *Reader) End() {
	r.mu.Lock()
	r.end()
	r.mu.Unlock()
	r.reads.Wait()
}

// begin returns the context of a read of etcd that goes on without its caller, and what is to be called after it.
// r.mu is held, and r.ending has not ended.
func (r *Reader) begin(ctx context.Context, timeout time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	r.reads.Add(1)
	stop := context.AfterFunc(r.ending, cancel)
	return ctx, func() { stop(); cancel(); r.reads.Done() }
}

// logRead logs the first failed read of etcd after one that succeeded, at most one a
// minute: any number of requests may fail while etcd is away, and of one damaged
// record while others are read.
func (r *Reader) logRead(what string, err error) {
	r.mu.Lock()
	first := err != nil && !r.failed
	r.failed = err != nil
	r.mu.Unlock()
	if first {
		r.failures.Do(func() {
			r.log.Warn("read of etcd for a request failed: logged once until one succeeds", "what", what, "error", err)
		})
	}
}
