package etcd

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// A full quota stops every write, also after a restart of etcd. The command makes room, and then etcd
// takes writes again.
func TestDefragment(t *testing.T) {
	const quota = 16 << 20
	s, err := etcdserver.Start(t.Context(), etcdserver.Alone{Run: member.Run{Quota: quota}, NoSync: true})
	fatal.If(t, err)
	t.Cleanup(func() { _ = s.Close() })
	c, err := etcdstore.Dial(etcdstore.Config{Endpoints: []string{s.Endpoint()}})
	fatal.If(t, err)
	t.Cleanup(func() { _ = c.Close() })
	const size = 1 << 20
	write := func() error {
		_, err := c.Put(t.Context(), "key", strings.Repeat("x", size))
		return err
	}
	run := func(words ...string) (int, string) {
		var out bytes.Buffer
		args := slices.Concat(words, []string{"--etcd.endpoints", s.Endpoint()})
		return cli.Run(t.Context(), args, strings.NewReader(""), &out, &out, nil, "", Command), out.String()
	}
	for n := 0; err == nil; n++ {
		if n > 16*quota/size { // The size grows when etcd commits what it has gathered.
			t.Fatalf("etcd took %d MiB", n)
		}
		err = write()
	}
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		t.Fatal(err)
	}
	st, err := etcdstore.New(c, "allocator", "default")
	fatal.If(t, err)
	if _, _, err = st.Init(t.Context(), lease.Space{Layout: flake.Scalable, Epoch: 1, Pool: "pool"}, 1000); !errors.Is(err, lease.ErrRefused) ||
		!strings.HasSuffix(err.Error(), `space exceeded: "allocator doctor" says how to make room`) {
		t.Errorf("a node's write gives %v", err)
	}
	s.Stop()
	fatal.If(t, s.Restart(t.Context()))
	for _, tc := range []struct {
		words []string
		code  int
		says  []string
		full  bool // afterwards
	}{
		{[]string{"status"}, cli.ExitInvalid, []string{"NOSPACE"}, true},
		{[]string{"defragment", "--dry-run"}, cli.ExitOK, []string{"refuses every write", "nothing was changed"}, true},
		{[]string{"defragment"}, cli.ExitUsage, []string{"give --yes"}, true},
		{[]string{"defragment", "--yes"}, cli.ExitOK, []string{"compacting", ": defragmented", "takes writes again"}, false},
		{[]string{"status"}, cli.ExitOK, nil, false},
		{[]string{"defragment", "--yes"}, cli.ExitOK, []string{": defragmented"}, false},
	} {
		code, out := run(tc.words...)
		if missing := slices.DeleteFunc(tc.says, func(text string) bool {
			return strings.Contains(out, text)
		}); code != tc.code || len(missing) > 0 {
			t.Errorf("%s: exit code %d, want %d; it does not say %q:\n%s", tc.words, code, tc.code, missing, out)
		}
		if err := write(); errors.Is(err, rpctypes.ErrNoSpace) != tc.full || err != nil && !tc.full {
			t.Fatalf("after %s a write gives %v", tc.words, err)
		}
	}
}

// A member that is away keeps the others as they are.
func TestDefragmentWithOneAway(t *testing.T) {
	c := newCluster(t)
	c.silent[2] = true
	code, out := c.command(t, "defragment", "--yes")
	if code != cli.ExitInvalid || len(c.done) > 0 || !strings.Contains(out, c.endpoints[1]+" is not healthy") {
		t.Errorf("exit code %d, did %q: %s", code, c.done, out)
	}
	c.silent[2] = false
	c.learns()
	code, out = c.command(t, "defragment", "--yes")
	if code != cli.ExitInvalid || len(c.done) > 0 || !strings.Contains(out, "http://d:2380 is not healthy") {
		t.Errorf("one that has not started: exit code %d, did %q: %s", code, c.done, out)
	}
}
