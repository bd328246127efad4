package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// docker is a daemon and the commands that reach it. One goroutine may use it at a
// time, except for methods that only run a command.
type docker struct {
	compose []string // docker compose, or docker-compose
	env     []string
	daemon  *exec.Cmd // started by us; nil if one was running
	dir     string    // directory of the daemon's files
}

// errMissing is wrapped by errors about why this machine cannot run containers.
var errMissing = errors.New("not run")

// startTimeout is how long a daemon may take to answer after it was started.
const startTimeout = 60 * time.Second

// openDocker returns a way to a daemon: the one that answers, or one of our own.
func openDocker(ctx context.Context, dir string) (*docker, error) {
	if _, err := exec.LookPath("docker"); err != nil {
		return nil, fmt.Errorf("%w: docker is not installed (Debian: apt-get install docker.io docker-compose)",
			errMissing)
	}
	d := &docker{env: os.Environ(), dir: dir}
	switch {
	case exec.CommandContext(ctx, "docker", "compose", "version").Run() == nil:
		d.compose = []string{"docker", "compose"}
	case exec.CommandContext(ctx, "docker-compose", "version").Run() == nil:
		d.compose = []string{"docker-compose"}
	default:
		return nil, fmt.Errorf("%w: Compose is not installed (Debian: apt-get install docker-compose)", errMissing)
	}
	if _, err := d.run(ctx, "docker", "version"); err == nil {
		return d, nil
	}
	for _, tool := range []string{"dockerd", "containerd", "iptables", "unshare", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: no Docker daemon answers, and %s to start one is not installed (Debian: "+
				"apt-get install docker.io iptables iproute2)", errMissing, tool)
		}
	}
	if os.Getuid() != 0 {
		return nil, fmt.Errorf("%w: no Docker daemon answers, and only root can start one", errMissing)
	}
	return d, d.start(ctx)
}

// start runs a daemon in network and mount namespaces of its own.
func (d *docker) start(ctx context.Context) error {
	at := func(name string) string { return filepath.Join(d.dir, name) }
	log, err := os.Create(at("dockerd.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	// exec, twice: the process started here becomes the daemon.
	d.daemon = exec.Command("unshare", "--net", "--mount", "--", "sh",
		"-c", `ip link set lo up && exec dockerd "$@"`, "dockerd",
		"--host", "unix://"+at("docker.sock"), "--data-root", at("data"), "--exec-root", at("exec"),
		"--pidfile", at("dockerd.pid"))
	d.daemon.Stdout, d.daemon.Stderr = log, log
	d.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // on Ctrl-C we stop the containers first
	if err := d.daemon.Start(); err != nil {
		return err
	}
	d.env = append(d.env, "DOCKER_HOST=unix://"+at("docker.sock"))
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err = until(ctx, func() error { _, err := d.run(ctx, "docker", "version"); return err })
	if err == nil {
		return nil
	}
	d.close()
	text, _ := os.ReadFile(at("dockerd.log"))
	return fmt.Errorf("%w: a Docker daemon cannot be started here: %w\n%s", errMissing, err, tail(text, 20))
}

// close ends the daemon if it is ours.
func (d *docker) close() {
	if d.daemon == nil || d.daemon.Process == nil {
		return
	}
	_ = d.daemon.Process.Signal(syscall.SIGTERM) // it ends its containerd, too
	ended := make(chan struct{})
	go func() { _ = d.daemon.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		_ = d.daemon.Process.Kill()
		<-ended
	}
	d.daemon = nil
}

// run runs a command and returns what it printed on stdout.
func (d *docker) run(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = d.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, tail(errs.Bytes(), 5))
	}
	return strings.TrimSpace(out.String()), nil
}

// do runs docker.
func (d *docker) do(ctx context.Context, args ...string) error {
	_, err := d.run(ctx, "docker", args...)
	return err
}

func (d *docker) inspect(ctx context.Context, format, what string) (string, error) {
	return d.run(ctx, "docker", "inspect", "--format", format, what)
}

// tail returns the last lines of a text.
func tail(text []byte, lines int) string {
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// until calls f until it returns nil, and returns its last error when ctx ends.
func until(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(250 * time.Millisecond):
		}
	}
}
