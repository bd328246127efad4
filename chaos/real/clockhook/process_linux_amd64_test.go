package clockhook

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flakelease/allocator/chaos/fatal"
)

// clocks is what testdata/clocks answers.
type clocks struct {
	Now   int64
	Nanos int
	Since time.Duration
	Plain [16]int64
	Rest  [16]int64
	Sync  time.Duration
	Error string
	State int
	Timex unix.Timex
	Back  time.Duration
	Files []string
}

// program is a hooked testdata/clocks.
type program struct {
	*Hook
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

var built string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "clockhook-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	built = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// build builds a program of this module.
func build(t *testing.T, name, from string, flags ...string) string {
	t.Helper()
	if err := Supported(); err != nil {
		t.Skip("not run:", err)
	}
	path := filepath.Join(built, name)
	if _, err := os.Stat(path); err == nil {
		return path
	}
	cmd := exec.Command("go", slices.Concat([]string{"build", "-o", path}, flags, []string{from})...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, out)
	}
	return path
}

func start(t *testing.T, path string, o Offsets) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(path)}
	in, err := p.cmd.StdinPipe()
	fatal.If(t, err)
	out, err := p.cmd.StdoutPipe()
	fatal.If(t, err)
	p.cmd.Stderr = os.Stderr
	p.in, p.out = in, bufio.NewReader(out)
	p.Hook, err = Start(p.cmd, o)
	fatal.If(t, err)
	t.Cleanup(func() {
		in.Close()
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("it ended with %v", err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *program) ask(command string, arguments ...any) (a clocks) {
	p.t.Helper()
	fmt.Fprintf(p.in, command+"\n", arguments...)
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		p.t.Fatalf("%s: %v", command, err)
	}
	if err := json.Unmarshal(line, &a); err != nil {
		p.t.Fatalf("%s: %v", command, err)
	}
	return a
}

// shift is how far a clock in the program stands from ours: between low and high,
// which are as far apart as the question took.
type shift struct{ low, high time.Duration }

func (s shift) holds(want time.Duration) bool { return s.low <= want && want <= s.high }

const viaNow = -1 // CLOCK_REALTIME by time.Now

// shifts asks once for each clock.
func (p *program) shifts() map[int]shift {
	p.t.Helper()
	var before, after [16]unix.Timespec
	all := func(to *[16]unix.Timespec) {
		for id := range to {
			_ = unix.ClockGettime(int32(id), &to[id])
		}
	}
	all(&before)
	a := p.ask("read")
	all(&after)
	out := map[int]shift{}
	between := func(id int, sec, nsec int64, b, c unix.Timespec) {
		// Of seconds and nanoseconds apart, for years that do not fit into one.
		out[id] = shift{time.Duration(sec-c.Sec)*time.Second + time.Duration(nsec-c.Nsec), time.Duration(sec-b.Sec)*time.Second + time.Duration(nsec-b.Nsec)}
	}
	for id := range a.Plain {
		if a.Rest[id] < 0 || a.Rest[id] >= 1e9 {
			p.t.Errorf("clock %d: %d nanoseconds", id, a.Rest[id])
		}
		if id != unix.CLOCK_PROCESS_CPUTIME_ID && id != unix.CLOCK_THREAD_CPUTIME_ID && before[id].Sec != 0 {
			between(id, a.Plain[id], a.Rest[id], before[id], after[id])
		}
	}
	between(viaNow, a.Now, int64(a.Nanos), before[0], after[0])
	return out
}

// check demands that each clock stands where it should, give or take slack.
func (p *program) check(what string, want Offsets, slack time.Duration) {
	p.t.Helper()
	got := p.shifts()
	if len(got) < 7 {
		p.t.Fatalf("%s: %d clocks were read", what, len(got))
	}
	for id, s := range got {
		w := want.Wall
		switch id {
		case unix.CLOCK_MONOTONIC, unix.CLOCK_MONOTONIC_COARSE:
			w = want.Mono
		case unix.CLOCK_MONOTONIC_RAW:
			w = want.Raw
		case unix.CLOCK_BOOTTIME, unix.CLOCK_BOOTTIME_ALARM:
			w = want.Boot
		}
		// Coarse clocks stand up to a tick behind at each end.
		grain := slack
		if id == unix.CLOCK_REALTIME_COARSE || id == unix.CLOCK_MONOTONIC_COARSE {
			grain += 10 * time.Millisecond
		}
		if (shift{s.low - grain, s.high + grain}).holds(w) {
			continue
		}
		p.t.Errorf("%s: clock %d is off by between %v and %v, want %v", what, id, s.low, s.high, w)
	}
}

func TestOffsets(t *testing.T) {
	first := Offsets{Wall: -time.Hour, Mono: 3 * time.Second, Raw: 5 * time.Second, Boot: 7 * time.Second}
	p := start(t, build(t, "clocks", "./testdata/clocks"), first)
	p.check("at the start", first, 0)

	year := 365 * 24 * time.Hour
	for _, o := range []Offsets{
		{Wall: time.Hour},
		{Wall: -3 * time.Second},
		{Wall: time.Nanosecond, Raw: -time.Nanosecond, Boot: time.Millisecond},
		{Wall: 999_999_999, Boot: -999_999_999},
		{Boot: -time.Hour, Raw: -time.Minute},
		{Wall: 280 * year}, // beyond the last nanosecond that 64 bits count
		{Wall: -56 * year}, // about 1970
		{},
	} {
		fatal.If(t, p.Set(o))
		p.check(fmt.Sprintf("%+v", o), o, 0)
		if got := p.Offsets(); got != o {
			t.Errorf("Offsets() = %+v, want %+v", got, o)
		}
	}
	fatal.If(t, p.Step(All(time.Minute)))
	fatal.If(t, p.Step(Offsets{Wall: time.Second}))
	p.check("two steps", All(time.Minute).Add(Offsets{Wall: time.Second}), 0)

	c := p.Counts()
	if c.VDSO == 0 || c.Plain == 0 || c.Syncs != 0 {
		t.Errorf("%+v: readings went through the hook, and no syncs", c)
	}
	for _, name := range p.ask("files").Files {
		if strings.Contains(name, "clockhook") {
			t.Errorf("the program has %s open", name)
		}
	}
}

// time.Since goes by the monotonic clock alone.
func TestMonotonicOfTheRuntime(t *testing.T) {
	p := start(t, build(t, "clocks", "./testdata/clocks"), Offsets{})
	before := p.ask("read").Since
	fatal.If(t, p.Step(Offsets{Wall: -time.Hour, Mono: time.Minute}))
	if got := p.ask("read").Since - before; got < time.Minute || got > 2*time.Minute {
		t.Errorf("a minute forward is %v", got)
	}
}

func TestDrift(t *testing.T) {
	p := start(t, build(t, "clocks", "./testdata/clocks"), Offsets{Wall: time.Hour})
	before := time.Now()
	fatal.If(t, p.Drift(Rates{Wall: 1e6, Mono: -5e5}))
	began := time.Now()
	// All threads see every clock rise while it drifts backwards and its rate is
	// changed a thousand times.
	var changes atomic.Int64
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(200 * time.Microsecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				_ = p.Drift(Rates{Wall: 1e6, Mono: -5e5, Raw: 9e5 - 18e5*float64(changes.Add(1)%2)})
			}
		}
	}()
	for changes.Load() < 1000 {
		if back := p.ask("spin 100ms").Back; back > 0 {
			t.Errorf("a clock went back by %v", back)
			break
		}
	}
	close(done)
	<-stopped
	least := time.Since(began)
	fatal.If(t, p.Drift(Rates{}))
	most := time.Since(before)
	got, rounded := p.Offsets(), time.Duration(changes.Load()) // Each change rounds by less than a nanosecond.
	if gained := got.Wall - time.Hour; gained < least-rounded || gained > most+rounded {
		t.Errorf("at double speed for %v to %v, it gained %v", least, most, gained)
	}
	if lost := -got.Mono; lost < least/2-rounded || lost > most/2+rounded {
		t.Errorf("at half speed for %v to %v, it lost %v", least, most, lost)
	}
	p.check("after the drift", got, 0)
	for _, ppm := range []float64{-1e6, 2e6} {
		if err := p.Drift(Crystal(ppm)); err == nil {
			t.Errorf("%v ppm is taken", ppm)
		}
	}
}

// The process computes a drift that goes on as Offsets does.
func TestDriftInTheProcess(t *testing.T) {
	p := start(t, build(t, "clocks", "./testdata/clocks"), Offsets{Wall: -time.Hour})
	for _, r := range []Rates{Crystal(1e6), Crystal(-9e5), Slewed(5000), {Boot: -5000}} {
		fatal.If(t, p.Drift(r))
		time.Sleep(20 * time.Millisecond) // that there is something to see
		before := p.Offsets()
		s := p.shifts()
		after := p.Offsets()
		low, high := min(before.Wall, after.Wall), max(before.Wall, after.Wall)
		if s[viaNow].high < low || s[viaNow].low > high {
			t.Errorf("%+v: the wall clock is off by %v, and should by %v to %v", r, s[viaNow], low, high)
		}
		low, high = min(before.Boot, after.Boot), max(before.Boot, after.Boot)
		if s[unix.CLOCK_BOOTTIME].high < low || s[unix.CLOCK_BOOTTIME].low > high {
			t.Errorf("%+v: the boot clock is off by %v, and should by %v to %v", r, s[unix.CLOCK_BOOTTIME], low, high)
		}
	}
}

// While values are being changed, no clock is read.
func TestHalfChanged(t *testing.T) {
	p := start(t, build(t, "clocks", "./testdata/clocks"), Offsets{})
	p.ask("read")
	p.mu.Lock()
	p.page.word(wordSeq).Add(1)
	p.page.word(wordClock).Store(12345) // seconds of the wall clock, without the rest
	answered := make(chan clocks, 1)
	go func() { answered <- p.ask("read") }()
	select {
	case a := <-answered:
		t.Errorf("it read %d, half changed", a.Now)
	case <-time.After(100 * time.Millisecond):
	}
	p.page.word(wordClock).Store(3600)
	p.page.word(wordSeq).Add(1)
	p.mu.Unlock()
	if ahead := time.Until(time.Unix((<-answered).Now, 0)); ahead < 59*time.Minute || ahead > time.Hour {
		t.Errorf("it is %v ahead", ahead)
	}
}

func TestStrobe(t *testing.T) {
	p := start(t, build(t, "clocks", "./testdata/clocks"), Offsets{Wall: time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	type result struct {
		moves int
		err   error
	}
	done := make(chan result)
	go func() {
		moves, err := p.Strobe(ctx, Offsets{Wall: time.Hour}, 10*time.Millisecond)
		done <- result{moves, err}
	}()
	forth, back := 0, 0
	for deadline := time.Now().Add(30 * time.Second); (forth == 0 || back == 0) && time.Now().Before(deadline); {
		switch s := p.shifts()[viaNow]; {
		case s.low > 30*time.Minute:
			forth++
		case s.high < 30*time.Minute:
			back++
		}
	}
	cancel()
	r := <-done
	if forth == 0 || back == 0 || r.moves == 0 || r.err != nil {
		t.Errorf("%d readings forth, %d back, in %d moves: %v", forth, back, r.moves, r.err)
	}
	p.check("after the strobe", Offsets{Wall: time.Second}, 0)
}

func TestSuspend(t *testing.T) {
	for _, tc := range []struct {
		name string
		c    Clocks
	}{{"paused", Paused}, {"asleep", Asleep}} {
		t.Run(tc.name, func(t *testing.T) {
			p := start(t, build(t, "clocks", "./testdata/clocks"), Offsets{})
			spun := make(chan time.Duration)
			go func() { spun <- p.ask("spin 600ms").Back }() // before, and long after
			began := time.Now()
			held, err := p.Suspend(t.Context(), 200*time.Millisecond, tc.c)
			fatal.If(t, err)
			if held < 200*time.Millisecond || held > time.Since(began) {
				t.Errorf("held for %v of %v", held, time.Since(began))
			}
			if back := <-spun; back > 0 {
				t.Errorf("a clock went back by %v", back)
			}
			want := tc.c.back(held)
			if got := p.Offsets(); got != want {
				t.Errorf("offsets are %+v, want %+v", got, want)
			}
			p.check("resumed", want, 0)
		})
	}
}

func TestSuspendOfNobody(t *testing.T) {
	p := start(t, build(t, "clocks", "./testdata/clocks"), Offsets{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// Cut short, it still lets the process go on.
	if _, err := p.Suspend(ctx, time.Hour, Paused); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	p.ask("read")
}

func TestSync(t *testing.T) {
	p := start(t, build(t, "clocks", "./testdata/clocks"), Offsets{})
	file := filepath.Join(t.TempDir(), "file")
	if a := p.ask("sync %s", file); a.Error != "" || p.Counts() != (Counts{VDSO: p.Counts().VDSO, Plain: 2, Syncs: 2}) {
		t.Errorf("at rest: %q, %+v", a.Error, p.Counts())
	}
	fatal.If(t, p.SlowSync(300*time.Millisecond))
	if a := p.ask("sync %s", file); a.Error != "" || a.Sync < 600*time.Millisecond {
		t.Errorf("two slow syncs took %v: %q", a.Sync, a.Error)
	}
	fatal.If(t, errors.Join(p.SlowSync(0), p.FailSync(syscall.EIO)))
	if a := p.ask("sync %s", file); !strings.Contains(a.Error, "input/output error") {
		t.Errorf("a sync that should fail says %q", a.Error)
	}
	fatal.If(t, p.FailSync(0))
	if a := p.ask("sync %s", file); a.Error != "" || a.Sync > 200*time.Millisecond*10 {
		t.Errorf("healed: took %v: %q", a.Sync, a.Error)
	}
	if c := p.Counts(); c.Slowed != 2 || c.Failed != 1 || c.Syncs != 7 {
		t.Errorf("%+v", c)
	}
}

func TestWrite(t *testing.T) {
	p := start(t, build(t, "clocks", "./testdata/clocks"), Offsets{})
	file := filepath.Join(t.TempDir(), "file")
	if a := p.ask("write %s", file); a.Error != "" {
		t.Fatalf("at rest: %q", a.Error)
	}
	healthy, err := os.ReadFile(file)
	if err != nil || len(healthy) != 8192 {
		t.Fatalf("at rest %d bytes were written: %v", len(healthy), err)
	}
	fatal.If(t, p.FailWrite(syscall.ENOSPC))
	a := p.ask("write %s", file)
	if n := strings.Count(a.Error, "no space left on device"); n != 3 || strings.Contains(a.Error, "pipe") {
		t.Errorf("three writes to a file and one to a pipe, on a full disk: %q", a.Error)
	}
	if b, err := os.ReadFile(file); err != nil || len(b) != 0 {
		t.Errorf("a full disk has %q: %v", b, err)
	}
	fatal.If(t, p.FailWrite(0))
	if a := p.ask("write %s", file); a.Error != "" {
		t.Errorf("healed: %q", a.Error)
	}
	if b, err := os.ReadFile(file); err != nil || !bytes.Equal(b, healthy) {
		t.Errorf("healed, %d other bytes were written: %v", len(b), err)
	}
	if c := p.Counts(); c.Unwritten != 3 {
		t.Errorf("%+v", c)
	}
}

func TestDiscipline(t *testing.T) {
	p := start(t, build(t, "clocks", "./testdata/clocks"), Offsets{})
	before := p.ask("adjtimex")
	if before.Error != "" {
		t.Skip("not run: adjtimex:", before.Error)
	}
	d := Discipline{State: unix.TIME_ERROR, Status: unix.STA_UNSYNC | unix.STA_INS, MaxError: 16 * time.Second, EstError: 3 * time.Millisecond}
	fatal.If(t, p.SetDiscipline(&d))
	a := p.ask("adjtimex")
	if a.State != d.State || int(a.Timex.Status) != d.Status || a.Timex.Maxerror != 16_000_000 || a.Timex.Esterror != 3000 || a.Timex.Tolerance != before.Timex.Tolerance {
		t.Errorf("got %d, %+v", a.State, a.Timex)
	}
	fatal.If(t, p.SetDiscipline(nil))
	if a := p.ask("adjtimex"); a.State != before.State || a.Timex.Status != before.Timex.Status {
		t.Errorf("got %d, %+v; it was %d, %+v", a.State, a.Timex, before.State, before.Timex)
	}
	if c := p.Counts(); c.Adjtime != 1 {
		t.Errorf("%+v", c)
	}
}

// A program that is loaded wherever the kernel likes is hooked all the same.
func TestPositionIndependent(t *testing.T) {
	p := start(t, build(t, "clocks-pie", "./testdata/clocks", "-buildmode=pie"), All(time.Hour))
	p.check("a PIE", All(time.Hour), 0)
}

func TestUnsupported(t *testing.T) {
	stripped := build(t, "clocks-stripped", "./testdata/clocks", "-ldflags=-s")
	before := runtime.NumGoroutine()
	for _, path := range []string{stripped, "/bin/sh"} {
		h, err := Start(exec.Command(path), Offsets{})
		if h != nil || !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v, %v", path, h, err)
		}
	}
	if _, err := Start(exec.Command("/nowhere"), Offsets{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a program that is not there: %v", err)
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines, %d before", after, before)
	}
}

func TestClosed(t *testing.T) {
	p := start(t, build(t, "clocks", "./testdata/clocks"), Offsets{Wall: time.Hour})
	fatal.If(t, p.Close())
	for what, err := range map[string]error{"Set": p.Set(Offsets{}), "Drift": p.Drift(Rates{}), "SlowSync": p.SlowSync(1), "Close": p.Close()} {
		if what != "Close" && !errors.Is(err, ErrClosed) || what == "Close" && err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	p.check("after Close", Offsets{Wall: time.Hour}, 0)
}
