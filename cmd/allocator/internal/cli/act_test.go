package cli

import (
	"os"
	"os/user"
	"strconv"
	"testing"
)

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
