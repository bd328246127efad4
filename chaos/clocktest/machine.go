package clocktest

import (
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/clock"
)

// Epoch is true time when a scenario in a bubble begins, in Unix ms: bubbles begin in the
// year 2000, before the epoch of any ID.
const Epoch clock.Millis = 1_769_904_000_000

// TrueMillis returns true time when a scenario has lasted for d, as an ID has it.
func TrueMillis(d time.Duration) clock.Millis { return Epoch + clock.Millis(d.Milliseconds()) }

// Logger logs to w with the time since a scenario began.
func Logger(w io.Writer, begin time.Time) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Duration("at", time.Since(begin))
		}
		return a
	}}))
}

// Machine is the clocks of one machine in a bubble, whose own time is the true one. Its
// methods make them wrong. It is safe for concurrent use.
type Machine struct {
	Origin int64     // The raw clock shows these ns when the scenario begins.
	Rate   int64     // ppm by which the raw clock is fast
	begin  time.Time // The scenario began then.

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

// NewMachine returns a machine whose wall clock is ahead, of a scenario that began at begin.
func NewMachine(begin time.Time, ahead time.Duration) *Machine {
	return &Machine{begin: begin, step: ahead}
}

// Read returns what the clocks show.
func (m *Machine) Read() clock.Readings {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := time.Since(m.begin)
	if m.frozen {
		t = m.at
	}
	lost := m.lost - Drifted(t-m.turned, m.beat)
	wall := t + m.step + Drifted(t-m.since, m.ppm)
	up := t - m.slept - lost
	return clock.Readings{
		Wall: int64(Epoch)*int64(time.Millisecond) + int64(wall-lost),
		Mono: clock.Mono(up), Raw: m.Origin + int64(up+Drifted(up, m.Rate)), Boot: int64(t - lost),
	}
}

// Elapsed returns what the monotonic clock shows.
func (m *Machine) Elapsed() clock.Mono { return m.Read().Mono }

// Drifted returns by how much a clock is fast after d, at a rate in ppm.
func Drifted(d time.Duration, ppm int64) time.Duration {
	return d / 1000 * time.Duration(ppm) / 1000
}

// Kernel returns what the kernel says of its clock.
func (m *Machine) Kernel() clock.Kernel {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kernel
}

// set runs f with the clocks at rest.
func (m *Machine) set(f func(t time.Duration)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(time.Since(m.begin))
}

// Step sets the wall clock d ahead of where it is.
func (m *Machine) Step(d time.Duration) { m.set(func(time.Duration) { m.step += d }) }

// Stepped returns how far Step has set the wall clock ahead.
func (m *Machine) Stepped() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.step
}

// Right sets the wall clock to what a machine that lost no time would show, and
// stops its drift.
func (m *Machine) Right() { m.set(func(time.Duration) { m.step, m.ppm = m.lost, 0 }) }

// Drift lets the wall clock run ppm fast from now on.
func (m *Machine) Drift(ppm int64) {
	m.set(func(t time.Duration) {
		m.step += Drifted(t-m.since, m.ppm)
		m.ppm, m.since = ppm, t
	})
}

// Oscillate lets all clocks run ppm fast from now on, the raw one too.
func (m *Machine) Oscillate(ppm int64) {
	m.set(func(t time.Duration) {
		m.lost -= Drifted(t-m.turned, m.beat)
		m.beat, m.turned = ppm, t
	})
}

// Leap moves all clocks by d at once, without a trace on this machine. If d is
// negative they stop for as long instead, as when a hypervisor pauses a
// machine or migrates it, and Leap returns when they go on.
func (m *Machine) Leap(d time.Duration) {
	if d >= 0 {
		m.set(func(time.Duration) { m.lost -= d })
		return
	}
	m.set(func(t time.Duration) { m.frozen, m.at = true, t })
	time.Sleep(-d)
	m.set(func(time.Duration) { m.frozen, m.lost = false, m.lost-d })
}

// Sleep suspends the machine until Wake: its monotonic clocks then have stopped,
// and the others gone on. The timers of a bubble go on as well, so what runs on
// the machine finds time stopped until it wakes.
func (m *Machine) Sleep() { m.set(func(t time.Duration) { m.frozen, m.at = true, t }) }

// Wake ends what Sleep began.
func (m *Machine) Wake() { m.set(func(t time.Duration) { m.frozen, m.slept = false, m.slept+t-m.at }) }

// SetKernel sets whether the kernel's clock discipline calls itself good.
func (m *Machine) SetKernel(synchronized bool) {
	m.set(func(time.Duration) { m.kernel = clock.Kernel{Known: true, Synchronized: synchronized} })
}
