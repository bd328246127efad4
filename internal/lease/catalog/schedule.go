package catalog

import (
	"math"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

const (
	// MaxJitter spreads the nodes that wait for the same key.
	MaxJitter = 500 * time.Millisecond
	// keptFor is how many times ReloadEvery a kept catalog lasts, on the average. It is
	// listed again for what no watch reports, such as a window that was damaged.
	keptFor = 20
	// never is the time of what nothing asked for.
	never = clock.Mono(math.MaxInt64)
)

// schedule says when the space is listed next. A list is due at again, or at keptUntil
// while the catalog is kept, and earlier if something asked for it at. None is asked for
// before retry. spread is the time within which changes had the next list asked for, or 0
// if none did.
type schedule struct {
	at        clock.Mono
	spread    time.Duration
	again     clock.Mono
	keptUntil clock.Mono
	retry     clock.Mono
	retries   lease.Retries
}

// asked begins a schedule anew: a list is on its way. Nodes that started together do not
// list together.
func (p *schedule) asked(now clock.Mono, cfg lease.Config) {
	p.at, p.spread = never, 0
	p.again = now.Add(cfg.ReloadEvery + cfg.Jitter(cfg.ReloadEvery/5))
	p.keptUntil = p.again.Add(keptFor/2*cfg.ReloadEvery + cfg.Jitter(keptFor*cfg.ReloadEvery))
}

func (p *schedule) failed(now clock.Mono, cfg lease.Config, holds bool) {
	first := cfg.RetryAfter
	if holds {
		first = lease.SlowRetry
	}
	p.at, p.retry = now, now.Add(p.retries.Pause(first, lease.SlowestRetry, cfg.Jitter))
}

// within has the space listed at a random moment within spread. It is drawn at the first
// change after a list: the earliest of moments drawn at every change would come at once
// while nodes come and go.
func (p *schedule) within(now clock.Mono, spread time.Duration, cfg lease.Config) {
	if p.spread == 0 || p.spread > spread {
		p.spread = spread
		p.at = min(p.at, now.Add(cfg.Jitter(spread)))
	}
}

// spread is the time over which holders spread their lists.
func (c *Catalog) spread() time.Duration { return MaxJitter / 8 * time.Duration(c.space.Len()) }

// Hint takes a hint that something changed.
func (c *Catalog) Hint(now clock.Mono, need Need) {
	c.changed = true
	switch need.Haste {
	case Soon:
		c.plan.within(now, MaxJitter, c.cfg)
	case Spread:
		c.plan.within(now, c.spread(), c.cfg)
	}
}
