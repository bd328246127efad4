// Package wait waits, in tests, for what other goroutines and processes do.
package wait

import (
	"errors"
	"testing"
	"time"
)

// Most is how long a test waits for one event. It is no claim about speed: it ends a test
// whose event never comes, with a message, and is long enough for a machine under load.
const Most = 2 * time.Minute

// Until returns when ok returns true, and fails the test if that takes longer than Most.
// What describes the event, as in "the node is ready".
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	NoError(t, what, func() error {
		if ok() {
			return nil
		}
		return errNotYet
	})
}

var errNotYet = errors.New("not yet")

// NoError returns when f returns nil, and fails the test with the last error if that takes
// longer than Most.
func NoError(t testing.TB, what string, f func() error) {
	t.Helper()
	for began, pause := time.Now(), time.Millisecond; ; time.Sleep(pause) {
		err := f()
		if err == nil {
			return
		}
		if time.Since(began) > Most {
			t.Fatalf("waited %v for this: %s: %v", Most, what, err)
		}
		pause = min(pause*5/4, 50*time.Millisecond)
	}
}
