//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/access"
)

// granter is a node that grants the number 77, by its window, and is asked to extend it every second.
type granter struct {
	pb.UnimplementedWorkerServiceServer
	addr   string
	window time.Duration

	mu sync.Mutex // guards granted
	granted
}

// granted is what a granter did, and does.
type granted struct {
	refuse   client.Reason // of acquisitions and extensions; "": they are served
	name     string
	from, to int64
	extended int
	acquired int
	released []int64
}

func newGranter(t *testing.T, window time.Duration) *granter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	g := &granter{addr: l.Addr().String(), window: window}
	s := grpc.NewServer()
	pb.RegisterWorkerServiceServer(s, g)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-ended })
	return g
}

func (g *granter) with(f func(*granter)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f(g)
}

func (g *granter) state() granted {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.granted
}

func (g *granter) refusal() error {
	if g.refuse == "" {
		return nil
	}
	st, err := status.New(codes.Unavailable, "by the test").WithDetails(&errdetails.ErrorInfo{Reason: string(g.refuse)})
	return errors.Join(err, st.Err())
}

func (g *granter) answer() *pb.Worker {
	now := time.Now().UnixMilli()
	g.to = max(g.to, now+g.window.Milliseconds())
	return &pb.Worker{Id: "77-4", Worker: 77, Term: 4, Name: g.name, Handle: "w1.77.4.s", NotBeforeUnixMs: g.from, NotAfterUnixMs: g.to,
		NowUnixMs: now, ExtendAtUnixMs: now + 1000}
}

func (g *granter) AcquireWorker(_ context.Context, req *pb.AcquireWorkerRequest) (*pb.Worker, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.refusal(); err != nil {
		return nil, err
	}
	g.acquired++
	g.name, g.from = req.GetName(), time.Now().UnixMilli()
	return g.answer(), nil
}

func (g *granter) ExtendWorker(context.Context, *pb.ExtendWorkerRequest) (*pb.Worker, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.refusal(); err != nil {
		return nil, err
	}
	g.extended++
	return g.answer(), nil
}

func (g *granter) ReleaseWorker(_ context.Context, req *pb.ReleaseWorkerRequest) (*pb.ReleaseWorkerResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.released = append(g.released, req.GetUsedUntilUnixMs())
	return &pb.ReleaseWorkerResponse{ReusableFromUnixMs: req.GetUsedUntilUnixMs()}, nil
}

// runner is an `allocator worker run` in progress.
type runner struct{ *proc.Process }

// startRunner starts one, in a directory of its own.
func startRunner(t *testing.T, g *granter, args ...string) *runner {
	t.Helper()
	token, _, err := access.NewToken("runner", "worker")
	fatal.If(t, err)
	cmd := exec.Command("allocator", append([]string{"worker", "run", "--addr", g.addr, "--margin", "500ms", "--grace", "500ms"}, args...)...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "ALLOCATOR_TOKEN="+token, "ALLOCATOR_WORKER=1", "ALLOCATOR_WORKER_ID=1")
	cmd.WaitDelay = patience // of processes that it left behind
	a := &runner{proc.Run(t, cmd)}
	t.Cleanup(a.Kill)
	return a
}

// wait waits for its end and expects an exit code.
func (a *runner) wait(t *testing.T, code int) {
	t.Helper()
	if got := a.Code(t); got != code || errors.Is(a.Wait(), exec.ErrWaitDelay) {
		t.Fatalf("%v: %v, want exit code %d\n%s", a.Cmd.Args, a.Wait(), code, a.Log())
	}
}

// content waits until a file in its directory has some, and returns it.
func (a *runner) content(t *testing.T, name string) string {
	t.Helper()
	var text string
	wait.Until(t, fmt.Sprintf("%v writes %s", a.Cmd.Args, name), func() bool {
		b, err := os.ReadFile(filepath.Join(a.Cmd.Dir, name))
		text = string(b)
		return err == nil && strings.HasSuffix(text, "\n")
	})
	return strings.TrimSpace(text)
}

func (a *runner) pid(t *testing.T, name string) int {
	t.Helper()
	pid, err := strconv.Atoi(a.content(t, name))
	fatal.If(t, err)
	return pid
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	wait.Until(t, fmt.Sprintf("process %d ends", pid), func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

func TestWorkerRun(t *testing.T) {
	t.Parallel()
	g := newGranter(t, time.Minute)
	a := startRunner(t, g, "--name", "orders", "--", "sh", "-c",
		`echo "$ALLOCATOR_WORKER $ALLOCATOR_DATACENTER_ID $ALLOCATOR_WORKER_ID$ALLOCATOR_TOKEN"; od -An -t x1 -v "$ALLOCATOR_WORKER_FILE"; echo oops >&2; exit 7`)
	a.wait(t, 7)
	split, bytes, _ := strings.Cut(a.Out.String(), "\n")
	if split != "77 2 13" || g.state().name != "orders" || !strings.Contains(a.Err.String(), "oops\n") {
		t.Errorf("out %q, err %q, name %q", split, &a.Err, g.state().name)
	}
	var b []byte
	for _, x := range strings.Fields(bytes) {
		n, err := strconv.ParseUint(x, 16, 8)
		fatal.If(t, err)
		b = append(b, byte(n))
	}
	if len(b) != 64 || string(b[:8]) != "ALLOCWK1" {
		t.Fatalf("file %q", b)
	}
	value := func(at int) int64 { return int64(binary.LittleEndian.Uint64(b[at:])) }
	for at, want := range map[int]int64{8: 77, 16: 4, 24: g.state().from, 48: 2, 56: 13} {
		if got := value(at); got != want {
			t.Errorf("at %d of the file: %d, want %d", at, got, want)
		}
	}
	if to := value(32); to <= value(24) || to > g.state().to { // It may have been extended since.
		t.Errorf("the interval ends at %d, and %d was granted", to, g.state().to)
	}
	if now := time.Now().UnixMilli(); len(g.state().released) != 1 || g.state().released[0] <= g.state().from || g.state().released[0] > now+1000 {
		t.Errorf("released with %d, from %d, now %d", g.state().released, g.state().from, now)
	}
}

func TestWorkerRunExitCodes(t *testing.T) {
	t.Parallel()
	g := newGranter(t, time.Minute)
	for code, args := range map[int][]string{
		0:   {"--", "true"},
		137: {"--", "sh", "-c", "kill -KILL $$"},
		141: {"--", "sh", "-c", "kill -PIPE $$"}, // it is not ignored
	} {
		startRunner(t, g, args...).wait(t, code)
	}
	if g.state().name != "sh" && g.state().name != "true" {
		t.Errorf("name %q", g.state().name)
	}
	acquired := g.state().acquired
	a := startRunner(t, g, "--", "no-such-program")
	a.wait(t, 127)
	if !strings.Contains(a.Err.String(), "no-such-program: cannot be started") {
		t.Errorf("it says %q", &a.Err)
	}
	startRunner(t, g, "--", "/etc/passwd").wait(t, 126)
	startRunner(t, g, "--margin", "1ms", "--", "true").wait(t, 2)
	a = startRunner(t, g)
	a.wait(t, 2)
	if !strings.Contains(a.Err.String(), "no command was given") {
		t.Errorf("without a command it says %q", &a.Err)
	}
	if g.state().acquired != acquired {
		t.Error("a worker was acquired for a command that cannot run")
	}
	a = startRunner(t, g, "--margin", "20s", "--grace", "10s", "--", "true")
	a.wait(t, 2)
	if !strings.Contains(a.Err.String(), "raise worker.window") {
		t.Errorf("it says %q", &a.Err)
	}
	if n := len(g.state().released); g.state().released[n-1] != g.state().from {
		t.Errorf("released with %d: nothing was used from %d on", g.state().released[n-1], g.state().from)
	}
	broken := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(broken, []byte("#!/no/such/interpreter\n"), 0o700); err != nil { //nolint:gosec // it is to be executable
		t.Fatal(err)
	}
	startRunner(t, g, "--", broken).wait(t, 127)
	if n := len(g.state().released); n != g.state().acquired {
		t.Errorf("acquired %d workers, and released %d", g.state().acquired, n)
	}

	for _, reason := range []client.Reason{client.WorkersOff, client.PermissionDenied} {
		g.with(func(g *granter) { g.refuse = reason })
		a := startRunner(t, g, "--", "true")
		a.wait(t, 1)
		if !strings.Contains(a.Err.String(), string(reason)) {
			t.Errorf("%s: it says %q", reason, &a.Err)
		}
	}
	a = startRunner(t, &granter{addr: "127.0.0.1:1"}, "--wait", "300ms", "--", "true")
	a.wait(t, 3)
	if !strings.Contains(a.Err.String(), "no node answered") {
		t.Errorf("nobody there: it says %q", &a.Err)
	}
}

func TestWorkerRunForwardsSignals(t *testing.T) {
	t.Parallel()
	a := startRunner(t, newGranter(t, time.Minute), "--", "sh", "-c",
		`trap 'echo usr1 > usr1' USR1; trap 'echo term; exit 5' TERM; echo $$ > pid; while :; do sleep 0.01; done`)
	a.pid(t, "pid")
	for s, see := range map[syscall.Signal]string{syscall.SIGTSTP: "", syscall.SIGUSR1: "usr1"} {
		fatal.If(t, a.Signal(s))
		if see != "" {
			a.content(t, see)
		}
	}
	fatal.If(t, a.Signal(syscall.SIGTERM))
	a.wait(t, 5)
	if a.Out.String() != "term\n" {
		t.Errorf("it printed %q", &a.Out)
	}
}

// stubborn ignores SIGTERM, and so do a child of it and one that left its process group.
// Each writes the time as long as it lives.
const stubborn = `trap '' TERM; echo $$ > pid
forever='trap "" TERM; while :; do date +%s%3N > $0.tmp; mv $0.tmp $0; sleep 0.01; done'
sh -c "$forever" child &
setsid sh -c "$forever" escaped &
eval "$(echo "$forever" | sed 's/\$0/main/g')"`

// When its worker cannot be extended, nothing of a command lives until the number may be
// somebody else's.
func TestWorkerRunKillsInTime(t *testing.T) {
	t.Parallel()
	g := newGranter(t, 30*time.Second)
	a := startRunner(t, g, "--file", "interval", "--margin", "12s", "--", "sh", "-c", stubborn)
	pid := a.pid(t, "pid")
	for _, name := range []string{"main", "child", "escaped"} {
		a.content(t, name)
	}
	wait.NoError(t, "the file shows an extension", func() error {
		file, err := os.ReadFile(filepath.Join(a.Cmd.Dir, "interval"))
		if err != nil {
			return err
		}
		if mapped := int64(binary.LittleEndian.Uint64(file[32:])); mapped <= g.state().from+30_000 {
			return fmt.Errorf("not_after is %d there; the worker was acquired at %d", mapped, g.state().from)
		}
		return nil
	})
	var to int64 // no extension that is on its way is later
	g.with(func(g *granter) { g.refuse, to = client.EtcdUnavailable, g.to })
	refused := time.Now().UnixMilli()
	a.wait(t, 3)
	gone(t, pid)
	for _, name := range []string{"main", "child", "escaped"} {
		last, err := strconv.ParseInt(a.content(t, name), 10, 64)
		if err != nil || last >= to || last < refused {
			t.Errorf("%s lived until %d, %v; it was refused at %d, and not_after is %d", name, last, err, refused, to)
		}
	}
	// On a busy machine the node's last refusal may be late.
	if said := a.Err.String(); !strings.Contains(said, "was stopped: the interval could not be extended") ||
		!strings.Contains(said, "ETCD_UNAVAILABLE") && !strings.Contains(said, "no answer within the deadlines") {
		t.Errorf("it says %q", &a.Err)
	}
	if _, err := os.Stat(filepath.Join(a.Cmd.Dir, "interval")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}

func TestWorkerRunIsLost(t *testing.T) {
	t.Parallel()
	g := newGranter(t, time.Minute)
	a := startRunner(t, g, "--", "sh", "-c", `trap 'od -An -t d8 -j 32 -N 8 $ALLOCATOR_WORKER_FILE > at-term; exit 0' TERM; echo $$ > pid; while :; do sleep 0.01; done`)
	a.pid(t, "pid")
	g.with(func(g *granter) { g.refuse = client.UnknownWorker })
	a.wait(t, 3)
	if got := a.content(t, "at-term"); got != "0" {
		t.Errorf("not_after is %s at SIGTERM, want 0", got)
	}
	if !strings.Contains(a.Err.String(), "UNKNOWN_WORKER") || len(g.state().released) != 0 {
		t.Errorf("it says %q; released %d", &a.Err, g.state().released)
	}
}

// A command that is run from a terminal can read from it, and Ctrl-Z does not leave it
// stopped where nobody would continue it.
func TestWorkerRunOnTerminal(t *testing.T) {
	t.Parallel()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("not run: no terminals: %v", err)
	}
	defer master.Close()
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Skipf("not run: no terminals: %v", err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR, 0)
	if err != nil {
		t.Skipf("not run: no terminals: %v", err)
	}
	g := newGranter(t, time.Minute)
	cmd := exec.Command("sh", "-c", `allocator worker run --addr "$0" -- sh -c 'read line; echo "got $line"; exit 6'; echo "code $?"; read line; echo "then $line"`, g.addr)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	p := proc.Run(t, cmd)
	t.Cleanup(p.Kill)
	_ = slave.Close() // sh has it
	var seen strings.Builder
	for _, step := range []struct{ wait, write string }{{"command started", "\x1a"}, {"^Z", "one\n"}, {"got one", ""}, {"code 6", "two\n"}, {"then two", ""}} {
		for b := make([]byte, 256); !strings.Contains(seen.String(), step.wait); {
			fatal.If(t, master.SetReadDeadline(time.Now().Add(patience)))
			n, err := master.Read(b)
			if err != nil {
				t.Fatalf("%q did not come: %v\n%s", step.wait, err, &seen)
			}
			seen.Write(b[:n])
		}
		if _, err := master.WriteString(step.write); err != nil {
			t.Fatal(err)
		}
	}
	if code := p.Code(t); code != 0 {
		t.Errorf("exit code %d\n%s", code, &seen)
	}
}

func TestWorkerInstall(t *testing.T) {
	t.Parallel()
	to := filepath.Join(t.TempDir(), "copy")
	for range 2 { // over itself too: pods restart
		if out, err := exec.Command("allocator", "worker", "install", to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o755 {
		t.Fatalf("%v, %v", info, err)
	}
	if names, err := os.ReadDir(filepath.Dir(to)); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
	cmd := exec.Command("allocator", "worker", "install", filepath.Join(to, "below"))
	if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "not a directory") {
		t.Errorf("below a file: exit code %d: %s", cmd.ProcessState.ExitCode(), out)
	}
}

// A command whose runner is killed does not live on.
func TestWorkerRunIsKilled(t *testing.T) {
	t.Parallel()
	a := startRunner(t, newGranter(t, time.Minute), "--", "sh", "-c", `trap '' TERM INT HUP; echo $$ > pid; while :; do sleep 0.01; done`)
	pid := a.pid(t, "pid")
	a.Kill()
	gone(t, pid)
}

// What a command leaves behind ends before its number is given back.
func TestWorkerRunLeavesNothing(t *testing.T) {
	t.Parallel()
	g := newGranter(t, time.Minute)
	a := startRunner(t, g, "--", "sh", "-c", `setsid sh -c 'trap "" TERM; echo $$ > escaped; while :; do sleep 0.01; done' & while [ ! -s escaped ]; do sleep 0.01; done; exit 4`)
	pid := a.pid(t, "escaped")
	a.wait(t, 4)
	gone(t, pid)
	if len(g.state().released) != 1 || g.state().released[0] == 0 {
		t.Errorf("released with %d", g.state().released)
	}
}

func TestWorkerServe(t *testing.T) {
	t.Parallel()
	g := newGranter(t, time.Minute)
	dir := t.TempDir()
	socket, path := filepath.Join(dir, "socket"), filepath.Join(dir, "worker")
	start := func() *proc.Process {
		p := proc.Run(t, exec.Command("allocator", "worker", "serve", "--addr", g.addr, "--listen", "unix:"+socket, "--file", path))
		t.Cleanup(p.Kill)
		return p
	}
	ask := func() (code int, answer map[string]int64) {
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
		wait.NoError(t, "somebody answers", func() error {
			res, err := c.Get("http://worker/v1/worker")
			if err != nil {
				return err
			}
			text, err := io.ReadAll(res.Body)
			if err = errors.Join(err, res.Body.Close(), json.Unmarshal(text, &answer)); err != nil {
				t.Fatal(err)
			}
			code = res.StatusCode
			return nil
		})
		return code, answer
	}
	mode := func() os.FileMode {
		info, err := os.Stat(socket)
		fatal.If(t, err)
		return info.Mode().Perm()
	}
	show := func(code int) {
		t.Helper()
		cmd := exec.Command("allocator", "worker", "show", "--file", path)
		out, _ := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != code || code == 0 && !strings.Contains(string(out), `"worker":77,`) {
			t.Errorf("show: exit code %d, want %d: %s", got, code, out)
		}
	}
	first := start()
	code, answer := ask()
	for key, want := range map[string]int64{"worker": 77, "term": 4, "not_before_unix_ms": g.state().from, "datacenter_id": 2, "worker_id": 13} {
		if code != http.StatusOK || answer[key] != want {
			t.Errorf("%d, %s is %d, want %d", code, key, answer[key], want)
		}
	}
	if got := mode(); got != 0o666 {
		t.Errorf("the socket has mode %o: who may connect would depend on the umask", got)
	}
	show(0)
	second := start() // another one on the same socket
	if code := second.Code(t); code != 2 || !strings.Contains(second.Log(), "another process listens on ") {
		t.Errorf("%d: %s", code, second.Log())
	}
	first.Kill()
	third := start()
	if code, _ := ask(); code != http.StatusOK {
		t.Errorf("after a kill: %d", code)
	}
	wait.Until(t, "not_after is extended", func() bool {
		_, later := ask()
		return later["not_after_unix_ms"] > answer["not_after_unix_ms"]
	})
	if err := third.Stop(wait.Most); err != nil {
		t.Errorf("%v: %s", err, third.Log())
	}
	if len(g.state().released) != 1 || g.state().released[0] != 0 { // what the program used is not known
		t.Errorf("released with %d", g.state().released)
	}
	show(1)
	fourth := start()
	ask()
	g.with(func(g *granter) { g.refuse = client.UnknownWorker })
	if code := fourth.Code(t); code != 3 || !strings.Contains(fourth.Log(), "UNKNOWN_WORKER") {
		t.Errorf("lost: exit code %d: %s", code, fourth.Log())
	}
}

// Workers of two runners have different numbers, outlive the node that granted them, and
// are listed by name.
func TestWorkersOutliveANode(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	const interval = 30 * time.Second
	workers := []string{"--worker.sid-range", "16-31", "--worker.window", interval.String()}
	one, two := d.serve("one", workers...), d.serve("two", workers...)
	d.eventually(cli.ExitOK, []string{"get", "--addr", two.grpc}, `^[0-9A-Z]{13}$`)
	numbers := map[string]string{}
	runners := map[string]*runner{}
	for _, name := range []string{"first", "second"} {
		a := startRunner(t, &granter{addr: one.grpc + "," + two.grpc}, "--name", name, "--file", "interval", "--", "sh", "-c",
			`echo $ALLOCATOR_WORKER > number; echo $$ > pid; while :; do sleep 0.05; done`)
		number := a.content(t, "number")
		if other := numbers[number]; other != "" {
			t.Fatalf("%s and %s are both %s", name, other, number)
		}
		numbers[number], runners[name] = name, a
	}
	d.eventually(cli.ExitOK, []string{"status", "--addr", one.grpc}, `\bfirst\b`, `\bsecond\b`)
	one.Kill()
	killed := time.Now()
	for name, a := range runners {
		wait.Until(t, name+" is extended by the other node", func() bool {
			file, err := os.ReadFile(filepath.Join(a.Cmd.Dir, "interval"))
			return err == nil && time.UnixMilli(int64(binary.LittleEndian.Uint64(file[32:]))).After(killed.Add(interval))
		})
	}
	d.eventually(cli.ExitOK, []string{"status", "--addr", two.grpc}, `\bfirst\b`, `\bsecond\b`)
	for name, a := range runners {
		if err := syscall.Kill(a.pid(t, "pid"), 0); err != nil {
			t.Errorf("%s: %v\n%s", name, err, &a.Err)
		}
		fatal.If(t, a.Signal(syscall.SIGTERM))
		a.wait(t, 143)
	}
}
