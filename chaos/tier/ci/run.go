package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/flakelease/allocator/chaos/tier"
)

// ci is one run of a tier.
type ci struct {
	dir   string // for what steps print
	limit bool

	mu      sync.Mutex // guards what follows
	out     io.Writer
	records []record
	left    []string // what was skipped
}

// leave adds a name to those that the last line of the output says the run went without.
func (c *ci) leave(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.left, name) {
		c.left = append(c.left, name)
	}
}

// A job is a step while it runs.
type job struct {
	ci   *ci
	ctx  context.Context
	out  io.Writer
	dir  string // in which its commands run
	env  []string
	nice bool // It gives way to what measures time.

	mu   sync.Mutex
	cmds []*exec.Cmd // All commands of the job; mu guards them.
}

// skipped is the reason why a step did not run.
type skipped string

func (s skipped) Error() string { return string(s) }

func (c *ci) job(ctx context.Context, in string, out io.Writer) *job {
	env := []string{tier.Variable + "=" + in, "CGO_ENABLED=0"}
	return &job{ci: c, ctx: ctx, out: out, dir: ".", env: env}
}

func (j *job) command(args ...string) *exec.Cmd {
	if path, err := exec.LookPath("nice"); err == nil && j.nice {
		args = append([]string{path, "-n", "10"}, args...)
	}
	cmd := exec.CommandContext(j.ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Dir, cmd.Stdout, cmd.Stderr = j.dir, j.out, j.out
	cmd.Env = append(os.Environ(), j.env...)
	j.mu.Lock()
	j.cmds = append(j.cmds, cmd)
	j.mu.Unlock()
	return cmd
}

// used returns the processor time of the commands of a step that have ended.
func (j *job) used() (d time.Duration) {
	for _, cmd := range j.cmds {
		if cmd.ProcessState != nil {
			d += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		}
	}
	return d
}

// goCommand is a command of go, which writes its output to whoever asks for it. The race detector is the only
// thing that needs a C compiler.
func (j *job) goCommand(race bool, name string, args ...string) *exec.Cmd {
	if race {
		args = append([]string{"-race"}, args...)
	}
	cmd := j.command(append([]string{"go", name}, args...)...)
	cmd.Stdout = nil
	if race {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	return cmd
}

// sh runs a script. If it ends with 77, the step is skipped, and its last line says why.
func (j *job) sh(script string) error {
	var last bytes.Buffer
	cmd := j.command("bash", "-euo", "pipefail", "-c", script)
	cmd.Stdout = io.MultiWriter(j.out, &last)
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 77 {
		lines := strings.Split(strings.TrimSpace(last.String()), "\n")
		return skipped(lines[len(lines)-1])
	}
	return err
}

// compile compiles the tests of packages and what they need, and links none. It says how far it is.
func (j *job) compile(race bool, patterns ...string) error {
	args := append([]string{"-deps", "-test"}, patterns...)
	all, err := j.goCommand(race, "list", args...).Output()
	if err != nil {
		return fmt.Errorf("list packages: %w", err)
	}
	cmd := j.goCommand(race, "list", append([]string{"-export", "-v"}, args...)...)
	cmd.Stderr = nil
	lines, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	began, said, compiled := time.Now(), time.Now(), 0
	for in := bufio.NewScanner(lines); in.Scan(); {
		if line := in.Text(); strings.ContainsAny(line, " \t") {
			_, _ = fmt.Fprintln(j.out, line)
			continue
		}
		if compiled++; compiled == 1 {
			_, _ = fmt.Fprintln(j.out,
				"compiling tests and what they need, before any runs: 3 to 15 minutes the first time")
		}
		if time.Since(said) > 15*time.Second {
			said = time.Now()
			_, _ = fmt.Fprintf(j.out, "  %4.0f s  compiled %d of at most %d packages\n",
				time.Since(began).Seconds(), compiled, bytes.Count(all, []byte("\n")))
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	if compiled > 0 {
		_, _ = fmt.Fprintf(j.out, "compiled %d packages in %s, and %s of processor time\n", compiled,
			seconds(time.Since(began)), seconds(cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()))
	}
	return nil
}

// atOnce is how many packages are tested at once: one more than two processors have time for, since some wait.
var atOnce = strconv.Itoa(max(3, runtime.NumCPU()))

// test runs go test, prints its results, and records them.
func (j *job) test(race bool, args ...string) error {
	// vet is a step of its own. Without the tables of debuggers, linking takes half as long.
	flags := []string{"-json", "-vet=off", "-ldflags=-w", "-timeout", "15m", "-p", atOnce}
	if j.nice { // Others come first, and its time is simulated: the limit is for hangs alone.
		flags = append(flags, "-timeout", "1h")
	}
	cmd := j.goCommand(race, "test", append(flags, args...)...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = results(stdout, j.out, func(r record) {
		j.ci.mu.Lock()
		defer j.ci.mu.Unlock()
		j.ci.records = append(j.ci.records, r)
	})
	return cmp.Or(cmd.Wait(), err)
}

// steps runs the steps of a tier, or some of them, and returns the exit code.
func (c *ci) steps(ctx context.Context, in string, only []string) int {
	for _, name := range only {
		if known := names(""); !slices.Contains(known, name) {
			_, _ = fmt.Fprintf(c.out, "there is no step %q: the steps are %s\n", name, strings.Join(known, " "))
			return 2
		}
	}
	return c.all(ctx, in, slices.DeleteFunc(table(), func(s step) bool {
		return len(only) == 0 && !s.in(in) || len(only) > 0 && !slices.Contains(only, s.name)
	}))
}

// all runs steps in two lanes: those that measure time, and the others.
func (c *ci) all(ctx context.Context, in string, chosen []step) int {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		_, _ = fmt.Fprintln(c.out, err)
		return 1
	}
	began := time.Now()
	var failed []string
	compiled := make(chan struct{}) // Until then, steps of the other lane compile nothing.
	lane := func(timed bool) {
		for _, s := range chosen {
			if s.timed != timed {
				continue
			}
			if !timed && !s.early {
				<-compiled
			}
			if ctx.Err() == nil && !c.step(ctx, in, s) {
				c.mu.Lock()
				failed = append(failed, s.name)
				c.mu.Unlock()
			}
			if s.name == compiling {
				close(compiled)
			}
		}
	}
	if !slices.ContainsFunc(chosen, func(s step) bool { return s.name == compiling }) {
		close(compiled)
	}
	var both sync.WaitGroup
	both.Go(func() { lane(true) })
	both.Go(func() { lane(false) })
	both.Wait()
	c.report()
	if err := c.exceeded(in, used()); err != nil {
		_, _ = fmt.Fprintln(c.out, err)
		failed = append(failed, "limits")
	}
	if err := ctx.Err(); err != nil {
		failed = append(failed, "interrupted")
	}
	if len(failed) > 0 {
		_, _ = fmt.Fprintf(c.out, "failed after %s: %s\n", seconds(time.Since(began)), strings.Join(failed, ", "))
		return 1
	}
	what := "all passed"
	if len(c.left) > 0 {
		what = "passed without " + strings.Join(c.left, ", ")
	}
	_, _ = fmt.Fprintf(c.out, "%s in %s, and %s of processor time\n", what, seconds(time.Since(began)), seconds(used()))
	return 0
}

// step runs one step, and reports whether it passed or was skipped.
func (c *ci) step(ctx context.Context, in string, s step) bool {
	began := time.Now()
	say := func(text string, a ...any) {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, _ = fmt.Fprintf(c.out, "%7s  %-14s ", time.Since(began).Round(time.Second), s.name)
		_, _ = fmt.Fprintf(c.out, text+"\n", a...)
	}
	if missing := s.missing(); missing != "" {
		say("skipped: %s", missing)
		c.leave(s.name)
		return true
	}
	name := filepath.Join(c.dir, s.name+".log")
	log, err := os.Create(name)
	if err != nil {
		say("FAILED: %v", err)
		return false
	}
	say("began")
	j := c.job(ctx, in, log)
	j.nice = !s.timed
	err = s.run(j)
	_ = log.Close()
	if skip, ok := errors.AsType[skipped](err); ok {
		say("skipped: %s", skip)
		c.leave(s.name)
		return true
	}
	if err != nil {
		text, _ := os.ReadFile(name)
		c.mu.Lock()
		_, _ = fmt.Fprintf(c.out, "---- %s\n%s----\n", name, text)
		c.mu.Unlock()
		say("FAILED: %v", err)
		return false
	}
	say("passed, with %s of processor time", seconds(j.used()))
	if text, _ := os.ReadFile(name); inPart.Match(text) {
		c.leave("parts of " + s.name)
	}
	return true
}

// inPart is a line of a step which ran in part: of another tier, and of chaos/kube.
var inPart = regexp.MustCompile(`(?m)^(passed without .*|kube: .*, [1-9][0-9]* not run, in \S+)$`)

// used returns the processor time of all programs that were started and ended: machines differ in how many
// processors they have.
func used() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u) // It fails for a wrong argument only.
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func seconds(d time.Duration) string { return d.Round(100 * time.Millisecond).String() }
