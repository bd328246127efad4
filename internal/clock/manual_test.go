package clock

import (
	"sync"
	"testing"
	"time"
)

// manualClocks are the clocks of a machine that tests move by hand. All of
// them run together but for what the methods say. A stall of the process is a
// long Advance between two ticks. It is safe for concurrent use.
type manualClocks struct {
	mu     sync.Mutex // guards all
	now    Readings
	drift  int64 // ppm by which the wall clock is faster than the others
	kernel Kernel
}

// newManualClocks returns clocks whose wall clock shows Unix ns wall and
// the others at zero. The kernel's status is unknown.
func newManualClocks(wall int64) *manualClocks {
	return &manualClocks{now: Readings{Wall: wall}}
}

// Read returns the clocks as they were last moved.
func (m *manualClocks) Read() Readings {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// Elapsed returns the monotonic clock as it was last moved.
func (m *manualClocks) Elapsed() Mono { return m.Read().Mono }

// Kernel returns what SetKernel was last given.
func (m *manualClocks) Kernel() Kernel {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kernel
}

// SetKernel changes the status of the clock discipline.
func (m *manualClocks) SetKernel(k Kernel) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kernel = k
}

// Advance lets d pass on every clock, with the wall clock's drift.
func (m *manualClocks) Advance(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Wall += int64(d) + int64(d)/1000*m.drift/1000
	m.now.Mono += Mono(d)
	m.now.Raw += int64(d)
	m.now.Boot += int64(d)
}

// Drift lets the wall clock run ppm faster than the others from now on.
func (m *manualClocks) Drift(ppm int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drift = ppm
}

// Step sets the wall clock d ahead of where it is; a negative d sets it back.
func (m *manualClocks) Step(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Wall += int64(d)
}

// Suspend suspends the machine for d: the wall clock and Boot go on, the
// others stop.
func (m *manualClocks) Suspend(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now.Wall += int64(d)
	m.now.Boot += int64(d)
}

func TestManualClocks(t *testing.T) {
	c := newManualClocks(began)
	c.Drift(200)
	c.Advance(time.Second)
	c.Step(-time.Millisecond)
	c.Suspend(time.Minute)
	c.SetKernel(Kernel{Known: true, MaxError: time.Second})
	want := Readings{
		Wall: began + int64(time.Second+200*time.Microsecond-time.Millisecond+time.Minute),
		Mono: Mono(time.Second), Raw: int64(time.Second), Boot: int64(time.Second + time.Minute),
	}
	if got := c.Read(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := c.Kernel(); !got.Known || got.MaxError != time.Second {
		t.Errorf("kernel %+v", got)
	}
}
