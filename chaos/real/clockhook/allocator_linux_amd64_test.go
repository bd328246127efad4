package clockhook

import (
	"bufio"
	"fmt"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	programs "github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// series returns the metrics of a node, by name and labels.
func series(t *testing.T, admin string) (out map[string]float64, date time.Time) {
	t.Helper()
	response, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		return nil, time.Time{}
	}
	defer response.Body.Close()
	out = map[string]float64{}
	for in := bufio.NewScanner(response.Body); in.Scan(); {
		name, value, _ := strings.Cut(in.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			out[name] = v
		}
	}
	date, err = http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		t.Errorf("date: %v", err)
	}
	return out, date
}

// The release build sees what it is shown, and says so itself: a step of its wall
// clock, a sleep of its machine (the boot clock, read by system call, went on
// while the others were stopped) and the state of the kernel's clock.
func TestAllocator(t *testing.T) {
	if err := Supported(); err != nil {
		t.Skip("not run:", err)
	}
	path, err := programs.Allocator(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	addrs := loopback.Addresses(3)
	flags := fmt.Sprintf("serve --etcd.endpoints http://127.0.0.1:1 --listen.gossip= "+
		"--listen.grpc %s --listen.http %s --listen.admin %s", addrs[0], addrs[1], addrs[2])
	admin := addrs[2]
	cmd := exec.Command(path, strings.Fields(flags)...)
	log := new(strings.Builder)
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	h, err := Start(cmd, Offsets{Wall: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(log)
		}
	}()

	until := func(what string, seen func(map[string]float64) bool) {
		t.Helper()
		var last map[string]float64
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if last, _ = series(t, admin); last != nil && seen(last) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: not seen; the node says %v", what, last)
			}
		}
	}
	const (
		forward  = `allocator_clock_steps_total{direction="forward"}`
		back     = `allocator_clock_steps_total{direction="back"}`
		suspends = `allocator_clock_suspends_total`
	)
	until("the start", func(m map[string]float64) bool { _, ok := m[forward]; return ok })
	m, date := series(t, admin)
	if ahead := time.Until(date); ahead < 59*time.Minute || ahead > 61*time.Minute || m[forward] != 0 || m[suspends] != 0 {
		t.Errorf("started an hour ahead, it is %v ahead; %v steps, %v suspends", ahead, m[forward], m[suspends])
	}
	if err := h.Step(Offsets{Wall: time.Hour}); err != nil {
		t.Fatal(err)
	}
	until("an hour forward", func(m map[string]float64) bool { return m[forward] == 1 })
	if err := h.Step(Offsets{Wall: -2 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	until("two hours back", func(m map[string]float64) bool { return m[back] == 1 })
	if _, err := h.Suspend(t.Context(), 1500*time.Millisecond, Asleep); err != nil {
		t.Fatal(err)
	}
	until("a sleep", func(m map[string]float64) bool { return m[suspends] == 1 })
	for name, d := range map[string]Discipline{
		"disciplined": {State: unix.TIME_OK, MaxError: 3 * time.Millisecond},
		"wild":        {State: unix.TIME_ERROR, Status: unix.STA_UNSYNC, MaxError: 9 * time.Second},
	} {
		if err := h.SetDiscipline(&d); err != nil {
			t.Fatal(err)
		}
		until(name, func(m map[string]float64) bool {
			return m["allocator_clock_kernel_max_error_seconds"] == d.MaxError.Seconds() &&
				(m["allocator_clock_kernel_synchronized"] == 1) == (d.State == unix.TIME_OK)
		})
	}
	if c := h.Counts(); c.VDSO == 0 || c.Plain == 0 || c.Adjtime == 0 {
		t.Errorf("%+v", c)
	}
}
