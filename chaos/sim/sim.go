package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// Mode is what a seed is played with.
type Mode string

// The modes.
const (
	Everything Mode = "everything" // all faults, all guards
	Unclocked  Mode = "unclocked"  // all faults, and no guard that reads a clock
	Tampered   Mode = "tampered"   // records changed behind the nodes' backs
	Calm       Mode = "calm"       // all guards, and no faults but the acts of the options
)

// Modes lists those that campaigns play.
var Modes = []Mode{Everything, Unclocked, Tampered}

// Known reports whether there is such a mode.
func (m Mode) Known() bool { return m == Calm || slices.Contains(Modes, m) }

// ModeOf returns the mode that a seed is played in where none is asked for: in
// three of eight everything, in as many unclocked, in two tampered.
func ModeOf(seed uint64) Mode {
	switch seed % 8 {
	case 0, 2, 4:
		return Unclocked
	case 6, 7:
		return Tampered
	}
	return Everything
}

// Options says how a seed is played. The zero value is the seed's own choice.
type Options struct {
	Mode    Mode          // "": ModeOf the seed
	Virtual time.Duration // Faults happen for this long, then all of them end; 0 draws 90 s to 6.5 minutes.
	Trace   io.Writer     // gets a line for each event; nil: none

	Acts []Act // what somebody does meanwhile, in the order of their times
	// Of mode Calm, where Virtual is an hour by default:
	Nodes int // 0: 4
	SIDs  int // 0: as many as the layout has
}

// Result is what a seed came to.
type Result struct {
	Seed       uint64
	Mode       Mode
	Hash       uint64 // FNV-1a of all events: the same each time the seed is played
	Events     int
	IDs        int
	Virtual    time.Duration // simulated time
	Points     Points
	Danger     history.Danger // It counts what could have broken a claim.
	Violations []Violation
}

// Violation is a claim that did not hold.
type Violation struct {
	Claim  string
	Detail string
	At     time.Duration // when it was noticed, by true time; -1: on the record, afterwards
}

func (v Violation) String() string {
	if v.At < 0 {
		return v.Claim + ": " + v.Detail
	}
	return fmt.Sprintf("%s at %v: %s", v.Claim, v.At, v.Detail)
}

// startTime is true time at the beginning, in Unix ns. Hosts may be as wrong as they
// like: nothing real is compared with it.
const startTime = (flake.DefaultEpoch + 1_000_000_000) * int64(time.Millisecond)

// simulation is one run under way.
type simulation struct {
	plan  plan
	rng   *rand.Rand
	now   time.Duration // true time since startTime
	queue queue
	trace trace

	etcd      *etcd
	hosts     []*host
	processes []*process // all that ever started, in order
	numbers   int        // makes nonces
	net       network

	outsiders  map[flake.SID]*outsider // It is never iterated.
	generators []*generator
	runs       map[lease.Instance]*workerRun // It has the runs of all generators, and is never iterated.
	written    []lease.Window                // records of workers
	late       map[string]bool               // processes that started under a wrong time source, beside others

	before, after history.History // up to a repair by an operator, and from it on
	outside       int             // blocks issued between tampering and repair, when nothing is promised
	moments       clock.Mono
	terms         terms
	highest       flake.ID      // ever issued, up to a repair
	floor         clock.Millis  // The era that the repair began has this floor.
	knownBy       time.Duration // by when every process knows of it
	recent        [16]flake.ID
	marks         marks
	stage         stage
	acts          []Act           // still to come
	backups       [2]backup       // the older first
	watch         func(Happening) // is told what happens, for a picture of it; nil: nobody looks
	stepped       func()          // is called after each event; nil: nobody waits for it
	points        Points
	danger        history.Danger
	violations    []Violation
}

// stage is how far the run has come.
type stage uint8

const (
	trouble  stage = iota // faults happen
	healed                // none does any more
	tampered              // records were changed, and nobody repaired them yet
	repaired
)

// Run plays a seed.
func Run(seed uint64, o Options) Result {
	sim := newSimulation(o)
	sim.play(seed, o)
	return sim.result(seed)
}

func newSimulation(o Options) *simulation {
	return &simulation{outsiders: map[flake.SID]*outsider{}, trace: newTrace(o.Trace), acts: slices.Clone(o.Acts)}
}

// play plays a seed to its end.
func (sim *simulation) play(seed uint64, o Options) {
	defer func() {
		if broken := recover(); broken != nil && broken != errClosed { // The core panics where a claim does not hold.
			sim.violate("panic", "%v\n%s", broken, debug.Stack())
		}
	}()
	sim.rng = rand.New(rand.NewPCG(seed, 0x5eed))
	sim.prepare(seed, o)
	sim.run(sim.plan.virtual)
	switch sim.plan.mode {
	case Calm:
	case Tampered:
		sim.heal()
		sim.tamper()
	default:
		sim.heal()
		sim.expectAlive()
		if sim.plan.mode == Everything {
			sim.wrongSource(rand.New(rand.NewPCG(seed, 0x50c)))
		}
	}
	sim.judge()
}

// prepare draws the plan of a seed, and makes its hosts and its etcd.
func (sim *simulation) prepare(seed uint64, o Options) {
	if o.Mode == "" {
		o.Mode = ModeOf(seed)
	}
	if o.Mode == Calm {
		sim.plan = calmPlan(o)
	} else {
		sim.draw(seed, o)
	}
	sim.before.Format, sim.after.Format = sim.plan.format, sim.plan.format
	sim.note(nil, sim.plan.String())
	sim.etcd = newEtcd(sim)
	for i := range sim.plan.nodes {
		sim.addHost(fmt.Sprintf("n%d", i+1))
	}
	sim.planFaults()
	sim.addGenerators()
	if o.Mode == Calm {
		sim.planBackups()
	}
}

// draw draws the plan of a seed.
func (sim *simulation) draw(seed uint64, o Options) {
	sim.plan = draw(sim.rng, o.Mode, o.Virtual)
	sim.plan.withoutGossip = drawWithoutGossip(rand.New(rand.NewPCG(seed, 0xdeaf)), sim.plan)
	sim.plan.setFormat(drawFormat(rand.New(rand.NewPCG(seed, 0x1a7)), sim.plan))
	sim.plan.part = drawPart(rand.New(rand.NewPCG(seed, 0x9a47)), sim.plan)
	sim.plan.workers = drawWorkers(rand.New(rand.NewPCG(seed, 0x3035)), &sim.plan)
}

func (sim *simulation) result(seed uint64) Result {
	return Result{
		Seed: seed, Mode: sim.plan.mode, Hash: sim.trace.hash, Events: sim.trace.events,
		IDs: sim.before.IDs() + sim.after.IDs(), Virtual: sim.now, Points: sim.points, Danger: sim.danger,
		Violations: sim.violations,
	}
}

// Explain plays a seed again and returns the lines around its violations:
// those that mention an ID, a process or a moment of the first violations.
func Explain(r Result, o Options, around int) string {
	var text strings.Builder
	o.Mode, o.Trace = r.Mode, &text
	again := Run(r.Seed, o)
	lines := strings.Split(text.String(), "\n")
	var out strings.Builder
	if again.Hash != r.Hash {
		out.WriteString("the second run of the seed went another way: the simulation is not deterministic\n")
	}
	for _, v := range r.Violations[:min(len(r.Violations), 2)] {
		at := locate(lines, v)
		fmt.Fprintf(&out, "%v\n", v)
		for _, l := range lines[max(0, at-around+8):min(len(lines), at+8)] {
			fmt.Fprintf(&out, "    %s\n", l)
		}
	}
	return out.String()
}

// locate returns the line that a violation is about, or the last.
func locate(lines []string, v Violation) int {
	if v.At >= 0 {
		stamp := stampOf(v.At)
		i, _ := slices.BinarySearchFunc(lines, stamp,
			func(l, s string) int { return strings.Compare(l[:min(len(l), len(s))], s) })
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], stamp) {
			i++
		}
		return i
	}
	for i := len(lines) - 1; i >= 0; i-- {
		for _, word := range strings.FieldsFunc(v.Detail,
			func(r rune) bool { return strings.ContainsRune(" ,:[)", r) }) {
			if len(word) == flake.TextLen && strings.Contains(lines[i], word) {
				return i
			}
		}
	}
	return len(lines) - 1
}

// violate notes that a claim does not hold.
func (sim *simulation) violate(claim, format string, args ...any) {
	sim.note(nil, "VIOLATION "+claim)
	if len(sim.violations) < 10 {
		sim.violations = append(sim.violations, Violation{claim, fmt.Sprintf(format, args...), sim.now})
	}
}

// offClock is how far a wall clock is from the truth at least that counts as wrong: sound
// ones start up to 10 ms off, and nodes follow what is within their maximum skew.
const offClock = 500 * time.Millisecond

// judge holds the whole record against the claims.
func (sim *simulation) judge() {
	sim.judgeHistory(&sim.before)
	sim.judgeHistory(&sim.after)
	for _, detail := range sim.terms.check() {
		sim.violations = append(sim.violations, Violation{"I2", detail, -1})
	}
}

func (sim *simulation) judgeHistory(h *history.History) {
	sim.danger.Add(h.Danger(offClock))
	for _, v := range h.Check() {
		sim.violations = append(sim.violations, Violation{v.Claim, v.Detail, -1})
	}
}

// record returns the history that what happens now belongs to, or nil where
// nothing is promised.
func (sim *simulation) record() *history.History {
	switch sim.stage {
	case tampered:
		return nil
	case repaired:
		return &sim.after
	}
	return &sim.before
}

// moment numbers what happens, in the order of one observer who sees all.
func (sim *simulation) moment() clock.Mono { sim.moments++; return sim.moments }

// chance is true with probability p.
func (sim *simulation) chance(p float64) bool { return p > 0 && sim.rng.Float64() < p }

// upTo returns a random time below limit.
func (sim *simulation) upTo(limit time.Duration) time.Duration {
	return time.Duration(sim.rng.Int64N(int64(max(limit, 1))))
}

// trueMillis returns true time as an ID would have it.
func (sim *simulation) trueMillis() clock.Millis {
	return clock.Millis((startTime + int64(sim.now)) / 1e6)
}
