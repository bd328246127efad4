package sim

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// plan is what a seed has in store: settings of the cluster, and which faults
// come how often. Rates are per minute; the rest of the fractions are chances.
type plan struct {
	mode    Mode
	virtual time.Duration
	nodes   int
	spare   int // sids that can be taken; the others are quarantined, or in nobody's range
	format  flake.Format
	ranges  bool           // nodes may take some sids alone
	halves  bool           // half of them each
	part    lease.SIDRange // sids of the space, where others are another region's
	workers workerPlan

	markGrace                                                   time.Duration
	window, extendEvery, ttl, keepAlive, reload, retry, timeout time.Duration
	maxSkew, maxLead                                            time.Duration
	strict                                                      bool
	rawClock                                                    bool // IDs from the wall clock itself, unanchored
	// Without random bits, windows that overlap give equal IDs.
	plainEntropy bool
	maxStep      uint32
	tickEvery    time.Duration
	pace         time.Duration // mean between two requests to a node
	greedy       float64       // requests for very many IDs
	follow       float64       // requests with after
	startWithin  time.Duration

	// Faults of processes.
	crash, stop, pause, twin float64
	midCrash, midStall       float64
	slowClient               float64

	// Of hosts.
	faulty                                  int // hosts that clock faults and pauses may cause
	clock, fleetStep, fix, suspend, migrate float64
	wrongAtStart                            float64

	// Of etcd.
	lost, late, twice, replyLost, refusedFast float64
	latency                                   time.Duration
	cut, leader, outage                       float64
	expireEarly, keyDeleted, era, quarantine  float64
	watchLost                                 float64

	// Of gossip.
	gossipLost, gossipTwice, gossipSlow float64
	gossipCut                           float64
	gossipLatency                       time.Duration
	falsePeer                           bool
	withoutGossip                       int // hosts without gossip; two have it, and a majority need not
}

// String is the plan as a trace begins with it.
func (p plan) String() string { return fmt.Sprintf("%+v", struct{ plan }{p}.plan.fields()) }

// fields drops the method, which would call itself.
func (p plan) fields() any { type fields plan; return fields(p) }

// draw makes a seed's plan.
func draw(r *rand.Rand, mode Mode, virtual time.Duration) plan {
	some := func(low, high float64) float64 { // half of the seeds have it
		if r.IntN(2) == 0 {
			return 0
		}
		// In the last bits, math.Pow differs between processors, and with them the whole run would.
		return float64(float32(low * math.Pow(high/low, r.Float64())))
	}
	one := func(of ...time.Duration) time.Duration { return of[r.IntN(len(of))] }

	p := plan{mode: mode, virtual: virtual, nodes: 3 + r.IntN(6)}
	if p.virtual == 0 {
		p.virtual = 90*time.Second + time.Duration(r.Int64N(int64(5*time.Minute)))
	}
	p.window = one(3*time.Second, 6*time.Second, 12*time.Second, 30*time.Second)
	p.extendEvery, p.reload = p.window/6, p.window/3
	p.ttl = max(p.window/2, 2*time.Second)
	p.keepAlive = p.ttl / 5
	p.retry, p.timeout = 250*time.Millisecond, 2*time.Second
	p.maxSkew, p.maxLead = 250*time.Millisecond,
		one(0, 250*time.Millisecond, 250*time.Millisecond, 250*time.Millisecond)
	p.maxStep = []uint32{0, 255, 255}[r.IntN(3)]
	p.markGrace = []time.Duration{time.Second, 5 * time.Second}[r.IntN(2)]
	p.strict = r.IntN(3) == 0
	p.tickEvery = one(50*time.Millisecond, 100*time.Millisecond)
	p.plainEntropy = r.IntN(2) == 0
	p.pace = one(100*time.Millisecond, 250*time.Millisecond, time.Second)
	p.greedy, p.follow = some(0.03, 0.5), 0.1
	p.startWithin = one(0, 2*time.Second, 30*time.Second)
	p.spare = one32(r, p.nodes)

	p.crash, p.stop, p.twin = some(0.1, 3), some(0.1, 2), some(0.1, 0.8)
	p.pause = some(0.1, 3)
	p.midCrash, p.midStall, p.slowClient = some(0.001, 0.05), some(0.005, 0.3), some(0.01, 0.3)

	p.faulty = r.IntN(p.nodes + 1)
	if r.IntN(3) == 0 {
		p.faulty = 1
	}
	p.clock, p.fleetStep, p.fix = some(0.2, 6), some(0.05, 0.5), 0.5+2*r.Float64()
	p.suspend, p.migrate = some(0.1, 1), some(0.1, 1)
	p.wrongAtStart = some(0.1, 1)

	p.lost, p.late, p.twice, p.replyLost = some(0.005, 0.3), some(0.005, 0.2), some(0.01, 0.2), some(0.005, 0.3)
	p.refusedFast = r.Float64()
	p.latency = one(200*time.Microsecond, 2*time.Millisecond, 40*time.Millisecond, 300*time.Millisecond)
	p.cut, p.leader, p.outage = some(0.1, 1), some(0.1, 1), some(0.05, 0.5)
	p.expireEarly, p.keyDeleted, p.era, p.quarantine = some(0.1, 4), some(0.05, 1), some(0.1, 1), some(0.1, 1)
	p.watchLost = some(0.02, 0.5)

	p.gossipLost, p.gossipTwice, p.gossipSlow = some(0.01, 0.4), some(0.01, 0.2), some(0.01, 0.2)
	p.gossipCut, p.gossipLatency = some(0.1, 1), one(100*time.Microsecond, time.Millisecond, 20*time.Millisecond)
	p.falsePeer = r.IntN(5) == 0
	if p.faulty == 1 && r.IntN(2) == 0 { // then I5 can be checked
		p.twin, p.falsePeer = 0, false
		p.migrate = max(p.migrate, 0.3)
	}

	switch mode {
	case Unclocked:
		p.rawClock = r.IntN(4) > 0
		p.maxLead = one(0, 250*time.Millisecond, p.window, time.Hour)
		p.maxSkew = 100 * 365 * 24 * time.Hour // what is left of checks in the machine allows this much
		p.clock = max(p.clock, 0.5)
		p.faulty = p.nodes
		p.gossipLost, p.gossipTwice, p.gossipSlow, p.gossipCut, p.falsePeer = 0, 0, 0, 0, false
	case Tampered:
		p.clock, p.fleetStep, p.suspend, p.migrate, p.wrongAtStart, p.falsePeer = 0, 0, 0, 0, 0, false
		p.twin, p.era, p.quarantine = 0, 0, 0
		p.spare, p.virtual = 32, min(p.virtual, 3*time.Minute)
	}
	if mode != Tampered && r.IntN(40) == 0 { // more nodes than sids
		p.nodes, p.spare = 33+r.IntN(4), 32
		p.virtual, p.pace = min(p.virtual, 90*time.Second), time.Second
	}
	p.format = flake.Default
	if r.IntN(4) == 0 {
		p.format.Layout, p.ranges = flake.Fleet, true // 1,024 records of each list would take too long
	} else {
		p.ranges = r.IntN(4) == 0
	}
	p.halves = p.ranges && p.spare >= 2*p.nodes && r.IntN(2) == 0
	return p
}

// drawPart returns the sids that the space is created for: in one of four seeds a part
// of the layout's. It draws from numbers of its own, as drawWithoutGossip does.
func drawPart(r *rand.Rand, p plan) lease.SIDRange {
	others := p.format.Layout.Holders() - p.spare
	if r.IntN(4) > 0 || others == 0 {
		return lease.SIDRange{}
	}
	from := flake.SID(1 + r.IntN(others))
	return lease.SIDRange{From: from, To: from + flake.SID(p.spare)}
}

// sids returns the sids that can be taken.
func (p *plan) sids() lease.SIDRange { return cmp.Or(p.part, lease.SIDRange{To: flake.SID(p.spare)}) }

// sidsOf returns the sids that the host of that number may take.
func (p *plan) sidsOf(host int) lease.SIDRange {
	all := p.sids()
	half := all.From + flake.SID(p.spare/2)
	switch {
	case p.halves && host%2 == 0:
		return lease.SIDRange{From: all.From, To: half}
	case p.halves:
		return lease.SIDRange{From: half, To: all.To}
	case !p.ranges, !p.part.All():
		return lease.SIDRange{}
	}
	return all
}

// drawWithoutGossip returns how many hosts have no gossip: none in two of three seeds. It
// draws from numbers of its own, so that it changes nothing about the other seeds.
func drawWithoutGossip(r *rand.Rand, p plan) int {
	if p.mode != Everything || r.IntN(3) > 0 {
		return 0
	}
	return 1 + r.IntN(p.nodes-2)
}

// layouts are those that seeds draw beside the specification's: their faults are the
// same, and all of them last beyond the times that wrong clocks show in mode Everything.
var layouts = []string{
	"twitter", "discord", "instagram", "sonyflake", "leaf", "js53", "baidu,epoch=2024-01-01",
	"42/11/10,steps=random", "36/9/10,order=time-seq-sid,unit=20ms",
	"32/16/12,order=time-seq-sid,unit=500ms,steps=random",
	"40/5/8,unit=4ms,start=30", "41/6/7,epoch=2023-07-01T00:00:00.333Z",
}

// drawFormat returns the format of a seed: in half of the seeds that of p. It draws from
// numbers of its own, as drawWithoutGossip does.
func drawFormat(r *rand.Rand, p plan) flake.Format {
	if r.IntN(2) == 0 {
		return p.format
	}
	f, err := flake.ParseFormat(layouts[r.IntN(len(layouts))])
	if err != nil {
		panic(err)
	}
	return f
}

// setFormat makes p a plan for IDs of f.
func (p *plan) setFormat(f flake.Format) {
	p.format = f
	p.ranges = p.ranges || f.Layout.Holders() > 32 // the records of all would take too long
	if !f.Layout.Random() {
		p.maxStep = 0
	}
}

// unit is the format's unit of time.
func (p *plan) unit() clock.Millis { return clock.Millis(p.format.Layout.Unit()) }

// one32 draws how many sids n nodes may take: often too few.
func one32(r *rand.Rand, n int) int {
	switch r.IntN(5) {
	case 0, 1:
		return 32
	case 2:
		return n + 1
	}
	return 1 + r.IntN(n)
}

// planFaults schedules the faults.
func (sim *simulation) planFaults() {
	p := &sim.plan
	anyHost := func(f func(h *host)) func() {
		return func() { f(sim.hosts[sim.rng.IntN(len(sim.hosts))]) }
	}
	faultyHost := func(f func(h *host)) func() {
		return func() {
			if p.faulty > 0 {
				f(sim.hosts[sim.rng.IntN(p.faulty)])
			}
		}
	}
	n := float64(p.nodes)
	sim.now += time.Second // what follows keeps its distance from the start
	sim.every(p.crash, anyHost(func(h *host) { h.crash(sim) }))
	sim.every(p.stop, anyHost(func(h *host) { h.stop() }))
	sim.every(p.twin, anyHost(sim.startTwin))
	sim.every(p.pause, anyHost(func(h *host) {
		if h.process != nil && !h.process.gone {
			h.process.pause(sim.logTime(50*time.Millisecond, 3*p.ttl))
		}
	}))
	sim.every(p.clock, faultyHost(sim.clockFault))
	sim.every(p.fix*n/2, anyHost(func(h *host) {
		if h.wrong > -time.Hour && sim.now-h.wrong > 0 {
			sim.fixClock(h)
		}
	}))
	sim.every(p.suspend, faultyHost(func(h *host) { sim.sleep(h, sim.logTime(time.Second, time.Minute), false) }))
	sim.every(p.migrate, faultyHost(func(h *host) {
		sim.sleep(h,
			sim.logTime(100*time.Millisecond, time.Minute), true)
	}))
	sim.every(p.fleetStep, func() {
		if p.faulty < p.nodes {
			return
		}
		step := sim.logTime(11*time.Millisecond, 10*time.Minute) * sim.sign()
		sim.note(nil, "all clocks step by %d us", int64(step)/1000)
		for _, h := range sim.hosts {
			h.settle(sim.now)
			h.reading.Wall += int64(step)
			h.wrong = sim.now
			h.sets++
		}
	})
	sim.every(p.cut, anyHost(func(h *host) {
		until := sim.now + sim.logTime(500*time.Millisecond, 2*p.window)
		if which := sim.rng.IntN(3); which != 0 {
			h.noReplies = until
		} else {
			h.noRequests = until
		}
		sim.note(nil, h.node+" is cut off from etcd until %d", int64(until))
	}))
	sim.every(p.leader, func() { sim.etcd.leaderless(sim.logTime(100*time.Millisecond, 5*time.Second)) })
	sim.every(p.leader/2, func() {
		sim.etcd.renewed = max(sim.etcd.renewed, sim.now+sim.logTime(p.window, 8*p.window))
		sim.note(nil, "leases live on until %d", int64(sim.etcd.renewed))
	})
	sim.every(p.outage, func() { sim.etcd.leaderless(sim.logTime(time.Second, 3*p.window)) })
	sim.every(p.expireEarly, func() { sim.etcd.expireEarly() })
	sim.every(p.keyDeleted, func() { sim.etcd.deleteKey() })
	sim.every(p.era, func() { sim.etcd.bumpEra() })
	sim.every(p.quarantine, func() { sim.etcd.quarantineSID() })
	sim.every(p.quarantine, func() { sim.etcd.reserveSID() })
	sim.every(p.gossipCut, sim.cutGossip)
	sim.now -= time.Second
}

// every does f at random moments, rate times a minute on the average, as long as
// faults happen.
func (sim *simulation) every(rate float64, f func()) {
	if rate == 0 {
		return
	}
	next := func() time.Duration {
		return min(time.Duration(sim.rng.ExpFloat64()/rate*float64(time.Minute)), time.Hour)
	}
	var again func()
	again = func() {
		if sim.stage != trouble {
			return
		}
		f()
		sim.in(next(), again)
	}
	sim.in(next(), again)
}

// millis is d in the unit of windows.
func millis(d time.Duration) clock.Millis { return clock.MillisOf(d) }
