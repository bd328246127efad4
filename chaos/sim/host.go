package sim

import (
	"fmt"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// host is a machine: its clocks outlive the processes on it.
type host struct {
	node     string // what processes on it are called
	sound    bool   // its clocks and its scheduler never fail
	noGossip bool   // its processes have no gossip
	sids     lease.SIDRange
	at       time.Duration
	reading  clock.Readings // at that true time
	rate     int64          // ppm by which its oscillator is off
	drift    int64          // ppm by which its wall clock runs faster than that

	frozen       time.Duration // until then its wall clock shows frozenWall
	frozenWall   int64
	strobe       time.Duration // until then it jumps to and fro
	strobePeriod time.Duration
	strobeBy     int64
	wrong        time.Duration // when its clocks last failed or were set; negative: never
	slept        time.Duration // suspended in all, with wall and boot time going on
	stopped      time.Duration // when it was last woken with all its clocks where they were; 0: never
	leapt        bool          // it was suspended or migrated: its raw clock stopped meanwhile
	sets         int           // times that its wall clock was set or failed

	noRequests, noReplies time.Duration // until then it is cut off from etcd, that way
	again                 time.Duration // until then each of its requests is carried out twice
	alone                 time.Duration // until then gossip neither reaches nor leaves it
	process               *process      // the latest
}

func (sim *simulation) addHost(node string) *host {
	h := &host{
		node:     node,
		sids:     sim.plan.sidsOf(len(sim.hosts)),
		rate:     sim.rng.Int64N(100) - 50,
		wrong:    -time.Hour,
		sound:    len(sim.hosts) >= sim.plan.faulty,
		noGossip: len(sim.hosts) >= sim.plan.nodes-sim.plan.withoutGossip,
	}
	h.reading = clock.Readings{
		Wall: startTime + int64(sim.now) + sim.rng.Int64N(20e6) - 10e6,
		Mono: 1,
		Raw: 1 +
			sim.rng.Int64N(1e15),
		Boot: 1,
	}
	h.at = sim.now
	sim.hosts = append(sim.hosts, h)
	if !h.sound && sim.chance(sim.plan.wrongAtStart) {
		sim.clockFault(h)
	}
	sim.in(sim.upTo(sim.plan.startWithin), func() { sim.start(h) })
	return h
}

// gossip returns the address that processes on h register.
func (h *host) gossip() string {
	if h.noGossip {
		return ""
	}
	return h.node
}

// read returns the clocks at true time now.
func (h *host) read(now time.Duration) clock.Readings {
	r := h.reading
	if d := int64(now - h.at); d > 0 {
		osc := d + d/1000*h.rate/1000
		r.Mono += clock.Mono(osc)
		r.Raw += osc
		r.Boot += osc
		r.Wall += osc + d/1000*h.drift/1000
	}
	if now < h.strobe && now/h.strobePeriod%2 == 1 {
		r.Wall += h.strobeBy
	}
	if now < h.frozen {
		r.Wall = h.frozenWall
	}
	return r
}

// offTruth returns how far the host's wall clock is ahead of true time.
func (h *host) offTruth(now time.Duration) time.Duration {
	return time.Duration(h.read(now).Wall - startTime - int64(now))
}

// settle makes now the time that the readings count from.
func (h *host) settle(now time.Duration) {
	strobe, frozen := h.strobe, h.frozen
	h.strobe, h.frozen = 0, 0
	r := h.read(now)
	h.reading, h.at, h.strobe, h.frozen = r, max(now, h.at), strobe, frozen
}

// clockFault makes the host's wall clock wrong, one way or another.
func (sim *simulation) clockFault(h *host) {
	if h.at > sim.now {
		return // suspended: nobody sets its clocks
	}
	wall, drift, fault := h.read(sim.now).Wall, h.drift, ""
	h.settle(sim.now)
	h.wrong = sim.now
	h.sets++
	step := sim.logTime(11*time.Millisecond, 288*time.Second) * sim.sign()
	switch sim.rng.IntN(12) {
	case 0, 1, 2, 3:
	case 4: // a threshold, and a bit
		step = (250 + time.Duration(sim.rng.IntN(41)) - 20) * time.Millisecond * sim.sign()
	case 5:
		step = time.Hour * sim.sign()
	case 6:
		h.reading.Wall, step = int64(sim.upTo(time.Hour)), 0 // 1970
		sim.note(nil, "clock of "+h.node+" reads 1970")
	case 7:
		h.reading.Wall, step = 4_300_000_000*1e9, 0 // 2106
		sim.note(nil, "clock of "+h.node+" reads 2106")
	case 8, 9:
		h.drift, step = int64(sim.logTime(50, 5000)*sim.sign()), 0
		sim.note(nil, "clock of "+h.node+" drifts by %d ppm", h.drift)
	case 10:
		h.strobePeriod, h.strobeBy = sim.logTime(time.Millisecond, time.Second), int64(step)
		h.strobe, step = sim.now+sim.upTo(32*time.Second), 0
		fault = "jumps to and fro"
		sim.note(nil, "clock of "+h.node+" jumps to and fro by %d us", h.strobeBy/1000)
	case 11:
		h.frozenWall = h.read(sim.now).Wall
		h.frozen, step = sim.now+sim.upTo(4*time.Second), 0
		fault = "stops"
		sim.note(nil, "clock of "+h.node+" stops")
	}
	if step != 0 {
		h.reading.Wall += int64(step)
		sim.note(nil, "clock of "+h.node+" steps by %d us", int64(step)/1000)
	}
	sim.seeClock(h, wall, drift, fault)
}

// seeClock tells of a wall clock that showed wall and had this drift, and was set or fails in a way.
func (sim *simulation) seeClock(h *host, wall, drift int64, fault string) {
	if by := time.Duration(h.read(sim.now).Wall - wall); by != 0 || fault != "" {
		sim.see(h, Happening{Kind: "step", By: by, What: fault})
	}
	if h.drift != drift {
		sim.see(h, Happening{Kind: "drift", By: time.Duration(h.drift) * time.Microsecond})
	}
}

// fixClock sets the wall clock right, as a time daemon does: at once.
func (sim *simulation) fixClock(h *host) {
	if h.at > sim.now {
		return // suspended
	}
	wall, drift := h.read(sim.now).Wall, h.drift
	h.settle(sim.now)
	if h.wrong > -time.Hour {
		h.wrong = sim.now
	}
	h.sets++
	h.drift, h.strobe, h.frozen = 0, 0, 0
	h.reading.Wall = startTime + int64(sim.now) + sim.rng.Int64N(10e6) - 5e6
	sim.note(nil, "clock of "+h.node+" is set right")
	sim.seeClock(h, wall, drift, "")
}

// sleep suspends the machine. Wall and boot time go on, or stop as those
// of a machine that is migrated or restored do.
func (sim *simulation) sleep(h *host, d time.Duration, still bool) {
	h.settle(sim.now)
	h.wrong = sim.now + d
	h.at = sim.now + d
	h.leapt = true
	if still {
		h.stopped = h.at
	} else {
		h.slept += d
		h.reading.Wall += int64(d)
		h.reading.Boot += int64(d)
	}
	sim.note(nil, fmt.Sprintf("%s is suspended, still=%v, for %%d us", h.node, still), int64(d)/1000)
	for _, p := range sim.processes {
		if p.host == h && !p.gone {
			p.pause(d)
		}
	}
}

func (sim *simulation) sign() time.Duration { return time.Duration(sim.rng.IntN(2)*2 - 1) }

// logTime draws between low and high so that each order of magnitude is as likely.
func (sim *simulation) logTime(low, high time.Duration) time.Duration {
	d := low
	for d < high && sim.rng.IntN(3) > 0 {
		d *= 2
	}
	return min(d+sim.upTo(d), high)
}
