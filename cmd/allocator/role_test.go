package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/config"
)

// tools runs shell commands of the guide against an etcd, with etcd's own etcdctl.
type tools struct {
	*testing.T
	dir, endpoint string
	user          string // name:password; "": etcd asks nobody
}

func (s *tools) sh(command string) (string, error) {
	s.Helper()
	cmd := exec.CommandContext(s.Context(), "sh", "-c", command)
	cmd.Env = append(os.Environ(), "PATH="+s.dir+":"+os.Getenv("PATH"), "ETCDCTL_ENDPOINTS="+s.endpoint)
	if s.user != "" {
		cmd.Env = append(cmd.Env, "ETCDCTL_USER="+s.user)
	}
	out, err := cmd.CombinedOutput()
	s.Logf("$ %s\n%s", command, out)
	return string(out), err
}

func (s *tools) must(command string) string {
	s.Helper()
	out, err := s.sh(command)
	if err != nil {
		s.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

// The role that deploy/etcd/role.sh makes is enough for all that nodes and
// operators do with a space, and for nothing outside it.
func TestRole(t *testing.T) {
	tier.Check(t, "builds etcdctl")
	t.Parallel() // most of the time it waits
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("not run: there is no sh")
	}
	script, err := filepath.Abs("../../deploy/etcd/role.sh")
	fatal.If(t, err)
	dir := t.TempDir()
	if _, err := build.Etcdctl(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	d := &testCluster{T: t, began: time.Now(), etcd: startEtcd(t)}
	s := &tools{T: t, dir: dir, endpoint: d.etcd.Endpoint()}
	d.user = config.Etcd{Username: "allocator-default", PasswordFile: filepath.Join(dir, "password")}
	fatal.If(t, os.WriteFile(d.user.PasswordFile, []byte("s3cret-of-the-nodes\n"), 0o600))

	// Without authentication, and with it: the same command.
	make := script + " --password-file " + d.user.PasswordFile
	if out := s.must(make); !strings.Contains(out, "role allocator-default: created") || !strings.Contains(out, "Authentication is off") {
		t.Errorf("the first time it says\n%s", out)
	}
	s.must("etcdctl user add root:toor && etcdctl user grant-role root root && etcdctl auth enable")
	s.user = "root:toor"
	if out := s.must(make); !strings.Contains(out, "role allocator-default: exists") || strings.Contains(out, "is off") {
		t.Errorf("the second time it says\n%s", out)
	}

	d.works()
	d.deniedOutside()
	s.refuses(script, d.user.PasswordFile)
}

// works does what a space sees in its life.
func (d *testCluster) works() {
	d.Helper()
	for _, step := range []struct {
		args []string
		want string
	}{
		{[]string{"init", "--fresh"}, "initialized"},
		{[]string{"init"}, "already initialized"},
	} {
		if out, code := d.cli(step.args...); code != 0 || !strings.Contains(out, step.want) {
			d.Fatalf("%v: %d: %s", step.args, code, out)
		}
	}
	a, b := d.node("a"), d.node("b")
	a.serves(-1)
	b.serves(-1)
	out, code := d.cli("doctor")
	for _, want := range []string{"writing outside the prefix is denied", "a at 127.0.0.1", "b at 127.0.0.1", "all 2 records of sids are readable"} {
		if !strings.Contains(out, want) {
			d.Errorf("doctor: %d: without %q:\n%s", code, want, out)
		}
	}
	if strings.Contains(out, "permission denied") && !strings.Contains(out, "alarms cannot be read with this role") {
		d.Errorf("doctor was denied something:\n%s", out)
	}
	free := 0 // Nodes draw their sids.
	for free == a.sid() || free == b.sid() {
		free++
	}
	sid := strconv.Itoa(free)
	for _, args := range [][]string{
		{"admin", "quarantine", sid, "--reason", "test"}, {"admin", "release-sid", sid, "--yes"}, {"admin", "recover", "--yes"},
	} {
		if out, code := d.cli(args...); code != 0 {
			d.Errorf("%v: %d: %s", args, code, out)
		}
	}
	// Watches bring the new era to the nodes: they give their sids back and go on in it.
	for _, m := range []*member{a, b} {
		wait.Until(d, m.name+" goes on in the new era", func() bool {
			var out strings.Builder
			return run(d.Context(), []string{"status", "--addr", m.Addresses().GRPC}, strings.NewReader(""), &out, &out, nil) == 0 && strings.Contains(out.String(), ", era 2\n")
		})
	}
	a.serves(-1)
	b.serves(-1)
	a.stop() // releases, revokes
	b.serves(-1)
	b.stop()
	d.unique()
}

// deniedOutside tries the edges of the prefix, and what belongs to etcd's owner.
func (d *testCluster) deniedOutside() {
	d.Helper()
	password, err := os.ReadFile(d.user.PasswordFile)
	fatal.If(d, err)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{d.etcd.Endpoint()}, Username: d.user.Username, Password: strings.TrimSpace(string(password)), Logger: zap.NewNop()})
	fatal.If(d, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(d.Context(), time.Minute)
	defer cancel()
	if _, err := c.Get(ctx, "/allocator/default/", clientv3.WithPrefix()); err != nil {
		d.Fatalf("inside: %v: what follows would prove nothing", err)
	}
	denied := func(what string, err error) {
		d.Helper()
		if !errors.Is(err, rpctypes.ErrPermissionDenied) {
			d.Errorf("%s: %v, want it denied", what, err)
		}
	}
	for _, key := range []string{"/allocator/default", "/allocator/default0", "/allocator/default.", "/allocator/defaulu", "/allocator/other/config", "/allocator/", "/", "\x00", "zzz"} {
		_, err := c.Put(ctx, key, "x")
		denied("put "+key, err)
		_, err = c.Get(ctx, key)
		denied("get "+key, err)
		_, err = c.Delete(ctx, key)
		denied("delete "+key, err)
		_, err = c.Txn(ctx).Then(clientv3.OpPut("/allocator/default/x", ""), clientv3.OpPut(key, "x")).Commit()
		denied("put in a transaction "+key, err)
		_, err = c.Txn(ctx).If(clientv3.Compare(clientv3.Version(key), "=", 0)).Then(clientv3.OpGet("/allocator/default/x")).Commit()
		denied("compare "+key, err)
	}
	_, err = c.Get(ctx, "/allocator/", clientv3.WithPrefix())
	denied("get a prefix around ours", err)
	_, err = c.Delete(ctx, "/allocator/default/", clientv3.WithFromKey())
	denied("delete from ours on", err)
	_, err = c.RoleAdd(ctx, "more")
	denied("role add", err)
	_, err = c.UserGrantRole(ctx, d.user.Username, "root")
	denied("grant root", err)
	_, err = c.AuthDisable(ctx)
	denied("auth disable", err)
}

// refuses runs the script where it must not say that all is well.
func (s *tools) refuses(script, password string) {
	s.Helper()
	for _, tc := range []struct{ args, want string }{
		{"", "usage"},
		{"--space", "usage"},
		{"--no-password --password-file " + password, "usage"},
		{"--no-password --space ''", "invalid root or space"},
		{"--no-password --space a/b", "invalid root or space"},
		{"--no-password --root ..", "invalid root or space"},
		{"--password-file /dev/null --space empty", "invalid password"},
		{"--password-file " + password + " --role root --space x", "more permissions than nodes need"},
		{"--password-file " + password + " --space other --user allocator-default", "more permissions than nodes need"},
	} {
		if out, err := s.sh(script + " " + tc.args); err == nil || !strings.Contains(out, tc.want) {
			s.Errorf("role.sh %s: %v, want %q:\n%s", tc.args, err, tc.want, out)
		}
	}
	s.must("etcdctl role grant-permission allocator-default read / --prefix=true")
	if out, err := s.sh(script + " --password-file " + password); err == nil || !strings.Contains(out, "(prefix /)") {
		s.Errorf("a role that may read everything: %v\n%s", err, out)
	}
	s.endpoint = "http://127.0.0.1:1"
	if out, err := s.sh(script + " --password-file " + password); err == nil {
		s.Errorf("no etcd:\n%s", out)
	}
}
