package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/flakelease/allocator/chaos/build"
)

// Exit codes.
const (
	exitPass = iota
	exitFail
	exitUsage
	exitUnknown
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == "attack" {
		os.Exit(attackMain(ctx, os.Args[2:]))
	}
	code, err := run(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "abuse: %v\n", err)
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (int, error) {
	flags := flag.NewFlagSet("abuse", flag.ContinueOnError)
	short := flags.Bool("short", false,
		"only the attacks that were worst once, and the median of latency instead of p99")
	only := flags.String("only", "", "only these attacks, comma-separated")
	length := flags.Duration("for", 8*time.Second, "how long each attack lasts; 5s is the least that shows slow ones")
	memory := flags.Int64("memory", 256, "MiB that the node may use")
	dir := flags.String("dir", "", "where logs go; else a temporary directory, which is removed if all passed")
	if err := flags.Parse(args); err != nil {
		return exitUsage, nil
	}
	chosen, err := choose(*short, *only)
	if err != nil {
		return exitUsage, err
	}
	if *dir == "" {
		if *dir, err = os.MkdirTemp("", "abuse-"); err != nil {
			return exitUnknown, err
		}
	} else if err := os.MkdirAll(*dir, 0o755); err != nil {
		return exitUnknown, err
	}
	s := &suite{length: *length, memory: *memory << 20, quantile: 99, dir: *dir, out: os.Stdout}
	if *short {
		s.quantile = 50
	}
	if err := s.prepare(ctx); err != nil {
		return exitUnknown, err
	}
	defer s.node.stop()
	if err := s.run(ctx, chosen); err != nil {
		return exitUnknown, fmt.Errorf("%w; logs are in %s", err, *dir)
	}
	failed := 0
	for _, r := range s.results {
		if len(r.broken) > 0 {
			failed++
		}
	}
	if failed > 0 {
		return exitFail, fmt.Errorf("%d of %d attacks were not within their budget; logs are in %s", failed,
			len(s.results), *dir)
	}
	return exitPass, os.RemoveAll(*dir)
}

// choose returns the attacks of a run.
func choose(short bool, only string) ([]attack, error) {
	if only == "" {
		return slices.DeleteFunc(slices.Clone(attacks), func(a attack) bool { return short && !a.short }), nil
	}
	var out []attack
	for name := range strings.SplitSeq(only, ",") {
		i := slices.IndexFunc(attacks, func(a attack) bool { return a.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no attack %q; see chaos/real/abuse/attacks.go", name)
		}
		out = append(out, attacks[i])
	}
	return out, nil
}

// prepare builds what is needed and starts the node.
func (s *suite) prepare(ctx context.Context) error {
	allocator, err := build.Allocator(ctx, s.dir)
	if err != nil {
		return err
	}
	etcd, err := build.Etcd(ctx, s.dir)
	if err != nil {
		return err
	}
	if s.node, err = newNode(s.dir, allocator, etcd, s.memory); err != nil {
		return err
	}
	s.limit = fmt.Sprintf("in a control group of %d MiB", s.memory>>20)
	if s.node.group, err = newGroup(fmt.Sprintf("abuse-%d", os.Getpid()), s.memory); err != nil {
		s.limit = fmt.Sprintf("without a control group (%v), its resident memory compared with %d MiB", err,
			s.memory>>20)
	}
	if err := s.node.start(ctx); err != nil {
		s.node.stop()
		return err
	}
	s.callers, err = newCallers(s.node, attack{})
	return err
}

// spawn starts an attack in a process of its own, with a little less of the
// processors than the node and its callers: elsewhere it has a machine of its own.
func (s *suite) spawn(name string) (stop func() string, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	at, err := json.Marshal(s.node.target)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(s.dir, "attack-"+name+".log"))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "attack", name, string(at))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, log
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return func() string {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(5*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
		_ = log.Close()
		return strings.TrimSpace(out.String())
	}, nil
}

// attackMain is the process of an attack: "attack NAME TARGET".
func attackMain(ctx context.Context, args []string) int {
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, nice()+5)
	a := &attacker{limit: rate.NewLimiter(bandwidth, bandwidth/10)}
	if args[0] == busy {
		burn(ctx)
		return exitPass
	}
	i := slices.IndexFunc(attacks, func(a attack) bool { return a.name == args[0] })
	if i < 0 || json.Unmarshal([]byte(args[1]), &a.target) != nil {
		return exitUsage
	}
	a.sources = attacks[i].sources
	began := time.Now()
	attacks[i].run(ctx, a)
	seconds := max(time.Since(began).Seconds(), 0.001)
	fmt.Printf("%d connections, %.1f MiB/s, %.0f units/s\n", a.opened.Load(), float64(a.bytes.Load())/(1<<20)/seconds,
		float64(a.units.Load())/seconds)
	return exitPass
}

// nice returns the niceness of this process.
func nice() int {
	p, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	if err != nil {
		return 0
	}
	return 20 - p // the system call returns 20 minus it
}
