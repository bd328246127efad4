package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/pages"
)

const guide = "../../docs/how-to/run-on-machines.md"

// programs builds what the guide needs: inside the network there is no way to download
// modules.
func programs(t *testing.T) string {
	t.Helper()
	for _, tool := range []string{"ip", "sh", "openssl", "make"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("not run: %s is not installed", tool)
		}
	}
	bin := t.TempDir()
	for _, program := range []func(context.Context, string) (string, error){build.Allocator, build.Etcd, build.Etcdctl} {
		if _, err := program(t.Context(), bin); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// machine is one of the guide's, as a directory.
type machine struct{ ip, dir string }

// script runs commands of the guide at a machine: its directories are below m.dir, and
// sudo and other users are left out.
func (m machine) script(t *testing.T, work, commands string) string {
	t.Helper()
	commands = regexp.MustCompile(`sudo (-u allocator )?`).ReplaceAllString(commands, "")
	commands = strings.NewReplacer("-o root -g allocator ", "", "/etc/allocator", m.dir+"/etc").Replace(commands)
	out, _, err := pages.NewShell(t, pages.Config{Dir: work, Env: []string{"IP=" + m.ip, "PATH=" + work + "/bin:" + os.Getenv("PATH")}}).Run(commands)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// service starts a program that runs until the test ends.
func service(t *testing.T, log string, env []string, args ...string) {
	t.Helper()
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		// etcd stops in order and then ends itself with the signal it was sent.
		if err := cmd.Wait(); err != nil && !(strings.HasSuffix(args[0], "etcd") && err.Error() == "signal: terminated") {
			t.Errorf("%s: %v", filepath.Base(log), err)
		}
		_ = out.Close()
		if text, err := os.ReadFile(log); err == nil && t.Failed() {
			t.Logf("%s:\n…%s", log, text[max(0, len(text)-4000):])
		}
	})
}

// environment reads NAME=value lines.
func environment(text, ip string) (out []string) {
	for _, line := range strings.Split(strings.ReplaceAll(text, "$IP", ip), "\n") {
		if strings.Contains(line, "=") {
			out = append(out, line)
		}
	}
	return out
}

// TestGuide follows docs/how-to/run-on-machines.md from the certificates to the last check, on
// three machines that are three addresses. What is left out: systemd, whose unit
// is taken for its command, and users.
func TestGuide(t *testing.T) {
	bin, ok := pages.OwnNetwork(t, func() string { return programs(t) })
	if !ok {
		return
	}
	page, work, root := pages.Open(t, guide), t.TempDir(), "../.."
	if err := os.Symlink(bin, filepath.Join(work, "bin")); err != nil {
		t.Fatal(err)
	}
	deploy, err := filepath.Abs(root + "/deploy")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(deploy, filepath.Join(work, "deploy")); err != nil {
		t.Fatal(err)
	}
	var machines []machine
	host := machine{dir: work}
	for i := range 3 {
		m := machine{ip: fmt.Sprintf("10.0.0.%d", i+1)}
		m.dir = filepath.Join(work, m.ip)
		host.script(t, work, "ip address add "+m.ip+"/32 dev lo; mkdir -p "+m.dir)
		machines = append(machines, m)
	}

	certificates, shared, ok := strings.Cut(page.Text(t, "run: once"), "mkdir -p shared")
	if !ok {
		t.Fatal("the guide shares secrets in another way")
	}
	host.script(t, work, certificates)
	for _, m := range machines {
		host.script(t, work, fmt.Sprintf("mkdir -p %[1]s/etcd && cp pki/%[2]s.pem %[1]s/etcd/server.pem && cp pki/%[2]s.key %[1]s/etcd/server.key && cp pki/ca.pem %[1]s/etcd/", m.dir, m.ip))
		text := strings.NewReplacer("/etc/etcd", m.dir+"/etcd", "/var/lib/etcd", m.dir+"/data").Replace(page.Text(t, "file: etcd.env"))
		// On one machine all members call from the same address, which is not in every
		// certificate.
		env := append(environment(text, m.ip), "ETCD_PEER_SKIP_CLIENT_SAN_VERIFICATION=true", "ETCD_LOG_LEVEL=error")
		service(t, filepath.Join(m.dir, "etcd.log"), append(os.Environ(), env...), filepath.Join(work, "bin/etcd"))
	}
	awaitOK(t, "etcd", func() error {
		cmd := exec.Command(filepath.Join(work, "bin/etcdctl"), "--endpoints", "https://10.0.0.3:2379", "--cacert", filepath.Join(work, "pki/ca.pem"), "endpoint", "health")
		return cmd.Run()
	})
	host.script(t, work, "mkdir -p shared"+shared)

	start := strings.Fields(field(readFile(t, deploy+"/systemd/allocator.service"), "ExecStart")[0])
	for i, m := range machines {
		m.script(t, work, page.Text(t, "run: each"))
		// The file names its files where they are installed.
		file := filepath.Join(m.dir, "etc/allocator.yaml")
		text := strings.ReplaceAll(readFile(t, file), "/etc/allocator", m.dir+"/etc")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			t.Logf("%s", m.script(t, work, page.Text(t, "run: first")))
		}
		args := append([]string{filepath.Join(work, "bin/allocator")}, start[1:]...)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "/etc/allocator", m.dir+"/etc")
		}
		service(t, filepath.Join(m.dir, "allocator.log"), append(os.Environ(), environment(readFile(t, filepath.Join(m.dir, "etc/environment")), m.ip)...), args...)
	}
	for _, m := range machines {
		awaitOK(t, m.ip, func() error {
			r, err := http.Get("http://" + m.ip + ":7947/readyz?verbose")
			if err != nil {
				return err
			}
			defer r.Body.Close()
			if body, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusOK {
				return fmt.Errorf("%s", body)
			}
			return nil
		})
	}
	said := machines[1].script(t, work, page.Text(t, "run: check"))
	t.Logf("%s", said)
	for _, want := range []string{
		"3 nodes; 3 of 32 sids held", "node-1", "node-3", "etcd-role        writing outside the prefix is denied", "0 fail",
		"https://10.0.0.2:2379: version", "node-2 at 10.0.0.2:9000 is ready",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("the last check does not say %q", want)
		}
	}
	if !regexp.MustCompile(`(?m)^[0-9A-Z]{13}$`).MatchString(said) {
		t.Error("no IDs were drawn")
	}
}

// awaitOK waits until f returns nil.
func awaitOK(t *testing.T, what string, f func() error) {
	t.Helper()
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatalf("not within a minute: %s: %v", what, err)
		}
	}
}
