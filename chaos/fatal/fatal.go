// Package fatal ends tests that cannot go on. Only tests import it.
package fatal

import "testing"

// If ends the test with the error, if there is one.
func If(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
