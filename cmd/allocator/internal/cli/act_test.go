package cli

import (
	"os"
	"os/user"
	"strconv"
	"strings"
	"testing"

	"github.com/flakelease/allocator/internal/lease"
)

// Nodes read what a command records, whatever its texts are.
func TestActIsBounded(t *testing.T) {
	for _, c := range []string{"x", "<", "\x00", "é", "\U0001F600"} {
		long := strings.Repeat(c, 100_000)
		if _, err := lease.Decode[lease.Act](lease.Encode(Act(long, long))); err != nil {
			t.Errorf("%q: %v", c, err)
		}
	}
}

// A user without a name, as in the image, is told by number.
func TestUserName(t *testing.T) {
	if got := userName(&user.User{Username: "ann"}, nil); got != "ann" {
		t.Errorf("ann is %s", got)
	}
	want := "uid:" + strconv.Itoa(os.Getuid())
	if got := userName(nil, user.UnknownUserIdError(os.Getuid())); got != want {
		t.Errorf("a user without a name is %s, want %s", got, want)
	}
}
