// Command kubetest installs the chart in a real Kubernetes: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler, built from their modules, and, where
// this machine allows it, a kubelet with containerd that runs the images. README.md
// lists what is real and what is simulated.
//
//	go run . --root ../..              all of it
//	go run . --root ../.. --only objects
//
// It starts everything in namespaces of its own (processes, mounts, network), which
// end with it, however it ends. Without root it skips the part that needs them, and
// reports that.
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
	"slices"
	"strings"
	"syscall"
	"time"
)

// runTimeout bounds a run without the builds.
const runTimeout = 25 * time.Minute

// settings are those of one run.
type settings struct {
	root string // directory of the repository
	bin  string // directory of the programs built
	dir  string // directory for logs, data and certificates
	only string // "objects", "real", "members" or ""
	keep bool   // leave dir

	inside     bool // the process that runs in the namespaces
	namespaces bool // the process has namespaces of its own
	cgroup     string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintf(os.Stderr, "kubetest: %v\n", err)
		os.Exit(1)
	}
}

func run() error {
	var s settings
	flag.StringVar(&s.root, "root", "../..", "directory of the project")
	flag.StringVar(&s.only, "only", "", "objects, real or members: run one part alone")
	flag.BoolVar(&s.keep, "keep", false, "keep logs and data also of a run that passed")
	flag.BoolVar(&s.inside, "inside", false, "internal: the process is in its namespaces")
	flag.StringVar(&s.dir, "dir", "", "internal: directory of the run")
	flag.StringVar(&s.cgroup, "cgroup", "", "internal: control group of the pods")
	flag.Parse()
	if !slices.Contains([]string{"", "objects", "real", "members"}, s.only) {
		return fmt.Errorf("--only is %q: use objects, real or members, or omit it", s.only)
	}
	var err error
	if s.root, err = filepath.Abs(s.root); err != nil {
		return err
	}
	s.bin = filepath.Join(s.root, "bin", "kube")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if s.inside {
		s.namespaces = s.cgroup != ""
		ctx, cancel := context.WithTimeout(ctx, runTimeout)
		defer cancel()
		return inside(ctx, s)
	}
	return outside(ctx, s)
}

// outside builds, runs this program again in namespaces, and cleans up.
func outside(ctx context.Context, s settings) error {
	begun := time.Now()
	if err := buildAll(ctx, s); err != nil {
		return err
	}
	if os.Geteuid() == 0 && s.only != "objects" {
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
		// All processes of a PID namespace end with its first.
		attr.Cloneflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC |
			syscall.CLONE_NEWUTS
	}
	// Pdeathsig is sent when the thread ends that started the process: keep it.
	runtime.LockOSThread()
	attr.Pdeathsig = syscall.SIGKILL
	cmd := exec.Command(self, args...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, attr
	// Nothing runs in the control group any more.
	defer func() {
		if s.cgroup != "" {
			if left := removeGroups(s.cgroup); len(left) > 0 {
				fmt.Printf("not removed: %s\n", strings.Join(left, " "))
			}
		}
	}()
	if err := cmd.Start(); err != nil {
		if errors.Is(err, syscall.EPERM) {
			return fmt.Errorf(
				"create namespaces: %w; run as a user that may, or without root for the part that needs none", err)
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
		fmt.Printf("logs: %s (remove this directory when you have read them)\n", s.dir)
		_ = os.RemoveAll(filepath.Join(s.dir, "containerd"))
	} else if err := os.RemoveAll(s.dir); err != nil {
		return err
	}
	if err != nil {
		return errors.New("failed: see above")
	}
	return nil
}

// inside runs the parts.
func inside(ctx context.Context, s settings) error {
	if s.namespaces {
		if err := setUpNamespaces(s); err != nil {
			return err
		}
	}
	r := &report{out: os.Stdout, started: time.Now()}
	c, err := startCluster(ctx, s, r)
	defer c.stop()
	if err != nil {
		return err
	}
	if s.only == "" || s.only == "objects" {
		r.run(ctx, "the objects of every values file are accepted by the API server, strictly and without a warning, "+
			"as Helm 3 and Helm 4 render them", caseLimit, c.accepted)
	}
	if s.only == "objects" {
		r.skip("real pods", "--only objects")
	} else if err := realPart(ctx, c, r); err != nil {
		return err
	}
	r.part("end")
	r.run(ctx, "the processes of the cluster ran until the end", time.Second, func(context.Context) error {
		return c.ps.ended()
	})
	c.stop()
	return r.end()
}
