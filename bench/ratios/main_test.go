package main

import (
	"testing"
	"time"
)

// TestRun: the command measures the selected groups, and finds their goals.
func TestRun(t *testing.T) {
	if !run(2, time.Microsecond, "parse a UUID") { // has no goal to miss
		t.Error("a goal was missed where there is none")
	}
	run(1, time.Microsecond, "")
}
