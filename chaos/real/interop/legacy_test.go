package interop

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bwmarrin/snowflake"
	"github.com/sony/sonyflake"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/wait"
)

// legacyVariable makes this test program a generator of another system: its name, a
// blank, and its worker number.
const legacyVariable = "INTEROP_LEGACY"

// generate prints IDs of a generator, several in each millisecond, until it is told to stop.
func generate(what string) error {
	kind, number, _ := strings.Cut(what, " ")
	worker, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return err
	}
	var next func() (int64, error)
	switch kind {
	case "bwmarrin":
		node, err := snowflake.NewNode(int64(worker))
		if err != nil {
			return err
		}
		next = func() (int64, error) { return node.Generate().Int64(), nil }
	case "sonyflake":
		s, err := sonyflake.New(sonyflake.Settings{MachineID: func() (uint16, error) { return uint16(worker), nil }})
		if err != nil {
			return err
		}
		next = func() (int64, error) {
			id, err := s.NextID()
			return int64(id), err
		}
	default:
		return fmt.Errorf("no generator %q", kind)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	out := bufio.NewWriter(os.Stdout)
	for {
		select {
		case <-stop:
			return out.Flush()
		case <-time.After(500 * time.Microsecond):
		}
		for range 4 {
			id, err := next()
			if err != nil {
				return err
			}
			fmt.Fprintln(out, id)
		}
		if err := out.Flush(); err != nil {
			return err
		}
	}
}

// startLegacy starts such a process, which writes to a file.
func startLegacy(t *testing.T, file, kind string, worker int) (stop func()) {
	t.Helper()
	out, err := os.Create(file)
	fatal.If(t, err)
	defer out.Close() // the process has its own
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", legacyVariable, kind, worker))
	cmd.Stdout = out
	_, stop = startProcess(t, cmd)
	return stop
}

// startProcess starts a program that runs until it is stopped, in order, or the test ends.
func startProcess(t *testing.T, cmd *exec.Cmd) (p *proc.Process, stop func()) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p = proc.Run(t, cmd)
	stop = sync.OnceFunc(func() {
		// etcd ends itself with the signal that it was sent.
		if err := p.Stop(wait.Most); err != nil && err.Error() != "signal: terminated" {
			t.Errorf("%s: %v", cmd, err)
		}
	})
	t.Cleanup(stop)
	return p, stop
}
