package pages

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/flakelease/allocator/chaos/fatal"
)

// inside is set in the second run of a test, to what prepare returned in the first.
const inside = "PAGES_OWN_NETWORK"

// OwnNetwork runs this test again in a network namespace of its own, where it has all
// addresses of a page to itself, and none beyond the machine; what it mounts is seen there
// alone. There it returns true, and what prepare returned outside. Outside it returns false after that run; without the
// right to make a namespace it skips the test.
func OwnNetwork(t *testing.T, prepare func() string) (prepared string, ok bool) {
	t.Helper()
	if name, prepared, ok := strings.Cut(os.Getenv(inside), " "); ok && name == t.Name() {
		_ = os.Unsetenv(inside)
		fatal.If(t, errors.Join(loopback(), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")))
		return prepared, true
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run",
		"^"+t.Name()+"$", "-test.v", "-test.timeout", "10m")
	cmd.Env = append(os.Environ(), inside+"="+t.Name()+" "+prepare())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Pdeathsig:  syscall.SIGKILL,
	}
	if uid, gid := os.Getuid(), os.Getgid(); uid != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: gid, Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Skipf("not run: no network of its own can be made: %v", err)
	}
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	if bytes.Contains(out, []byte("--- SKIP: "+t.Name()+" (")) {
		t.Skip("not run: it was skipped in its network")
	}
	return "", false
}

// loopback brings the namespace's only interface up.
func loopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	lo, err := unix.NewIfreq("lo")
	if err == nil {
		lo.SetUint16(unix.IFF_UP)
		err = unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
	}
	return errors.Join(err, unix.Close(s))
}
