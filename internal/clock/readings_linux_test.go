package clock

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestKernelOf(t *testing.T) {
	for _, tc := range []struct {
		name  string
		state int
		timex unix.Timex
		want  Kernel
	}{
		{"disciplined", unix.TIME_OK, unix.Timex{Status: unix.STA_PLL | unix.STA_NANO, Maxerror: 1500, Esterror: 20},
			Kernel{Known: true, Synchronized: true, MaxError: 1500 * time.Microsecond}},
		{"no daemon", unix.TIME_ERROR, unix.Timex{Status: unix.STA_UNSYNC, Maxerror: 16_000_000, Esterror: 16_000_000},
			Kernel{Known: true, MaxError: 16 * time.Second}},
		{"either says it", unix.TIME_ERROR, unix.Timex{}, Kernel{Known: true}},
		{"or the other", unix.TIME_OK, unix.Timex{Status: unix.STA_UNSYNC}, Kernel{Known: true}},
		{"second to come", unix.TIME_INS, unix.Timex{Status: unix.STA_INS},
			Kernel{Known: true, Synchronized: true}},
		{"second to go", unix.TIME_DEL, unix.Timex{Status: unix.STA_DEL},
			Kernel{Known: true, Synchronized: true}},
	} {
		if got := kernelOf(tc.state, &tc.timex); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

// A read has every clock of the kernel, where a sandbox does not take it away.
func TestReadTakesKernelClocks(t *testing.T) {
	got := machine{time.Now()}.Read()
	for id, read := range map[int32]int64{unix.CLOCK_MONOTONIC_RAW: got.Raw, unix.CLOCK_BOOTTIME: got.Boot} {
		if want := nanos(id); want != 0 && time.Duration(want-read).Abs() > time.Minute {
			t.Errorf("clock %d: read %d, want %d", id, read, want)
		}
	}
}
