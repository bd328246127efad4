package agreement_test

import (
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// startTime is true time when a scenario begins, in Unix ns: bubbles begin in
// the year 2000, before the epoch of any ID.
const startTime = 1_769_904_000_000 * int64(time.Millisecond)

// machine is the clocks of one machine in a bubble, whose own time is the true
// one. Its methods make them wrong. It is safe for
// concurrent use.
type machine struct {
	begin  time.Time // of the scenario
	origin int64     // of the raw clock, ns
	rate   int64     // ppm by which the raw clock is fast

	mu     sync.Mutex    // guards the rest
	lost   time.Duration // by which all clocks are behind
	step   time.Duration // wall clock ahead of the others, since stepped
	ppm    int64         // wall clock fast by
	since  time.Duration // ppm, as of begin
	beat   int64         // ppm by which the oscillator is fast, and all clocks with it
	turned time.Duration // beat, as of begin
	frozen bool          // nothing moves that anybody here could read
	at     time.Duration // since when
	slept  time.Duration
	kernel clock.Kernel
}

func (m *machine) Read() clock.Readings {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := time.Since(m.begin)
	if m.frozen {
		t = m.at
	}
	lost := m.lost - drifted(t-m.turned, m.beat)
	wall := t + m.step + drifted(t-m.since, m.ppm)
	up := t - m.slept - lost
	return clock.Readings{
		Wall: startTime + int64(wall-lost), Mono: clock.Mono(up), Raw: m.origin + int64(up+drifted(up, m.rate)), Boot: int64(t - lost),
	}
}

func (m *machine) Elapsed() clock.Mono { return m.Read().Mono }

func drifted(d time.Duration, ppm int64) time.Duration {
	return d / 1000 * time.Duration(ppm) / 1000
}

func (m *machine) Kernel() clock.Kernel {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kernel
}

// set runs f with the clocks at rest.
func (m *machine) set(f func(t time.Duration)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(time.Since(m.begin))
}

// Step sets the wall clock d ahead of where it is.
func (m *machine) Step(d time.Duration) { m.set(func(time.Duration) { m.step += d }) }

// Right sets the wall clock to what a machine that lost no time would show, and
// stops its drift.
func (m *machine) Right() { m.set(func(time.Duration) { m.step, m.ppm = m.lost, 0 }) }

// Drift lets the wall clock run ppm fast from now on.
func (m *machine) Drift(ppm int64) {
	m.set(func(t time.Duration) {
		m.step += drifted(t-m.since, m.ppm)
		m.ppm, m.since = ppm, t
	})
}

// Oscillate lets all clocks run ppm fast from now on, the raw one too.
func (m *machine) Oscillate(ppm int64) {
	m.set(func(t time.Duration) {
		m.lost -= drifted(t-m.turned, m.beat)
		m.beat, m.turned = ppm, t
	})
}

// Leap moves all clocks by d at once, without a trace on this machine. If d is
// negative they stop for as long instead, as when a hypervisor pauses a
// machine or migrates it, and Leap returns when they go on.
func (m *machine) Leap(d time.Duration) {
	if d >= 0 {
		m.set(func(time.Duration) { m.lost -= d })
		return
	}
	m.set(func(t time.Duration) { m.frozen, m.at = true, t })
	time.Sleep(-d)
	m.set(func(time.Duration) { m.frozen, m.lost = false, m.lost-d })
}

// Sleep and Wake suspend the machine: its monotonic clocks then have stopped,
// and the others gone on. The timers of a bubble go on as well, so what runs on
// the machine finds time stopped until it wakes.
func (m *machine) Sleep() { m.set(func(t time.Duration) { m.frozen, m.at = true, t }) }

func (m *machine) Wake() { m.set(func(t time.Duration) { m.frozen, m.slept = false, m.slept+t-m.at }) }

// SetKernel sets whether the kernel's clock discipline calls itself good.
func (m *machine) SetKernel(synchronized bool) {
	m.set(func(time.Duration) { m.kernel = clock.Kernel{Known: true, Synchronized: synchronized} })
}
