package main

import (
	"bytes"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
)

var releaseDir = flag.String("dir", "", "directory of `make release DO=snapshot`: tests take its files; empty: they build what they need")

// The packages do on a machine what their page says: TestInstall runs testdata/install.sh on a
// copy of the machine's files. The copy is an overlay in a mount namespace, and is gone with it.
func TestInstall(t *testing.T) {
	if *releaseDir == "" {
		tier.Check(t, "builds the program and an etcd, and installs packages")
	}
	for _, tool := range []string{"dpkg", "unshare", "setpriv", "mount", "chroot"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("not run: %s is not installed, which installing a deb needs", tool)
		}
	}
	if os.Getuid() != 0 {
		t.Skip("not run: only root can install a package, even in a copy of its machine's files")
	}
	dir := t.TempDir()
	work, version := builtPrograms(t, dir), "0.1.0"
	first := release{version: version, work: work, dir: filepath.Join(dir, "first"), at: time.Unix(1.7e9, 0)}
	newer := release{version: "0.1.1", work: work, dir: filepath.Join(dir, "newer"), at: time.Unix(1.8e9, 0)}
	t.Chdir(root)
	for _, r := range []release{first, newer} {
		fatal.If(t, os.Mkdir(r.dir, 0o755))
		fatal.If(t, r.packages(runtime.GOARCH))
	}
	deb, rpm := only(t, filepath.Join(first.dir, "*.deb")), only(t, filepath.Join(first.dir, "*.rpm"))
	if *releaseDir != "" {
		deb = only(t, filepath.Join(*releaseDir, "allocator_*_"+runtime.GOARCH+".deb"))
		rpm = only(t, filepath.Join(*releaseDir, "allocator-*"+map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]+".rpm"))
		text, err := exec.Command("dpkg-deb", "--field", deb, "Version").Output()
		fatal.If(t, err)
		version = strings.TrimSpace(string(text))
	}
	const overlay = `set -e
mount -t tmpfs tmpfs "$0" && mkdir "$0/upper" "$0/work" "$0/root"
mount -t overlay overlay -o lowerdir=/,upperdir="$0/upper",workdir="$0/work" "$0/root"
cp -R "$1" "$0/root/release" && shift
mount -t proc proc "$0/root/proc" && mount --rbind /dev "$0/root/dev"
mount -t tmpfs tmpfs "$0/root/run" && mount -t tmpfs tmpfs "$0/root/tmp"
exec chroot "$0/root" /bin/sh /release/install.sh "$@"`
	here := filepath.Join(dir, "files")
	fatal.If(t, os.Mkdir(here, 0o755))
	for to, from := range map[string]string{
		"install.sh": "deploy/release/testdata/install.sh", "first.deb": deb, "first.rpm": rpm,
		"newer.deb": only(t, filepath.Join(newer.dir, "*.deb")), "etcd": filepath.Join(work, "etcd"),
	} {
		fatal.If(t, copyFile(filepath.Join(here, to), from))
	}
	fatal.If(t, os.Chmod(filepath.Join(here, "etcd"), 0o755))
	top := filepath.Join(dir, "copy")
	fatal.If(t, os.Mkdir(top, 0o755))
	if out, err := exec.Command("unshare", "--mount", "sh", "-c", `mount -t tmpfs tmpfs "$0" && mkdir "$0/upper" "$0/work" "$0/root" &&
		mount -t overlay overlay -o lowerdir=/,upperdir="$0/upper",workdir="$0/work" "$0/root"`, top).CombinedOutput(); err != nil {
		t.Skipf("not run: this machine allows no overlay over its files: %s", bytes.TrimSpace(out))
	}
	out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", overlay, top, here,
		"/release/first.deb", version, "/release/newer.deb", newer.version, "/release/first.rpm", "/release/etcd",
		strconv.Itoa(freePorts(t, 5))).CombinedOutput()
	t.Logf("%s", out)
	fatal.If(t, err)
	for _, want := range []string{"== a node that issues", "== upgrade", "== purge"} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("it did not come to %q", want)
		}
	}
}

// builtPrograms returns a directory of work with the release's program for this machine, and
// an etcd beside it: built, or out of the release.
func builtPrograms(t *testing.T, dir string) string {
	t.Helper()
	work := filepath.Join(dir, "work")
	program := filepath.Join(work, "linux-"+runtime.GOARCH, "allocator")
	fatal.If(t, os.MkdirAll(program, 0o755))
	for _, name := range []string{"NOTICE", "allocator.spdx.json"} {
		fatal.If(t, os.WriteFile(filepath.Join(program, name), []byte("{}\n"), 0o644))
	}
	build := func(in, to string, args ...string) {
		t.Helper()
		cmd := exec.Command("go", append(append([]string{"build", "-buildvcs=false"}, args[:len(args)-1]...), "-o", to, args[len(args)-1])...)
		cmd.Dir, cmd.Env = in, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	build(root, filepath.Join(program, "allocator"), "./cmd/allocator")
	build(filepath.Join(root, "chaos/real"), filepath.Join(work, "etcd"), "./etcd")
	return work
}

func only(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v: want one file", pattern, found, err)
	}
	return found[0]
}

// freePorts returns the first of n ports of loopback that nobody uses. They are below the
// range from which the kernel takes those of connections.
func freePorts(t *testing.T, n int) int {
	t.Helper()
	for port := 21_000; port < 31_000; port += n {
		var taken []net.Listener
		for p := port; p < port+n; p++ {
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
			if err != nil {
				break
			}
			taken = append(taken, l)
		}
		for _, l := range taken {
			_ = l.Close()
		}
		if len(taken) == n {
			return port
		}
	}
	t.Fatal("no free ports")
	return 0
}

// What is released for arm64 runs: the tests of the codecs and of the generator, built for it,
// and the program of the release. qemu emulates the processor.
func TestArm64(t *testing.T) {
	if *releaseDir == "" {
		tier.Nightly(t, "builds for arm64, with nothing in the cache: minutes")
	}
	var run []string
	if runtime.GOARCH != "arm64" {
		qemu, err := exec.LookPath("qemu-aarch64-static")
		if err != nil {
			t.Skip("not run: qemu-aarch64-static is not installed (Debian: apt-get install qemu-user-static)")
		}
		run = []string{qemu}
	}
	emulated := func(dir, program string, args ...string) string {
		t.Helper()
		line := append(append(append([]string{}, run...), program), args...)
		cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", line, err, out)
		}
		return string(out)
	}
	for _, pkg := range []string{"flake", "ulid", "internal/gen"} {
		t.Run(pkg, func(t *testing.T) {
			program := filepath.Join(t.TempDir(), "tests")
			cmd := exec.Command("go", "test", "-c", "-o", program, "./"+pkg)
			cmd.Dir, cmd.Env = root, append(os.Environ(), "GOARCH=arm64", "GOOS=linux", "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if out := emulated(filepath.Join(root, pkg), program, "-test.short", "-test.timeout", "15m"); !strings.Contains(out, "PASS") {
				t.Error(out)
			}
		})
	}
	if *releaseDir == "" {
		return
	}
	t.Run("the program", func(t *testing.T) {
		dir := t.TempDir()
		archive := only(t, filepath.Join(*releaseDir, "allocator_*_linux_arm64.tar.gz"))
		if out, err := exec.Command("tar", "-xzf", archive, "-C", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		version := emulated(dir, "./allocator", "version")
		if !strings.Contains(version, "linux/arm64") || !strings.Contains(filepath.Base(archive), strings.Fields(version)[1][1:]) {
			t.Errorf("%s has %q", archive, version)
		}
		id := strings.TrimSpace(emulated(dir, "./allocator", "new"))
		emulated(dir, "./allocator", "parse", id)
		t.Logf("%s: %s", strings.TrimSpace(version), id)
	})
}
