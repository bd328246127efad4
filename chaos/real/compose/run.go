package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// allocators are the nodes in deploy/compose.yaml.
var allocators = []string{"allocator-1", "allocator-2", "allocator-3"}

// Images, as `make compose` packs them. They have tags of their own, so that
// images in use keep their names.
const (
	imageOwn   = "allocator:compose-test"
	imageOther = "allocator:compose-test-upgrade"
	imageLoad  = "allocator-composetest:compose-test"
)

// bound is how long a whole run may take: about five times what it takes on two
// idle cores.
const bound = 15 * time.Minute

// test is one run.
type test struct {
	*docker
	out      io.Writer
	root     string // directory of the repository
	dir      string // directory of the history and the logs
	project  string
	began    time.Time
	other    string   // version of the program in imageOther
	settings []string // variables of compose.yaml
	skipped  []string
}

func runTest(ctx context.Context, args []string, out io.Writer) (err error) {
	fs := flag.NewFlagSet("run", flag.ContinueOnError)
	images := fs.String("images", "bin/image", "directory of the archives")
	keep := fs.Bool("keep", false, "keep histories and logs")
	other := fs.String("other", "compose-test-upgrade", "version of the program in the image to go to and back from")
	if err := fs.Parse(args); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	t := &test{out: out, began: time.Now(), project: fmt.Sprintf("composetest%d", os.Getpid()), other: *other}
	if t.root, err = os.Getwd(); err != nil {
		return err
	}
	if t.dir, err = os.MkdirTemp("", "allocator-compose-"); err != nil {
		return err
	}
	defer func() {
		if *keep || err != nil && !errors.Is(err, errMissing) {
			t.logf("histories and logs are in %s", t.dir)
		} else {
			_ = os.RemoveAll(t.dir)
		}
	}()
	if t.docker, err = openDocker(ctx, t.dir); err != nil {
		return err
	}
	defer func() {
		t.cleanUp(err != nil)
		t.close()
		if t.daemonDir() {
			_ = os.RemoveAll(filepath.Join(t.dir, "data")) // images and volumes: large, and of no use
		}
	}()
	if err := t.steps(ctx, *images); err != nil {
		return err
	}
	for _, s := range t.skipped {
		t.logf("skipped: %s", s)
	}
	t.logf("passed")
	return nil
}

func (t *test) steps(ctx context.Context, images string) error {
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"load the images", func(ctx context.Context) error { return t.load(ctx, images) }},
		{"build the same with docker build", func(ctx context.Context) error { return t.sameByDocker(ctx, images) }},
		{"bring up three nodes with etcd inside", t.up},
		{"kill, pause and disconnect under load", t.faults},
		{"kill -9 all nodes at once, and their members with them", t.crash},
		{"go to the other version and back, node after node, under load of the SDK", t.otherAndBack},
		{"stop: every sid is released, and the next start waits for nothing", t.stopAndStart},
	} {
		t.logf("== %s", step.name)
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// logf prints a line with the seconds since the start.
func (t *test) logf(format string, args ...any) {
	fmt.Fprintf(t.out, "%6.1fs  %s\n", time.Since(t.began).Seconds(), fmt.Sprintf(format, args...))
}

// daemonDir reports whether the daemon's data is in our directory.
func (t *test) daemonDir() bool {
	_, err := os.Stat(filepath.Join(t.dir, "data"))
	return err == nil
}

func (t *test) load(ctx context.Context, images string) error {
	for _, name := range []string{"allocator-test", "allocator-upgrade", "composetest"} {
		output, err := t.run(ctx, "docker", "load", "--input", filepath.Join(images, name+".tar"))
		if err != nil {
			return err
		}
		t.logf("%s", output)
	}
	const user = "65532:65532"
	if got, err := t.inspect(ctx, "{{.Config.User}}", imageOwn); err != nil || got != user {
		return fmt.Errorf("%s runs as %q, want %q: %w", imageOwn, got, user, err)
	}
	return nil
}

// sameByDocker compares what Docker builds from the Dockerfile with the archive.
func (t *test) sameByDocker(ctx context.Context, images string) error {
	const format = `{{json .Config.User}} {{json .Config.ExposedPorts}} {{json .Config.Entrypoint}} ` +
		`{{json .Config.Cmd}} {{json .Config.Healthcheck}} {{json .Config.StopSignal}} {{.Config.Labels}}`
	labels, err := t.inspect(ctx, `{{range $k, $v := .Config.Labels}}{{$k}}={{$v}}{{"\n"}}{{end}}`, imageOwn)
	if err != nil {
		return err
	}
	args := []string{"build", "--quiet", "--file", filepath.Join(t.root, "deploy/Dockerfile"),
		"--tag", imageOwn + "-docker"}
	for arg, label := range map[string]string{"VERSION": "version", "REVISION": "revision", "CREATED": "created"} {
		for _, l := range strings.Split(labels, "\n") {
			if v, ok := strings.CutPrefix(l, "org.opencontainers.image."+label+"="); ok {
				args = append(args, "--build-arg", arg+"="+v)
			}
		}
	}
	if err := t.do(ctx, append(args, filepath.Join(images, "allocator"))...); err != nil {
		t.skipped = append(t.skipped, "docker build: this Docker cannot build: "+err.Error())
		return nil
	}
	ours, err := t.inspect(ctx, format, imageOwn)
	if err != nil {
		return err
	}
	theirs, err := t.inspect(ctx, format, imageOwn+"-docker")
	if err != nil {
		return err
	}
	if ours != theirs {
		return fmt.Errorf("the images differ:\n%s\n%s", ours, theirs)
	}
	t.logf("the same user, ports, labels, health check and entry point")
	return nil
}

// withCompose runs Compose on the file of this repository, with ports that are free.
func (t *test) withCompose(ctx context.Context, args ...string) (string, error) {
	saved := t.docker.env
	defer func() { t.docker.env = saved }()
	t.docker.env = slices.Concat(saved, t.settings)
	all := slices.Concat(t.compose,
		[]string{"--project-name", t.project, "--file", filepath.Join(t.root, "deploy/compose.yaml")}, args)
	return t.run(ctx, all[0], all[1:]...)
}

func (t *test) up(ctx context.Context) error {
	key, err := t.run(ctx, "docker", "run", "--rm", imageOwn, "gossip", "keygen")
	if err != nil {
		return err
	}
	// Uid 65532 must read it, whatever its owner; the parent directory is ours alone.
	if err := os.WriteFile(filepath.Join(t.dir, "gossip.keys"), []byte(key+"\n"), 0o644); err != nil {
		return err
	}
	t.settings = []string{"ALLOCATOR_IMAGE=" + imageOwn, "ALLOCATOR_SECRETS=" + t.dir}
	for i := range allocators {
		for _, listener := range []string{"GRPC", "HTTP", "ADMIN"} {
			t.settings = append(t.settings, fmt.Sprintf("%s_%d=", listener, i+1)) // any free port
		}
	}
	if _, err := t.withCompose(ctx, "up", "--detach"); err != nil {
		return err
	}
	if err := t.waiting(ctx); err != nil {
		return err
	}
	output, err := t.withCompose(ctx, "run", "--rm", "init")
	if err != nil {
		return err
	}
	t.logf("%s", tail([]byte(output), 1))
	if err := t.healthy(ctx, allocators...); err != nil {
		return err
	}
	output, err = t.run(ctx, "docker", "exec", t.name(allocators[1]), "/allocator", "get", "3", "--as", "uuid")
	if err != nil {
		return err
	}
	t.logf("%s", strings.Join(strings.Fields(output), " "))
	return nil
}

// waiting waits until a node that is not initialized is alive, and not ready.
func (t *test) waiting(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthWithin)
	defer cancel()
	first := t.name(allocators[0])
	err := until(ctx, func() error { return t.do(ctx, "exec", first, "/allocator", "health", "--live") })
	if err != nil {
		return err
	}
	output, err := t.run(ctx, "docker", "exec", first, "/allocator", "health")
	if err == nil || !strings.Contains(output, "STARTING") {
		return fmt.Errorf("before init a node reports %q, want STARTING", output)
	}
	return nil
}

// name is the container of a service, as this version of Compose writes it.
func (t *test) name(service string) string {
	separator := "_"
	if len(t.compose) == 2 {
		separator = "-"
	}
	return t.project + separator + service + separator + "1"
}

// healthWithin is how long containers may take to be healthy again: the time to
// live of a lease, a window, and a slow machine.
const healthWithin = 90 * time.Second

// healthy waits until the health checks of services pass.
func (t *test) healthy(ctx context.Context, services ...string) error {
	ctx, cancel := context.WithTimeout(ctx, healthWithin)
	defer cancel()
	for _, s := range services {
		err := until(ctx, func() error {
			state, err := t.inspect(ctx, "{{.State.Status}} {{.State.Paused}} {{.State.Health.Status}}", t.name(s))
			if err != nil {
				return err
			}
			if state != "running false healthy" {
				return fmt.Errorf("%s is %s", s, state)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("not healthy within %v: %w", healthWithin, err)
		}
	}
	return nil
}

// answering is healthy by what nodes answer now, not by the daemon's last check. A node is ready without
// the member of etcd inside it, so all members have to answer too: the next fault may take another one.
func (t *test) answering(ctx context.Context) error {
	if err := t.healthy(ctx, allocators...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, healthWithin)
	defer cancel()
	for _, s := range allocators {
		if err := until(ctx, func() error { return t.do(ctx, "exec", t.name(s), "/allocator", "health") }); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return until(ctx, func() error { return t.do(ctx, "exec", t.name(allocators[0]), "/allocator", "etcd", "status") })
}

// cleanUp removes what was created, and keeps logs after a failure. It has its own
// timeout: that of the run may have passed.
func (t *test) cleanUp(failed bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if failed {
		for _, s := range allocators {
			_ = t.do(ctx, "unpause", t.name(s))
			if text, err := t.run(ctx, "sh", "-c", `docker logs "$0" 2>&1`, t.name(s)); err == nil {
				_ = os.WriteFile(filepath.Join(t.dir, s+".log"), []byte(text), 0o600)
			}
		}
	}
	_ = t.do(ctx, "rm", "--force", t.project+"-load")
	if _, err := t.withCompose(ctx, "down", "--volumes", "--timeout", "5"); err != nil {
		t.logf("clean up: %v", err)
	}
	for _, image := range []string{imageOwn, imageOwn + "-docker", imageOther, imageLoad} {
		_ = t.do(ctx, "rmi", "--force", image)
	}
}
