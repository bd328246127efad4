package rig

import (
	"syscall"
	"testing"
)

// What a terminal sends to the harness's group does not reach the cluster: it is
// healed first.
func TestOwnGroup(t *testing.T) {
	p := sleeper(t)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	theirs, err := syscall.Getpgid(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	if theirs == syscall.Getpgrp() {
		t.Error("the process is in the harness's group")
	}
}
