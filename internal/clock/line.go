package clock

import "time"

// line is issuing time as a function of monotonic time, until the next line
// replaces it: it runs with the monotonic clock, gives back what it is ahead by
// running slower for a while, and is nowhere decreasing. It is never changed.
type line struct {
	at   Mono          // where it begins
	wall int64         // Unix ns at that time
	back time.Duration // to be given back, from slow on
	slow Mono          // not before at

	asleep time.Duration // time suspended, since an unknown origin
	// undecided: the wall clock was set, and neither peers nor time have decided which side is right.
	undecided bool
}

// slewShare is the part of time that is given back while slewing: 1 s in 10 s.
// It is well above what an oscillator is off, and slow enough that rates of
// issuing and the order of IDs do not show it.
const slewShare = 10

// slewGrace is for how long a new line that gives time back runs at full speed
// first. Whoever read the monotonic clock before the line was published, and
// got its time from the old one, must not be ahead of what the next one gets
// from the new line. So this is longer than the time between reading the clocks and
// publishing.
const slewGrace = 250 * time.Millisecond

// unixNano returns issuing time at m in Unix ns. Before its beginning a line
// is constant: m was read just before the line was published, and going by
// the monotonic clock could lead to below what the old line gave out.
func (l *line) unixNano(m Mono) int64 {
	if m < l.at {
		return l.wall
	}
	t := l.wall + int64(m-l.at)
	if l.back != 0 {
		t -= int64(l.given(m))
	}
	return t
}

// given returns how much has been given back at m.
func (l *line) given(m Mono) time.Duration {
	return min(max(m.Sub(l.slow), 0)/slewShare, l.back)
}

// ahead returns how much is still to be given back at m.
func (l *line) ahead(m Mono) time.Duration { return l.back - l.given(m) }

// towards returns the line that leads from l's time at m to Unix ns wall: at once
// if that is ahead or more than limit behind, else by running slower. jumped is by
// how much it begins above, or below, l's time.
func (l *line) towards(m Mono, wall int64, limit time.Duration) (next *line, jumped time.Duration) {
	now := l.unixNano(m)
	ahead := time.Duration(now - wall)
	if ahead <= 0 || ahead > limit {
		return &line{at: m, wall: wall, slow: m, asleep: l.asleep}, -ahead
	}
	next = &line{at: m, wall: now, back: ahead, slow: m.Add(slewGrace), asleep: l.asleep}
	if l.slow <= m && l.ahead(m) >= slewGrace/slewShare {
		next.slow = m // goes on as slowly as l would, so it needs none
	}
	return next, 0
}
