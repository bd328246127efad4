package main

import (
	"testing"
	"time"
)

// The command measures what it is asked to, and finds the goals in it.
func TestRun(t *testing.T) {
	if !run(2, time.Microsecond, "parse a UUID") { // has no goal to miss
		t.Error("a goal was missed where there is none")
	}
	run(1, time.Microsecond, "")
}
