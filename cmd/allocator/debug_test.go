package main

import (
	"archive/zip"
	"bytes"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/config"
)

// The archive has what nodes and etcd know, names who does not answer, and has no secret that went in anywhere.
func TestDebugZip(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	token, line, err := access.NewToken("operator", "read,admin")
	if err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte(line+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	guarded := func(pprof bool) func(*config.Config) {
		return func(c *config.Config) { c.Auth.TokenFile, c.PProf = tokens, pprof }
	}
	a, b := d.node("a", guarded(true)), d.node("b", guarded(false))
	a.serves(-1)
	b.serves(-1)
	d.says(cli.ExitOK, "", "admin", "quarantine", "9", "--reason", "postgres://ids:CANARYURL@db/ids password=CANARYWORD")
	silent, err := net.Listen("tcp", "127.0.0.1:0") // It accepts connections and says nothing.
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()

	file := filepath.Join(t.TempDir(), "all.zip")
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"debug", "zip", "--output", file, "--etcd.endpoints", d.etcd.Endpoint(),
		"--addr", silent.Addr().String()}, strings.NewReader(""), &out, &errs,
		[]string{config.EnvToken + "=" + token, "CANARYVARIABLE=CANARYVALUE"})
	if code != cli.ExitOK || !strings.Contains(out.String(), "2 of 3 nodes") ||
		!strings.Contains(errs.String(), silent.Addr().String()+": does not answer") {
		t.Fatalf("exit code %d: %s%s", code, &out, &errs)
	}
	z, err := zip.OpenReader(file)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	texts := map[string]string{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		for _, canary := range []string{token, "CANARY"} {
			if bytes.Contains(data, []byte(canary)) {
				t.Errorf("%s has %s", f.Name, canary)
			}
		}
		texts[f.Name] = string(data)
	}
	has := func(name, want string) {
		if text, ok := texts[name]; !ok || !strings.Contains(text, want) {
			t.Errorf("%s lacks %q", name, want)
		}
	}
	for _, m := range []*member{a, b} {
		dir := "nodes/" + m.name + "_at_" + strings.ReplaceAll(m.Addresses().GRPC, ":", "_") + "/"
		for name, want := range map[string]string{
			"status.json": `"quarantined"`, "settings.txt": "lease.window", "readyz.txt": "true sid:", "metrics.txt": "allocator_ids_issued_total",
			"events.jsonl": `"kind":"sid_acquired"`, "history.json": "stretches", "log.txt": "msg=listening",
		} {
			has(dir+name, want)
		}
		if _, ok := texts[dir+"cpu.pprof"]; ok != (m == a) {
			t.Errorf("%s has a profile: %v", m.name, ok)
		}
	}
	has("etcd/records.txt", "/allocator/default/window/9")
	has("etcd-status.txt", "leader")
	has("config-print.txt", "lease.window")
	has("doctor.txt", "quarantine")
	has("index.html", silent.Addr().String())
	has("index.html", "REMOVED")
	if info, err := os.Stat(file); err != nil || info.Size() > 20<<20 || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if t.Failed() {
		t.Log(slices.Collect(func(yield func(string) bool) {
			for name := range texts {
				_ = yield(name)
			}
		}))
	}
}
