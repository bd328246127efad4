package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/tier"
)

var update = flag.Bool("update", false, "rewrite transcripts")

func TestMain(m *testing.M) {
	// With -race a process sleeps for a second before it exits, unless told not
	// to, and these tests start hundreds.
	if os.Getenv("GORACE") == "" {
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	_ = flag.Set("test.parallel", "6") // most of those that run in parallel wait
	testscript.Main(cleaning{m}, map[string]func(){"allocator": main})
}

// builtDir has the programs that tests share.
var builtDir string

// cleaning removes what was built for the tests after they have run.
type cleaning struct{ *testing.M }

func (c cleaning) Run() int {
	var err error
	if builtDir, err = os.MkdirTemp("", "allocator-tests"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(builtDir) }()
	return c.M.Run()
}

// TestScripts runs the transcripts in testdata/script. Besides testscript's own
// commands they use
//
//	code N prog args…      like exec, and expects exit code N
//	until PATTERN prog args…
//	                       repeats it until it ends with 0 and prints PATTERN
//	start NAME args…       starts `allocator args…` and goes on
//	ready NAME N           waits for N lines of JSON from it, and sets
//	                       $NAME_<i>_{sid,state,http,grpc,admin,etcd}, and
//	                       $NAME_free_sid to a sid that none of them holds
//	text NAME PATTERN      waits until it printed PATTERN
//	logged NAME MESSAGE [ATTR…]
//	                       waits for that message in its JSON log, and sets
//	                       $NAME_<attr> to the attributes
//	signal NAME INT|TERM   sends a signal
//	quit NAME CODE [INT|TERM|KILL]
//	                       ends it and expects that exit code; what it printed
//	                       can be inspected as stdout and stderr
//	http METHOD URL [type [body]]
//	                       prints the status and the body
func TestScripts(t *testing.T) { scripts(t, quickScripts) }

// quickScripts are those that show most for their time.
var quickScripts = []string{"admin", "config", "dev", "interrupt", "parse", "serve", "usage"}

func TestMoreScripts(t *testing.T) {
	tier.Check(t, "hundreds of processes")
	files, err := filepath.Glob("testdata/script/*.txtar")
	fatal.If(t, err)
	var more []string
	for _, f := range files {
		if name := strings.TrimSuffix(filepath.Base(f), ".txtar"); !slices.Contains(quickScripts, name) {
			more = append(more, name)
		}
	}
	scripts(t, more)
}

func scripts(t *testing.T, names []string) {
	t.Helper()
	var files []string
	for _, name := range names {
		files = append(files, "testdata/script/"+name+".txtar")
	}
	testscript.Run(t, testscript.Params{
		Files:               files,
		UpdateScripts:       *update,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("TZ", "UTC")
			env.Setenv("GORACE", os.Getenv("GORACE"))
			env.Values[procsKey{}] = map[string]*started{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"code": cmdCode, "until": cmdUntil, "start": cmdStart, "ready": cmdReady, "text": cmdText, "logged": cmdLogged, "signal": cmdSignal, "quit": cmdQuit, "http": cmdHTTP,
		},
	})
}

func cmdCode(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Logf("%s%s", ts.ReadFile("stdout"), ts.ReadFile("stderr"))
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

func cmdUntil(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile("(?m)" + args[0])
	await(ts, func() (bool, string) {
		err := ts.Exec(args[1], args[2:]...)
		return err == nil && pattern.MatchString(ts.ReadFile("stdout")), fmt.Sprintf("%v\n%s%s", err, ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	})
}

const patience = 4 * time.Minute // with -race, on two busy cores

// await waits until f returns true. What else it returns says what is so meanwhile.
func await(ts *testscript.TestScript, f func() (ok bool, meanwhile string)) {
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		ok, meanwhile := f()
		if ok {
			return
		}
		if time.Since(began) > patience {
			ts.Fatalf("not within %v: %s", patience, meanwhile)
		}
	}
}

type procsKey struct{}

// started is a program that goes on while the transcript does.
type started struct {
	*proc.Process
	read int // bytes of its output
}

func procOf(ts *testscript.TestScript, name string) *started {
	p := ts.Value(procsKey{}).(map[string]*started)[name]
	if p == nil {
		ts.Fatalf("%s was not started", name)
	}
	return p
}

func cmdStart(ts *testscript.TestScript, _ bool, args []string) {
	cmd := exec.Command("allocator", args[1:]...)
	cmd.Dir = ts.MkAbs(".")
	for _, key := range []string{"HOME", "TMPDIR", "TZ", "PATH", "GORACE"} {
		cmd.Env = append(cmd.Env, key+"="+ts.Getenv(key))
	}
	p, err := proc.Start(cmd)
	ts.Check(err)
	ts.Value(procsKey{}).(map[string]*started)[args[0]] = &started{Process: p}
	ts.Defer(p.Kill)
}

// line waits for the next line that it prints.
func (p *started) line(ts *testscript.TestScript) (line string) {
	await(ts, func() (ok bool, _ string) {
		running := p.Running()
		line, _, ok = strings.Cut(p.Out.String()[p.read:], "\n")
		if !ok && !running {
			ts.Fatalf("it ended: %s", p.Log())
		}
		return ok, p.Err.String()
	})
	p.read += len(line) + 1
	return line
}

func cmdReady(ts *testscript.TestScript, _ bool, args []string) {
	p := procOf(ts, args[0])
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	began := time.Now()
	held := map[string]bool{}
	for i := range n {
		var fields map[string]any
		ts.Check(json.Unmarshal([]byte(p.line(ts)), &fields))
		for key, v := range fields {
			ts.Setenv(fmt.Sprintf("%s_%d_%s", args[0], i+1, key), fmt.Sprint(v))
		}
		held[fmt.Sprint(fields["sid"])] = true
	}
	free := 9
	for held[strconv.Itoa(free)] {
		free++
	}
	ts.Setenv(args[0]+"_free_sid", strconv.Itoa(free))
	ts.Logf("ready after %v", time.Since(began).Round(time.Millisecond))
}

func cmdText(ts *testscript.TestScript, _ bool, args []string) {
	for p := procOf(ts, args[0]); !strings.Contains(p.line(ts), args[1]); {
	}
}

func cmdLogged(ts *testscript.TestScript, _ bool, args []string) {
	p := procOf(ts, args[0])
	await(ts, func() (bool, string) {
		for line := range strings.Lines(p.Err.String()) {
			var fields map[string]any
			if json.Unmarshal([]byte(line), &fields) != nil || fields["msg"] != args[1] {
				continue
			}
			for _, attr := range args[2:] {
				ts.Setenv(args[0]+"_"+attr, fmt.Sprint(fields[attr]))
			}
			return true, ""
		}
		return false, p.Err.String()
	})
}

var signals = map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}

func cmdSignal(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(procOf(ts, args[0]).Signal(signals[args[1]]))
}

func cmdQuit(ts *testscript.TestScript, _ bool, args []string) {
	p := procOf(ts, args[0])
	signal := syscall.SIGINT
	if len(args) > 2 {
		signal = signals[args[2]]
	}
	ts.Check(p.Signal(signal))
	await(ts, func() (bool, string) { return !p.Running(), "it goes on" })
	fmt.Fprint(ts.Stdout(), p.Out.String())
	fmt.Fprint(ts.Stderr(), p.Err.String())
	if want, got := args[1], strconv.Itoa(p.Cmd.ProcessState.ExitCode()); got != want {
		ts.Fatalf("exit code %s, want %s; stderr: %s", got, want, p.Err.String())
	}
}

func cmdHTTP(ts *testscript.TestScript, _ bool, args []string) {
	body := ""
	if len(args) > 3 {
		body = args[3]
	}
	req, err := http.NewRequest(args[0], args[1], strings.NewReader(body))
	ts.Check(err)
	if len(args) > 2 {
		req.Header.Set("Accept", args[2])
	}
	if strings.HasPrefix(body, "action=") {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := http.DefaultClient.Do(req)
	ts.Check(err)
	defer resp.Body.Close()
	fmt.Fprintln(ts.Stdout(), resp.StatusCode)
	_, err = io.Copy(ts.Stdout(), resp.Body)
	ts.Check(err)
}
