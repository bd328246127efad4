// Command kubetest installs the chart in a real Kubernetes: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, built from their modules, and, where
// this machine allows it, a kubelet with containerd that runs the images. README.md
// says what is real and what is played.
//
//	go run . --root ../..              all of it
//	go run . --root ../.. --only played
//
// It starts everything in namespaces of its own (processes, mounts, network), so
// that what it started ends with it, whatever way it ends. Without root the part
// that needs them is not run, and says so.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// whole bounds a run without the builds.
const whole = 25 * time.Minute

// settings are those of one run.
type settings struct {
	root string // of the project
	bin  string // where programs are built and kept
	dir  string // of this run: logs, data, certificates
	only string // "played", "real" or ""
	keep bool   // leave dir

	inside bool // the process that runs in the namespaces
	apart  bool // there are namespaces
	cgroup string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "kubetest: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	var s settings
	flag.StringVar(&s.root, "root", "../..", "folder of the project")
	flag.StringVar(&s.only, "only", "", "played or real: one part alone")
	flag.BoolVar(&s.keep, "keep", false, "keep logs and data of a run that passed, too")
	flag.BoolVar(&s.inside, "inside", false, "for the program itself: it is in its namespaces")
	flag.StringVar(&s.dir, "dir", "", "for the program itself: folder of the run")
	flag.StringVar(&s.cgroup, "cgroup", "", "for the program itself: control group of the pods")
	flag.Parse()
	if s.only != "" && s.only != "played" && s.only != "real" {
		return fmt.Errorf("--only is %q: say played or real, or leave it out", s.only)
	}
	var err error
	if s.root, err = filepath.Abs(s.root); err != nil {
		return err
	}
	s.bin = filepath.Join(s.root, "bin", "kube")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if s.inside {
		s.apart = s.cgroup != ""
		ctx, cancel := context.WithTimeout(ctx, whole)
		defer cancel()
		return inside(ctx, s)
	}
	return outside(ctx, s)
}

// outside builds, runs this program again in namespaces, and clears away.
func outside(ctx context.Context, s settings) error {
	begun := time.Now()
	if err := buildAll(ctx, s); err != nil {
		return err
	}
	if os.Geteuid() == 0 && s.only != "played" {
		if err := buildImages(ctx, s); err != nil {
			return err
		}
	}
	fmt.Printf("built in %s\n", time.Since(begun).Round(time.Second))
	if err := os.MkdirAll(s.bin, 0o755); err != nil {
		return err
	}
	var err error
	if s.dir, err = os.MkdirTemp(s.bin, "run-"); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	args := []string{"--inside", "--root", s.root, "--dir", s.dir, "--only", s.only}
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() == 0 {
		s.cgroup = fmt.Sprintf("kubetest-%d", os.Getpid())
		args = append(args, "--cgroup", s.cgroup)
		// The end of the first process of a namespace is the end of all in it.
		attr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS
	}
	// The signal comes when the thread ends that started the process: keep it.
	runtime.LockOSThread()
	attr.Pdeathsig = syscall.SIGKILL
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, attr
	// What is removed is a folder that nothing runs in any more.
	defer func() {
		if s.cgroup != "" {
			if left := removeGroups(s.cgroup); len(left) > 0 {
				fmt.Printf("not removed: %s\n", strings.Join(left, " "))
			}
		}
	}()
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) {
			return fmt.Errorf("make namespaces: %w: run as a user that may, or without root for the part that needs none", err)
		}
		return err
	}
	over := make(chan error, 1)
	go func() { over <- cmd.Wait() }()
	select {
	case err = <-over:
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err = <-over:
		case <-time.After(time.Minute):
			_ = cmd.Process.Kill()
			err = <-over
		}
	}
	if err != nil || s.keep {
		fmt.Printf("logs: %s (remove it when you have read them)\n", s.dir)
		_ = os.RemoveAll(filepath.Join(s.dir, "containerd"))
	} else if err := os.RemoveAll(s.dir); err != nil {
		return err
	}
	if err != nil {
		return errors.New("not passed: see above")
	}
	return nil
}

// inside runs the parts.
func inside(ctx context.Context, s settings) error {
	if s.apart {
		if err := settle(s); err != nil {
			return err
		}
	}
	r := &report{out: os.Stdout, started: time.Now()}
	c, err := startCluster(ctx, s, r)
	defer c.stop()
	if err != nil {
		return err
	}
	if s.only != "real" {
		if err := playedPart(ctx, c, r); err != nil {
			return err
		}
	}
	if s.only == "played" {
		r.skip("real pods", "--only played")
	} else if err := realPart(ctx, c, r); err != nil {
		return err
	}
	r.part("end")
	r.run(ctx, "the processes of the cluster ran to the end", time.Second, func(context.Context) error { return c.ps.ended() })
	c.stop()
	return r.end()
}
