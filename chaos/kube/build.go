package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// The majors of Helm that the chart is for.
var helms = []struct{ name, path, version string }{
	{"helm3", "helm.sh/helm/v3/cmd/helm", "v3.22.0"},
	{"helm4", "helm.sh/helm/v4/cmd/helm", "v4.3.1"},
}

// The programs of Kubernetes, tools of this module.
var kubePrograms = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet",
	"kubectl"}

// buildAll builds the programs that are not built yet. Those of Kubernetes and Helm
// are kept with their versions, so that a second run builds only our own.
func buildAll(ctx context.Context, s settings) error {
	if err := os.MkdirAll(s.bin, 0o755); err != nil {
		return err
	}
	here := filepath.Join(s.root, "chaos/kube")
	version, err := kubeVersion(ctx, here)
	if err != nil {
		return err
	}
	number := strings.Split(strings.TrimPrefix(version, "v"), ".")
	flags := "-s -w"
	for _, v := range []string{"gitVersion=" + version, "gitMajor=" + number[0], "gitMinor=" + number[1],
		"gitTreeState=clean"} {
		flags += " -X k8s.io/component-base/version." + v
	}
	var made string
	for _, f := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(here, f))
		if err != nil {
			return err
		}
		made += string(b)
	}
	for _, p := range kubePrograms {
		if s.only == "objects" && (p == "kubelet" || p == "kube-proxy") {
			continue // There are no pods.
		}
		if err := build(ctx, s, p, made+flags, here, "build", "-ldflags", flags, "-o", filepath.Join(s.bin, p),
			"k8s.io/kubernetes/cmd/"+p); err != nil {
			return err
		}
	}
	for _, h := range helms {
		if err := build(ctx, s, h.name, h.path+h.version, s.bin, "install", h.path+"@"+h.version); err != nil {
			return err
		}
	}
	// Our own are built each time: the go command knows whether they changed.
	if err := build(ctx, s, "etcd", "", filepath.Join(s.root, "chaos/real"), "build",
		"-ldflags", "-s -w", "-o", filepath.Join(s.bin, "etcd"), "./etcd"); err != nil {
		return err
	}
	if err := build(ctx, s, "kubeload", "", filepath.Join(s.root, "chaos/real"), "build",
		"-o", filepath.Join(s.bin, "kubeload"), "./kubeload"); err != nil {
		return err
	}
	return build(ctx, s, "pause", "", filepath.Join(here, "pause"), "build", "-o", filepath.Join(s.bin, "pause"), ".")
}

// build builds one program, unless it was built from the same sources and settings,
// which made describes. An empty made is never the same.
func build(ctx context.Context, s settings, name, made, dir string, args ...string) error {
	stamp := filepath.Join(s.bin, name+".made")
	want := fmt.Sprintf("%x %s\n", sha256.Sum256([]byte(made)), runtime.Version())
	if got, err := os.ReadFile(stamp); made != "" && err == nil && string(got) == want {
		if _, err := os.Stat(filepath.Join(s.bin, name)); err == nil {
			return nil
		}
	}
	begun := time.Now()
	fmt.Printf("building %s\n", name)
	// Linking takes 2 GB for each of two programs at a time.
	args = append([]string{args[0], "-trimpath", "-p", "2"}, args[1:]...)
	cmd := exec.CommandContext(ctx, "nice", append([]string{"-n", "10", "go"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+filepath.Join(s.bin, name+".d"),
		"GOMAXPROCS=2", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	if args[0] == "install" {
		if err := os.Rename(filepath.Join(s.bin, name+".d", "helm"), filepath.Join(s.bin, name)); err != nil {
			return err
		}
		_ = os.Remove(filepath.Join(s.bin, name+".d"))
	}
	if took := time.Since(begun); took > 5*time.Second {
		fmt.Printf("  built %s in %s\n", name, took.Round(time.Second))
	}
	if made == "" {
		return nil
	}
	return os.WriteFile(stamp, []byte(want), 0o644)
}

// kubeVersion returns the version of Kubernetes in go.mod.
func kubeVersion(ctx context.Context, here string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-json", "k8s.io/kubernetes")
	cmd.Dir = here
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Errorf("version of Kubernetes: %w: %s", err, exit.Stderr)
		}
		return "", err
	}
	var m struct{ Version string }
	if err := json.Unmarshal(out, &m); err != nil {
		return "", err
	}
	if strings.Count(m.Version, ".") < 2 {
		return "", fmt.Errorf("version of Kubernetes is %q in go.mod", m.Version)
	}
	return m.Version, nil
}

// images are the archives of the images that pods run.
func (s settings) images() []string {
	return []string{filepath.Join(s.root, "bin/image/allocator.tar"), filepath.Join(s.bin, "pause.tar")}
}

// buildImages builds them: those of the project as users build them, and that of the
// container which holds the namespaces of a pod.
func buildImages(ctx context.Context, s settings) error {
	begun := time.Now()
	fmt.Println("building images")
	cmd := exec.CommandContext(ctx, "nice", "-n", "10", "make", "image")
	cmd.Dir = s.root
	cmd.WaitDelay = 5 * time.Second
	// With the settings of our own builds they share a cache.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make image: %w\n%s", err, out)
	}
	dir := filepath.Join(s.bin, "pause.d")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(s.bin, "pause"))
	if err != nil {
		return err
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "pause"), b, 0o755),
		os.WriteFile(filepath.Join(dir, "Dockerfile"),
			[]byte("FROM scratch\nCOPY pause /pause\nUSER 65535:65535\nENTRYPOINT [\"/pause\"]\n"), 0o644),
	); err != nil {
		return err
	}
	if _, err := output(ctx, filepath.Join(s.root, "bin/pack"), "pack", "--file", filepath.Join(dir, "Dockerfile"),
		"--context", dir,
		"--binary", filepath.Join(dir, "pause"), "--tag", pauseImage,
		"-o", filepath.Join(s.bin, "pause.tar")); err != nil {
		return err
	}
	for _, f := range s.images() {
		if _, err := os.Stat(f); err != nil {
			return fmt.Errorf("after make image: %w", err)
		}
	}
	fmt.Printf("  built images in %s\n", time.Since(begun).Round(time.Second))
	return nil
}
