package main

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// The first signal stops the program, and a later interrupt ends it at once. One that
// follows at once is an echo of the first.
func TestInterruptedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal)
		stopped, forced := false, false
		go func() {
			untilForced(signals, func() { stopped = true })
			forced = true
		}()
		for _, step := range []struct {
			after           time.Duration
			signal          os.Signal
			stopped, forced bool
		}{
			{0, syscall.SIGTERM, true, false}, {echo, os.Interrupt, true, false}, {time.Minute, syscall.SIGTERM, true, false}, {0, os.Interrupt, true, true},
		} {
			time.Sleep(step.after)
			signals <- step.signal
			synctest.Wait()
			if stopped != step.stopped || forced != step.forced {
				t.Errorf("%v: stopped %t, forced %t", step.signal, stopped, forced)
			}
		}
	})
}
