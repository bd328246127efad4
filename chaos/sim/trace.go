package sim

import (
	"fmt"
	"io"
	"time"
)

// trace is a hash of all that happened, and its text if somebody wants it.
type trace struct {
	hash   uint64
	events int
	out    io.Writer
}

// Constants of FNV-1a with 64 bits.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

func newTrace(out io.Writer) trace { return trace{hash: fnvOffset, out: out} }

func (t *trace) number(v int64) {
	h := t.hash
	for range 8 {
		h = (h ^ uint64(v&0xff)) * fnvPrime
		v >>= 8
	}
	t.hash = h
}

func (t *trace) text(s string) {
	h := t.hash
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * fnvPrime
	}
	t.hash = h
}

// event takes in something that took place.
func (t *trace) event(at, kind, process int64) {
	t.events++
	t.number(at)
	t.number(kind<<32 | process)
}

// note takes in a fact: a format and its numbers. p may be nil.
func (sim *simulation) note(p *process, format string, args ...int64) {
	t := &sim.trace
	t.text(format)
	if p != nil {
		t.number(int64(p.number))
	}
	for _, a := range args {
		t.number(a)
	}
	sim.say(p, format, args...)
}

// say writes a line where somebody wants the text, and leaves the hash alone.
func (sim *simulation) say(p *process, format string, args ...int64) {
	if sim.trace.out == nil {
		return
	}
	who := "-"
	if p != nil {
		who = p.name
	}
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a
	}
	line := format
	if len(args) > 0 {
		line = fmt.Sprintf(format, values...)
	}
	fmt.Fprintf(sim.trace.out, "%s %-7s %s\n", stampOf(sim.now), who, line)
}

// stampOf writes true time so that texts sort as times do.
func stampOf(d time.Duration) string { return fmt.Sprintf("%011.6f", d.Seconds()) }

// sinceStart makes a Unix time short enough to read.
func sinceStart[T ~int64](ms T) int64 { return int64(ms) - startTime/1e6 }
