package wait

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// recorder keeps the message of Fatalf, and panics instead of ending the goroutine.
type recorder struct {
	testing.TB
	said string
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) {
	r.said = fmt.Sprintf(format, args...)
	panic(r)
}

// An event ends the wait at once, and its absence fails the test, with the last error.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		Until(t, "a second has passed", func() bool { return time.Since(began) >= time.Second })
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("waited %v for an event after 1s", took)
		}
		r := &recorder{TB: t}
		defer func() {
			if p := recover(); p != any(r) || r.said != "waited 2m0s for this: it works: attempt failed" {
				t.Errorf("%v: said %q", p, r.said)
			}
		}()
		NoError(r, "it works", func() error { return errors.New("attempt failed") })
	})
}
