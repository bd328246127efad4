package netswitch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/real/clockhook"
)

// member is an etcd server in a host, behind a hook.
type member struct {
	*Host
	hook *clockhook.Hook
	cmd  *exec.Cmd
	log  string
	gone chan struct{}
}

// etcds starts a cluster, a member in each host. clocks are what they start with.
func etcds(t *testing.T, hosts []*Host, clocks []clockhook.Offsets) (members []*member) {
	t.Helper()
	if err := clockhook.Supported(); err != nil {
		t.Skip("not run:", err)
	}
	path, err := build.Etcd(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var cluster []string
	for _, h := range hosts {
		cluster = append(cluster, fmt.Sprintf("%s=http://%s:2380", h.Name, h.IP()))
	}
	for i, h := range hosts {
		dir := t.TempDir()
		m := &member{Host: h, log: filepath.Join(dir, "log"), gone: make(chan struct{})}
		client, peer := "http://"+h.IP()+":2379", "http://"+h.IP()+":2380"
		m.cmd = exec.Command(path, "--name", h.Name, "--data-dir", filepath.Join(dir, "data"),
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", strings.Join(cluster, ","))
		log, err := os.Create(m.log)
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		m.cmd.Stdout, m.cmd.Stderr = log, log
		m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		// On the host's thread: ptrace and the namespace are both a thread's.
		if err := h.Do(func() (err error) { m.hook, err = clockhook.Start(m.cmd, clocks[i]); return err }); err != nil {
			t.Fatal(err)
		}
		go func() {
			_ = m.cmd.Wait()
			close(m.gone)
		}()
		t.Cleanup(func() {
			_ = m.cmd.Process.Kill()
			<-m.gone
			if err := m.hook.Close(); err != nil {
				t.Error(err)
			}
			if text, err := os.ReadFile(m.log); t.Failed() && err == nil {
				t.Logf("%s: …%s", m.Name, text[max(0, len(text)-2000):])
			}
		})
		members = append(members, m)
	}
	return members
}

// Three members on three machines, with a clock and a disk of their own each: all
// instruments at once, on etcd as it is.
func TestEtcdCluster(t *testing.T) {
	s, hosts := network(t, 4)
	machine := hosts[3]
	members := etcds(t, hosts[:3], []clockhook.Offsets{{}, {Wall: time.Hour}, {Wall: -time.Hour}})
	began := time.Now()

	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		return machine.DialContext(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	put := func(m *member) (time.Duration, error) {
		began := time.Now()
		body := []byte(`{"key":"a2V5","value":"dmFsdWU="}`)
		response, err := client.Post("http://"+m.IP()+":2379/v3/kv/put", "application/json", bytes.NewReader(body))
		if err != nil {
			return 0, err
		}
		defer response.Body.Close()
		var answer struct{ Header map[string]any }
		text, _ := io.ReadAll(response.Body)
		if err := json.Unmarshal(text, &answer); err != nil || answer.Header["revision"] == nil {
			return 0, fmt.Errorf("%s: %s", response.Status, text)
		}
		return time.Since(began), nil
	}
	until := func(m *member) time.Duration {
		t.Helper()
		for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			took, err := put(m)
			if err == nil {
				return took
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	for _, m := range members {
		until(m)
	}
	t.Logf("ready after %v", time.Since(began))
	for _, m := range members {
		if statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", m.cmd.Process.Pid)); err == nil {
			var size, resident int
			fmt.Sscan(string(statm), &size, &resident)
			t.Logf("%s: %d MB resident", m.Name, resident*os.Getpagesize()>>20)
		}
	}

	// Clocks: the servers date their answers.
	for i, want := range []time.Duration{0, time.Hour, -time.Hour} {
		response, err := client.Get("http://" + members[i].IP() + ":2379/version")
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		date, err := http.ParseTime(response.Header.Get("Date"))
		if off := time.Until(date); err != nil || off < want-time.Minute || off > want+time.Minute {
			t.Errorf("%s: off by %v, want %v; %v", members[i].Name, off, want, err)
		}
	}

	// Disks: a write waits for two of three.
	const slow = 400 * time.Millisecond
	for _, m := range members {
		if err := m.hook.SlowSync(slow); err != nil {
			t.Fatal(err)
		}
	}
	if took := until(members[0]); took < slow {
		t.Errorf("on slow disks a write took %v", took)
	}
	for _, m := range members {
		if err := m.hook.SlowSync(0); err != nil {
			t.Fatal(err)
		}
		if m.hook.Counts().Slowed == 0 {
			t.Errorf("%s: no sync was slow", m.Name)
		}
	}
	if err := members[2].hook.FailSync(syscall.EIO); err != nil {
		t.Fatal(err)
	}
	until(members[0])
	select {
	case <-members[2].gone: // etcd ends when its log cannot be written
	case <-time.After(30 * time.Second):
		t.Errorf("a member outlives a broken disk: %+v", members[2].hook.Counts())
	}

	// Network: of the two that are left, neither can write alone.
	f := apply(t, s, Cut, Match{Ports: []uint16{2380}}, Both(hosts[0], hosts[1])...)
	client.Timeout = 300 * time.Millisecond
	if took, err := put(members[0]); err == nil {
		t.Errorf("a write in %v, without a majority", took)
	}
	if !f.Done().Fired() {
		t.Errorf("done: %+v", f.Done())
	}
	f.Lift()
	client.Timeout = 5 * time.Second
	until(members[1])
}
