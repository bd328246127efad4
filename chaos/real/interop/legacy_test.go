package interop

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bwmarrin/snowflake"
	"github.com/sony/sonyflake"

	"github.com/flakelease/allocator/chaos/fatal"
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
func startLegacy(t *testing.T, file, kind string, worker int) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", legacyVariable, kind, worker))
	return startProcess(t, cmd, file, file+".err")
}

// process is a program that runs until stop, at most as long as the test.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	over bool
}

func startProcess(t *testing.T, cmd *exec.Cmd, stdout, stderr string) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd}
	open := func(path string) *os.File {
		f, err := os.Create(path)
		fatal.If(t, err)
		return f
	}
	out, errs := open(stdout), open(stderr)
	cmd.Stdout, cmd.Stderr = out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Start()
	_, _ = out.Close(), errs.Close() // the process has its own
	fatal.If(t, err)
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			text, _ := os.ReadFile(stderr)
			t.Logf("%s:\n%s", stderr, text[max(0, len(text)-3000):])
		}
	})
	return p
}

// stop ends the process by SIGTERM, in order.
func (p *process) stop() {
	p.t.Helper()
	if p.over {
		return
	}
	p.over = true
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	// etcd ends itself with the signal that it was sent.
	if err := p.cmd.Wait(); err != nil && err.Error() != "signal: terminated" {
		p.t.Errorf("%s: %v", p.cmd, err)
	}
}
