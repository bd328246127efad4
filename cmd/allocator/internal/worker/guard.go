package worker

import "cmp"

// ahead is how far a generator's time may be ahead of the clock that it reads, in ms: those
// that wait for their next unit of time take it a little early.
const ahead = 1000

// act is what is done to the processes of a command.
type act uint8

const (
	leave act = iota
	terminate
	kill
)

// guard decides when the processes of a command have to end. It is pure: it is told what
// the clocks show. All times are ms.
//
// A generator may read the wall clock for each ID, or once and count monotonic time from
// there on, as bwmarrin/snowflake does. So what matters is all that the wall clock has
// shown since the command began: the difference between it and the monotonic clock.
type guard struct {
	margin int64 // all processes are killed so long before the interval ends
	grace  int64 // and asked to end so long before that

	low, high int64 // The wall clock minus the monotonic clock stayed in [low, high] since the command began.
	seen      bool
	mono      int64 // when the clocks were last read
	asked     bool  // to end
	askedAt   int64
	killed    bool
	why       string
}

// see takes a reading of the clocks. The first one is from before the command begins.
func (g *guard) see(wall, mono int64) {
	offset := wall - mono
	if !g.seen {
		g.seen, g.low, g.high = true, offset, offset
	}
	g.low, g.high, g.mono = min(g.low, offset), max(g.high, offset), mono
}

// latest and earliest are bounds of what the command's generators take the time for.
func (g *guard) latest() int64   { return g.mono + g.high }
func (g *guard) earliest() int64 { return g.mono + g.low }

// next returns what to do now, for a worker of [from, to). stop, if not "", is why the
// processes have to end whatever the interval is. It returns terminate once, and kill at
// each call from when they have to be dead on.
func (g *guard) next(from, to int64, stop string) act {
	switch {
	case g.killed:
	case g.latest() >= to-g.margin:
		g.kill("the interval could not be extended and is about to end")
	case g.earliest() < from:
		g.kill("the clock was set back to before the interval")
	case g.asked && g.mono >= g.askedAt+g.grace:
		g.kill("it did not end within --grace")
	case g.asked:
		return leave
	case stop != "":
		g.ask(stop)
		return terminate
	case g.latest() >= to-g.margin-g.grace:
		g.ask("the interval could not be extended")
		return terminate
	default:
		return leave
	}
	return kill
}

func (g *guard) ask(why string) { g.asked, g.askedAt, g.why = true, g.mono, why }

func (g *guard) kill(why string) {
	g.killed = true
	g.why = cmp.Or(g.why, why)
}

// usedUntil returns a time that no ID of the command reaches, once all of its processes
// have ended and the clocks were read after that.
func (g *guard) usedUntil() int64 { return g.latest() + ahead }

// fits reports whether an interval of that length leaves time to extend it: nodes say to
// do so after a third.
func (g *guard) fits(length int64) bool { return g.margin+g.grace < length/2 }
