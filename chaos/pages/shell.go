package pages

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/wait"
)

// A Config says where the commands of a page run.
type Config struct {
	Dir    string            // Commands run in it, and files are below it.
	Env    []string          // in addition to the test's own
	Here   *strings.Replacer // from what the page names to what is there; nil: nothing
	Within time.Duration     // A command may take this long; 0 is wait.Most.
}

// A Shell runs commands in one sh after the other, so that variables and directories
// carry on. Standard input is empty. Not for concurrent use.
type Shell struct {
	t  testing.TB
	c  Config
	sh *process // nil before the first command, and after one that failed
	in io.Writer

	background map[string]*process
}

// NewShell returns a shell whose processes end with the test.
func NewShell(t testing.TB, c Config) *Shell {
	if c.Here == nil {
		c.Here = strings.NewReplacer()
	}
	if c.Within == 0 {
		c.Within = wait.Most
	}
	s := &Shell{t: t, c: c, background: map[string]*process{}}
	t.Cleanup(func() {
		for _, p := range s.background {
			p.KillGroup()
		}
		if s.sh != nil {
			s.sh.KillGroup()
		}
	})
	return s
}

// process is a program, in a process group of its own with all that it starts.
type process struct {
	*proc.Process
	out output.Text
}

func (s *Shell) start(args ...string) (*process, io.Writer, error) {
	p, cmd := &process{}, exec.Command("sh", args...)
	cmd.Dir, cmd.Env = s.c.Dir, append(os.Environ(), s.c.Env...)
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = time.Second // a program in the background keeps the pipe open
	in, err := cmd.StdinPipe()
	if err == nil {
		p.Process, err = proc.Start(cmd)
	}
	if err != nil {
		return nil, nil, err
	}
	return p, in, nil
}

// await waits until f is true or the process has ended.
func (p *process) await(within time.Duration, f func() bool) error {
	for deadline := time.Now().Add(within); !f(); time.Sleep(5 * time.Millisecond) {
		if !p.Running() {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v; it printed\n%s", within, p.out.String())
		}
	}
	return nil
}

// ErrFailed is what Run returns after a command that failed.
var ErrFailed = errors.New("failed")

// done is printed after the commands of a Run.
const done = "\n--- all commands of this block have run ---\n"

// Run runs commands and returns what they print. They stop at the first that fails: then
// the error is ErrFailed, the exit code is not 0, and the next Run begins anew.
func (s *Shell) Run(commands string) (out string, code int, err error) {
	if s.sh == nil {
		if s.sh, s.in, err = s.start("-eu"); err != nil {
			return "", 0, err
		}
	}
	p, before := s.sh, len(s.sh.out.String())
	if _, err := fmt.Fprintf(s.in, "{\n%s\n} </dev/null\nprintf '%s'\n", s.c.Here.Replace(commands),
		strings.ReplaceAll(done, "\n", `\n`)); err != nil {
		return "", 0, err
	}
	err = p.await(s.c.Within, func() bool { return strings.HasSuffix(p.out.String()[before:], done) })
	out, ran := strings.CutSuffix(p.out.String()[before:], done)
	if ran {
		return out, 0, nil
	}
	p.KillGroup()
	s.sh = nil
	if err == nil {
		code, err = p.Cmd.ProcessState.ExitCode(), ErrFailed
	}
	return out, code, fmt.Errorf("%s: exit code %d: %w:\n%s", strings.TrimSpace(commands), code, err, out)
}

// Must is Run for commands whose exit code the test looks at. Any other error ends it.
func (s *Shell) Must(commands string) (out string, code int) {
	s.t.Helper()
	out, code, err := s.Run(commands)
	if err != nil && !errors.Is(err, ErrFailed) {
		s.t.Fatal(err)
	}
	return out, code
}

// Carry carries out a block as its mark says.
func (s *Shell) Carry(b Block) error {
	what, name, _ := strings.Cut(b.Mark, ": ")
	switch {
	case what == "file":
		path := filepath.Join(s.c.Dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		return os.WriteFile(path, []byte(s.c.Here.Replace(b.Text)), 0o600)
	case what == "run" && b.Lang != "console":
		_, _, err := s.Run(b.Text)
		return err
	case what == "interrupt":
		return s.interrupt(name, b.Text)
	case what != "run" && what != "background":
		return nil
	}
	steps, err := b.Steps()
	if err != nil {
		return err
	}
	if what == "background" && len(steps) != 1 {
		return fmt.Errorf("%d commands in the background: use a block for each", len(steps))
	}
	for _, step := range steps {
		if what == "background" {
			return s.leave(name, step)
		}
		out, _, err := s.Run(step.Command)
		if err == nil {
			err = Compare(out, step.Prints)
		}
		if err != nil {
			return fmt.Errorf("$ %s%w", step.Command, err)
		}
	}
	return nil
}

// leave starts a command with the variables and the directory of the shell, and returns
// when it has printed what the page shows.
func (s *Shell) leave(name string, step Step) error {
	state, _, err := s.Run(`export -p; printf 'cd "%s"\n' "$PWD"`)
	if err != nil {
		return err
	}
	p, _, err := s.start("-euc", state+"\n"+s.c.Here.Replace(step.Command))
	if err != nil {
		return err
	}
	s.background[name] = p
	if err := p.await(s.c.Within, func() bool { return Compare(p.out.String(), step.Prints) == nil }); err != nil {
		return err
	}
	return Compare(p.out.String(), step.Prints)
}

// interrupt does what Ctrl-C does to a command in the background.
func (s *Shell) interrupt(name, prints string) error {
	p := s.background[name]
	if p == nil {
		return fmt.Errorf("nothing called %q runs in the background", name)
	}
	before := len(p.out.String())
	if err := syscall.Kill(-p.Cmd.Process.Pid, syscall.SIGINT); err != nil {
		return err
	}
	if err := p.await(s.c.Within, func() bool { return false }); err != nil {
		return err
	}
	return Compare(p.out.String()[before:], strings.TrimPrefix(prints, "^C\n"))
}
