package cli

import (
	"cmp"
	"crypto/rand"
	"os"
	"os/user"
	"strconv"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// OperatorName returns who runs the command, and where, as well as it is known.
func OperatorName() string {
	name := userName(user.Current())
	if by := os.Getenv("SUDO_USER"); by != "" && by != name {
		name = by + " as " + name
	}
	host, _ := os.Hostname()
	return lease.Printable(name + "@" + cmp.Or(host, "unknown"))
}

// userName returns the name of a user, or the number of the process's where no name is known, as in the image.
func userName(u *user.User, err error) string {
	if err != nil {
		return "uid:" + strconv.Itoa(os.Getuid())
	}
	return u.Username
}

// WhyDone is the usage of --reason where the reason is no part of a record.
const WhyDone = "why; nodes log it, with user and host"

// Act returns what nodes log of an action.
func Act(action, reason string) lease.Act {
	return lease.Act{
		Action: lease.Printable(action),
		By:     OperatorName(),
		Reason: lease.Printable(reason),
		At:     clock.Millis(time.Now().UnixMilli()),
		Nonce:  rand.Text(),
	}
}
