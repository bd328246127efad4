package sim

import (
	"fmt"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// host is a machine: its clocks outlive the processes on it.
type host struct {
	node    string // what processes on it are called
	sound   bool   // its clocks and its scheduler never fail
	mute    bool   // its processes have no gossip
	at      time.Duration
	reading clock.Readings // at that true time
	rate    int64          // ppm by which its oscillator is off
	drift   int64          // ppm by which its wall clock runs faster than that

	frozen       time.Duration // until then its wall clock shows frozenWall
	frozenWall   int64
	strobe       time.Duration // until then it jumps to and fro
	strobePeriod time.Duration
	strobeBy     int64
	wrong        time.Duration // when its clocks last failed or were set; negative: never
	slept        time.Duration // suspended in all, with wall and boot time going on
	leapt        bool          // it was suspended or migrated: its raw clock stopped meanwhile
	sets         int           // times that its wall clock was set or failed

	noRequests, noReplies time.Duration // until then it is cut off from etcd, that way
	process               *process      // the latest
}

func (w *world) addHost(node string) *host {
	h := &host{node: node, rate: w.rng.Int64N(100) - 50, wrong: -time.Hour, sound: len(w.hosts) >= w.plan.faulty, mute: len(w.hosts) >= w.plan.nodes-w.plan.mute}
	h.reading = clock.Readings{Wall: dawn + int64(w.now) + w.rng.Int64N(20e6) - 10e6, Mono: 1, Raw: 1 + w.rng.Int64N(1e15), Boot: 1}
	h.at = w.now
	w.hosts = append(w.hosts, h)
	if !h.sound && w.chance(w.plan.wrongAtStart) {
		w.clockFault(h)
	}
	w.in(w.upTo(w.plan.startWithin), func() { w.start(h) })
	return h
}

// gossip returns the address that processes on h register.
func (h *host) gossip() string {
	if h.mute {
		return ""
	}
	return h.node
}

// read returns the clocks as they stand at true time now.
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

// settle makes now the time that the figures count from.
func (h *host) settle(now time.Duration) {
	strobe, frozen := h.strobe, h.frozen
	h.strobe, h.frozen = 0, 0
	r := h.read(now)
	h.reading, h.at, h.strobe, h.frozen = r, max(now, h.at), strobe, frozen
}

// clockFault makes the host's wall clock wrong, one way or another.
func (w *world) clockFault(h *host) {
	h.settle(w.now)
	h.wrong = w.now
	h.sets++
	step := w.logTime(11*time.Millisecond, 288*time.Second) * w.sign()
	switch w.rng.IntN(12) {
	case 0, 1, 2, 3:
	case 4: // a threshold, and a bit
		step = (250 + time.Duration(w.rng.IntN(41)) - 20) * time.Millisecond * w.sign()
	case 5:
		step = time.Hour * w.sign()
	case 6:
		h.reading.Wall, step = int64(w.upTo(time.Hour)), 0 // 1970
		w.note(nil, "clock of "+h.node+" reads 1970")
	case 7:
		h.reading.Wall, step = 4_300_000_000*1e9, 0 // 2106
		w.note(nil, "clock of "+h.node+" reads 2106")
	case 8, 9:
		h.drift, step = int64(w.logTime(50, 5000)*w.sign()), 0
		w.note(nil, "clock of "+h.node+" drifts by %d ppm", h.drift)
	case 10:
		h.strobePeriod, h.strobeBy = w.logTime(time.Millisecond, time.Second), int64(step)
		h.strobe, step = w.now+w.upTo(32*time.Second), 0
		w.note(nil, "clock of "+h.node+" jumps to and fro by %d us", h.strobeBy/1000)
	case 11:
		h.frozenWall = h.read(w.now).Wall
		h.frozen, step = w.now+w.upTo(4*time.Second), 0
		w.note(nil, "clock of "+h.node+" stands still")
	}
	if step != 0 {
		h.reading.Wall += int64(step)
		w.note(nil, "clock of "+h.node+" steps by %d us", int64(step)/1000)
	}
}

// fixClock sets the wall clock right, as a time daemon does: at once.
func (w *world) fixClock(h *host) {
	h.settle(w.now)
	if h.wrong > -time.Hour {
		h.wrong = w.now
	}
	h.sets++
	h.drift, h.strobe, h.frozen = 0, 0, 0
	h.reading.Wall = dawn + int64(w.now) + w.rng.Int64N(10e6) - 5e6
	w.note(nil, "clock of "+h.node+" is set right")
}

// sleep suspends the machine. Wall and boot time go on, or stand still as those
// of a machine that is migrated or restored do.
func (w *world) sleep(h *host, d time.Duration, still bool) {
	h.settle(w.now)
	h.wrong = w.now + d
	h.at = w.now + d
	h.leapt = true
	if !still {
		h.slept += d
		h.reading.Wall += int64(d)
		h.reading.Boot += int64(d)
	}
	w.note(nil, fmt.Sprintf("%s sleeps, still=%v, for %%d us", h.node, still), int64(d)/1000)
	for _, p := range w.processes {
		if p.host == h && !p.gone {
			p.pause(d)
		}
	}
}

func (w *world) sign() time.Duration { return time.Duration(w.rng.IntN(2)*2 - 1) }

// logTime draws between low and high so that each order of magnitude is as likely.
func (w *world) logTime(low, high time.Duration) time.Duration {
	d := low
	for d < high && w.rng.IntN(3) > 0 {
		d *= 2
	}
	return min(d+w.upTo(d), high)
}
