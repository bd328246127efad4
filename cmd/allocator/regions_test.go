package main

import (
	"bytes"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
)

// TestSeveralRegions follows docs/how-to/several-regions.md with two etcds and a node of
// each.
func TestSeveralRegions(t *testing.T) {
	t.Parallel()
	page := pages.Open(t, "../../docs/how-to/several-regions.md")
	var eu, us string // of the etcds
	for _, e := range []*string{&eu, &us} {
		*e = startEtcd(t).Endpoint()
	}
	here := strings.NewReplacer("http://10.0.0.1:2379", eu, "http://10.1.0.1:2379", us)
	commands := func(mark string) (out [][]string) {
		t.Helper()
		for line := range strings.Lines(page.Text(t, mark)) {
			out = append(out, strings.Fields(here.Replace(line))[1:])
		}
		return out
	}
	does := func(code int, want string, args ...string) string {
		t.Helper()
		got, out, errs := allocator(args...)
		if got != code || !strings.Contains(out+errs, want) {
			t.Fatalf("%v: exit code %d, want %d with %q:\n%s%s", args, got, code, want, out, errs)
		}
		return out
	}
	for i, args := range commands("run: create") {
		does(cli.ExitOK, []string{"layout twitter (sids 0-255 of 1024)", "layout twitter (sids 256-511 of 1024)"}[i], args...)
	}
	var nodes []string
	for _, args := range commands("run: serve") {
		nodes = append(nodes, serve(t, args...).grpc)
	}
	for i, args := range commands("run: compare") { // A node on a busy machine may not answer in time at first.
		want := []string{"space default: layout twitter, sids 0-255 of 1024, epoch 2010-11-04T01:42:54.657Z", "sids 256-511 of 1024"}[i]
		eventually(t, cli.ExitOK, append(args[:len(args)-1:len(args)-1], nodes[i]), regexp.QuoteMeta(want))
	}

	// IDs of both are of their region's sids, and differ.
	sample := ""
	for i, addr := range nodes {
		ids := does(cli.ExitOK, "", "get", "5000", "--timeout", "1m", "--addr", addr)
		for line := range strings.Lines(ids) {
			id, err := flake.Parse(strings.TrimSpace(line))
			if sid := int(flake.Format{Layout: flake.Twitter}.SID(id)); err != nil || sid/256 != i {
				t.Fatalf("region %d issued %s: sid %d, %v", i, line, sid, err)
			}
		}
		sample += ids
	}
	var out bytes.Buffer
	if code := run(t.Context(), []string{"audit", "--layout", "twitter"}, strings.NewReader(sample), &out, &out, nil); code != cli.ExitOK {
		t.Errorf("audit: exit code %d: %s", code, &out)
	}
	eventually(t, cli.ExitOK, []string{"status", "--addr", nodes[1]}, "1 node; 1 of 256 sids held")
	eventually(t, cli.ExitOK, []string{"doctor", "--etcd.endpoints", eu, "--layout", "twitter"},
		"layout twitter, sids 0-255 of 1024, epoch")
}

// TestHighSIDs: nodes of sids that only wide layouts have compare clocks, and operators
// reach their records.
func TestHighSIDs(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	space := []string{"--etcd.endpoints", etcd.Endpoint(), "--layout", "baidu,epoch=2024-01-01"}
	code, out, errs := allocator(append([]string{"init", "--fresh", "--sids", "4194302-4194303"}, space...)...)
	if code != cli.ExitOK {
		t.Fatal(errs)
	}
	if !strings.Contains(out, "IDs of this layout end at 2032-07-03T21:24:15Z, in ") { // 2^28 s
		t.Errorf("init prints %s", out)
	}
	a := serve(t, append([]string{"serve", "--node.name", "a"}, space...)...).grpc
	serve(t, append([]string{"serve", "--node.name", "b"}, space...)...)
	// Each has heard of the other's sid.
	eventually(t, cli.ExitOK, []string{"status", "--addr", a, "--format", "json"}, `"pool_size":2,"pool_sids":"4194302-4194303",`,
		`"clock":{"verdict":"open","sid":4194302,"fresh":true`, `"clock":{"verdict":"open","sid":4194303,"fresh":true`)
	if code, _, errs := allocator(append([]string{"admin", "quarantine", "4194303"}, space...)...); code != cli.ExitInvalid || !strings.Contains(errs, "sid 4194303 is held by") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if code, _, errs := allocator(append([]string{"admin", "quarantine", "4194301"}, space...)...); code != cli.ExitInvalid || !strings.Contains(errs, "the space has sids 4194302-4194303 of 4194304") {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// The space of docs/how-to/move-from-uuids.md issues IDs, and none with the sid that the
// page gives to old rows.
func TestMoveFromUUIDs(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	page := pages.Open(t, "../../docs/how-to/move-from-uuids.md")
	var commands [][]string
	for line := range strings.Lines(strings.ReplaceAll(page.Text(t, "run: init"), "http://10.0.0.1:2379", etcd.Endpoint())) {
		commands = append(commands, strings.Fields(line)[1:])
	}
	if code, out, errs := allocator(commands[0]...); code != cli.ExitOK {
		t.Fatal(out, errs)
	}
	addr := serve(t, commands[1]...).grpc
	if _, out, errs := allocator("status", "--addr", addr); !strings.Contains(out, "layout scalable, sids 0-30 of 32, epoch 2015-01-01") {
		t.Error(out, errs)
	}
	began := time.Now().UnixMilli()
	_, id, errs := allocator("get", "--as", "int", "--timeout", "1m", "--addr", addr)
	_, out, _ := allocator("parse", "--epoch", "2015-01-01", "--only", "unix_ms", strings.TrimSpace(id))
	if ms, err := strconv.ParseInt(strings.TrimSpace(out), 10, 64); err != nil || ms < began-1000 || ms > time.Now().UnixMilli()+1000 {
		t.Errorf("issued %q%s at %d, of %q", id, errs, began, out)
	}
}
