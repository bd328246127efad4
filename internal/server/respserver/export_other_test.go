//go:build !linux

package respserver

import "testing"

// OnAccept does nothing, since there are no loops.
func OnAccept(testing.TB, func(fd int)) {}
