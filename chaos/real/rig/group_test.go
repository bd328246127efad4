package rig

import (
	"syscall"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

// What a terminal sends to the harness's group does not reach the cluster: it is
// healed first.
func TestOwnGroup(t *testing.T) {
	p := sleeper(t)
	fatal.If(t, p.Start())
	theirs, err := syscall.Getpgid(p.PID())
	fatal.If(t, err)
	if theirs == syscall.Getpgrp() {
		t.Error("the process is in the harness's group")
	}
}
