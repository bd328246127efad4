//go:build linux

package worker

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/worker"
)

// Exit codes of shells for a command that cannot be started.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the number of the signal that ended the command
)

// tick is how often the clocks are read. The margin has to be much longer.
const tick = 100 * time.Millisecond

// runCommand returns "allocator worker run".
func runCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARG]…",
		Short: "Run a program with a worker number that nobody else has",
		Long: `Run keeps a worker number extended for as long as the command runs, and then gives it back.
The command has in its environment

  ALLOCATOR_WORKER         the number
  ALLOCATOR_DATACENTER_ID  its upper bits, and
  ALLOCATOR_WORKER_ID      its lower 5 bits, as Twitter's generator divides them
  ALLOCATOR_WORKER_FILE    a file with the interval in which the number may be used

but not ALLOCATOR_TOKEN.

If the number cannot be extended, all processes of the command get SIGTERM, and SIGKILL
after --grace, --margin before the number could be somebody else's. The command is killed
as well when this process is killed, but not what it started: let scripts exec programs.
A process that becomes another user, by setuid or sudo, cannot be stopped.
If the command does not compare its IDs with the file, they are unique only as long as it is
stopped in time, and this machine's clock is right.

Signals are forwarded. The exit code is the command's, 128 and the number of a signal that
ended it, 3 if the number could not be extended, 126 or 127 if the command could not be
started, and 1 or 3 if there was no number.`,
		Example: "  allocator worker run -- java -jar app.jar\n  allocator worker run --name orders --addr " +
			"allocator-0:9000,allocator-1:9000 -- ./app --listen :8080",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.UsageError("no command was given: write it after --, as in: allocator worker run -- ./app")
			}
			return nil
		},
	}
	cmd.Flags().SetInterspersed(false)
	r := runner{kill: syscall.Kill}
	configure := workerFlags(a, cmd)
	margin := cmd.Flags().Duration("margin", 5*time.Second,
		"how long before the end of the interval all processes of the command are killed")
	grace := cmd.Flags().Duration("grace", 10*time.Second, "how long they have to end after SIGTERM")
	cmd.Flags().StringVar(&r.path, "file", "",
		"path of the file with the interval; unless given, one in a new temporary directory")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *margin < 5*tick || *grace < 0 {
			return cli.UsageError("--margin %v, --grace %v: a margin is at least %v, and no time is negative",
				*margin, *grace, 5*tick)
		}
		program, err := exec.LookPath(args[0])
		if err != nil {
			return notStarted(args[0], err)
		}
		a.DetachErr()
		cfg, err := configure(args[0])
		if err != nil {
			return err
		}
		r.log = logger(a)
		w, err := openWorker(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		r.worker, r.guard = w, guard{margin: margin.Milliseconds(), grace: grace.Milliseconds()}
		return r.run(program, args, a.Env)
	}
	return cmd
}

// notStarted is the error of a command that cannot be started.
func notStarted(name string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	var cause *exec.Error
	if errors.As(err, &cause) {
		err = cause.Err
	}
	return cli.Exit(code, fmt.Errorf("%s: cannot be started: %w", cli.Show(name), err))
}

// runner runs a command with a worker.
type runner struct {
	worker *worker.Worker
	guard  guard
	path   string
	log    *slog.Logger

	kill   func(pid int, s syscall.Signal) error
	file   *file
	began  time.Time
	child  int  // its pid, which is the number of its process group
	empty  bool // The process group has ended.
	denied bool // A process could not be signaled, and that was said.
}

// exit is a process that ended or was stopped.
type exit struct {
	pid    int
	status syscall.WaitStatus
}

func (r *runner) see() {
	now := time.Now()
	r.guard.see(now.UnixMilli(), now.Sub(r.began).Milliseconds())
}

// run starts the command, waits until all of its processes have ended, and gives the
// worker back.
func (r *runner) run(program string, args, env []string) (err error) {
	// The child is killed when the thread ends that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r.began = time.Now()
	r.see()
	from, to := r.worker.Interval()
	// The release states that no ID is of until or later; 0 states nothing.
	until := to
	defer func() {
		if released := r.worker.Release(until); released != nil {
			r.log.Warn("the worker number could not be given back: it is free when its interval has passed",
				"worker", r.worker.ID(), "err", released)
		}
	}()
	if length := to - r.guard.latest(); !r.guard.fits(length) {
		until = from
		return cli.UsageError("--margin and --grace are %d ms, and the interval of a worker lasts %d ms: give less "+
			"than half of it, or raise worker.window of the nodes",
			r.guard.margin+r.guard.grace, length)
	}
	h := held{Worker: r.worker.Number(), Term: r.worker.Term(), NotBefore: from, NotAfter: to}.split()
	if r.file, err = createFile(r.path, h); err != nil {
		until = from
		return cli.Exit(cli.ExitUsage, err)
	}
	defer r.file.remove()

	// Processes whose parent has ended become children of this one, so that none is
	// missed.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		until = from
		return fmt.Errorf("prctl: %w", err)
	}
	signals := make(chan os.Signal, 64)
	signal.Notify(signals, forwarded...)
	// Caught, and dropped. If Ctrl-Z stopped this process alone, the command could outlive
	// its interval. What main ignores, the command would ignore too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTSTP, syscall.SIGPIPE)
	defer signal.Stop(signals)
	ours, terminal := foreground()
	p, err := os.StartProcess(program, args, &os.ProcAttr{
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
		Env:   append(without(env), h.environ(r.file.path)...),
		Sys:   &syscall.SysProcAttr{Setpgid: true, Foreground: terminal, Ctty: stdin, Pdeathsig: syscall.SIGKILL},
	})
	if terminal {
		signal.Ignore(syscall.SIGTTOU) // The call that takes the terminal back raises it.
		defer func() { _ = unix.IoctlSetPointerInt(stdin, unix.TIOCSPGRP, ours) }()
	}
	if err != nil {
		until = from
		return notStarted(args[0], err)
	}
	r.child = p.Pid
	_ = p.Release()
	r.log.Info("worker acquired, command started", "worker", h.Worker, "term",
		h.Term, "name", r.worker.Name(), "pid", r.child, "file", r.file.path)
	status, all := r.watch(signals, from, to)
	r.see()
	until = 0
	if all {
		until = r.guard.usedUntil()
	}
	switch {
	case r.stopped():
		return cli.Exit(cli.ExitUnavailable,
			fmt.Errorf("worker %s: the command was stopped: %s: %w", r.worker.ID(), r.guard.why, r.cause()))
	case status.Signaled():
		return cli.Exit(exitSignal+int(status.Signal()), nil)
	case status.ExitStatus() != 0:
		return cli.Exit(status.ExitStatus(), nil)
	}
	return nil
}

// stdin is the file descriptor of a terminal, if there is one.
const stdin = 0

// foreground returns the process group that stdin's terminal belongs to, and whether that
// is this process's. The command then gets the terminal: one that reads from it in the
// background would be stopped.
func foreground() (group int, ok bool) {
	group, err := unix.IoctlGetInt(stdin, unix.TIOCGPGRP)
	return group, err == nil && group == syscall.Getpgrp()
}

// leftBehind is why processes are stopped that the command left behind.
const leftBehind = "the command has ended, and left processes behind"

// stopped reports whether the command was stopped for its worker.
func (r *runner) stopped() bool { return r.guard.why != "" && r.guard.why != leftBehind }

// errClock is the cause of a stop that no call to extend failed before.
var errClock = errors.New("no call failed; check this machine's clock")

func (r *runner) cause() error { return cmp.Or(r.worker.Err(), errClock) }

// watch waits for the end of all processes of the command, and ends them where the guard
// says so. It returns how the command ended, and whether all processes did.
func (r *runner) watch(signals <-chan os.Signal, from, to int64) (status syscall.WaitStatus, all bool) {
	exits := make(chan exit)
	go reap(exits)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	stop, lost := "", r.worker.Lost()
	for {
		select {
		case e, ok := <-exits:
			if !ok {
				return status, true
			}
			if e.status.Stopped() {
				if e.status.StopSignal() == syscall.SIGTSTP { // Ctrl-Z: no shell waits for it
					_ = syscall.Kill(-r.child, syscall.SIGCONT)
				}
				continue
			}
			if e.pid == r.child {
				status, stop = e.status, leftBehind
			}
		case s := <-signals:
			if s, ok := s.(syscall.Signal); ok && stop != leftBehind {
				_ = syscall.Kill(r.child, s) // it is reaped by no one else: the number is still its own
			}
			continue
		case <-lost:
			lost, stop = nil, "the worker was lost"
			r.file.set(0)
		case <-ticker.C:
		}
		r.see()
		if _, notAfter := r.worker.Interval(); notAfter > to {
			to = notAfter
			r.file.set(to)
		}
		switch r.guard.next(from, to, stop) {
		case terminate:
			if stop != leftBehind {
				r.log.Warn("stopping the command", "worker", r.worker.ID(), "why", r.guard.why, "err", r.cause())
			}
			r.signal(syscall.SIGTERM)
		case kill:
			r.signal(syscall.SIGKILL)
		case leave:
		}
	}
}

// reap reports every process that ends or is stopped, and closes exits when there is none left, neither
// children nor what these left behind.
func reap(exits chan<- exit) {
	defer close(exits)
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD
			return
		default:
			exits <- exit{pid, status}
		}
	}
}

// signal signals the command's process group, and children of this process outside of
// it. Descendants of these follow when their parents have ended.
//
// A process that became another user cannot be signaled. The number stays reserved until all
// have ended, and nothing else can be done.
func (r *runner) signal(s syscall.Signal) {
	send := func(pid int, s syscall.Signal) error {
		err := r.kill(pid, s)
		if errors.Is(err, syscall.EPERM) && !r.denied {
			r.denied = true
			r.log.Error("a process of the command runs as another user, so it cannot be stopped: stop it before "+
				"its interval ends, and run the runner as that user",
				"worker", r.worker.ID(), "signal", s.String(), "pid", max(pid, -pid))
		}
		return err
	}
	// The group's number may be that of other processes once the group is empty.
	r.empty = r.empty || errors.Is(send(-r.child, s), syscall.ESRCH)
	for _, pid := range children() {
		switch group, err := syscall.Getpgid(pid); {
		case err != nil:
		case group != r.child || r.empty:
			_ = send(pid, s)
		default: // It had the signal, or the group's call says nothing of it.
			_ = send(pid, 0)
		}
	}
}

// children returns the children of this process.
func children() (pids []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children") // a pattern that is valid
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread ended, or the kernel lacks these files
		}
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// forwarded are the signals that go to the command.
var forwarded = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGWINCH, syscall.SIGALRM, syscall.SIGCONT,
}

// Variables of a command's environment.
const (
	envWorker     = "ALLOCATOR_WORKER"
	envDatacenter = "ALLOCATOR_DATACENTER_ID"
	envWorkerID   = "ALLOCATOR_WORKER_ID"
	envFile       = "ALLOCATOR_WORKER_FILE"
)

func (h held) environ(path string) []string {
	return []string{
		fmt.Sprintf("%s=%d", envWorker, h.Worker), fmt.Sprintf("%s=%d", envDatacenter, h.DatacenterID),
		fmt.Sprintf("%s=%d", envWorkerID, h.WorkerID), envFile + "=" + path,
	}
}

// without returns env without these variables, such as those of a runner that runs this
// one, and without the token of the runner.
func without(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		return slices.Contains([]string{envWorker, envDatacenter, envWorkerID, envFile, config.EnvToken}, name)
	})
}
