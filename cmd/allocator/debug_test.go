package main

import (
	"archive/zip"
	"bytes"
	"crypto/tls"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
)

// secretSettings match the settings that name a file with secrets.
var secretSettings = regexp.MustCompile(`key|password|secret|token`)

// secretsOf returns the lines of the files that secret settings name, all of which are set.
func secretsOf(t *testing.T, c config.Config) (lines []string) {
	t.Helper()
	for _, s := range c.List() {
		if !secretSettings.MatchString(s.Key) || s.Key == "etcd.tls.key" { // The etcd of the test has no TLS.
			continue
		}
		if s.Value == "" {
			t.Errorf("%s has no secret in this test: give it one", s.Key)
			continue
		}
		for line := range strings.Lines(readFile(t, s.Value)) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// The archive has what nodes and etcd know, and no secret that went in anywhere.
// Where etcd does not answer, nodes are gathered all the same.
func TestDebugZip(t *testing.T) {
	t.Parallel()
	d := deploy(t)
	token, line, err := access.NewToken("operator", "admin")
	fatal.If(t, err)
	dir, ca := t.TempDir(), certstest.NewAuthority(t, "ca")
	_, key, _ := allocator("gossip", "keygen")
	var own config.Config
	guarded := func(tokens string) func(*config.Config) {
		return func(c *config.Config) {
			c.Auth.TokenFile = certstest.File(t, dir, c.Node.Name+".tokens", []byte(tokens+"\n"))
			c.Etcd.Username, c.Etcd.PasswordFile = "ids", certstest.File(t, dir, "password", []byte("CANARYPASSWORD"))
			c.Gossip.KeyFile = certstest.File(t, dir, "gossip.keys", []byte(key))
			c.TLS.Cert, c.TLS.Key = ca.Issue(t, c.Node.Name, -time.Hour, day).Write(t, dir, c.Node.Name)
			c.Worker.SIDRange = lease.SIDRange{From: 24, To: 32}
			own = *c
		}
	}
	d.says(cli.ExitOK, "", "admin", "quarantine", "9", "--reason", "postgres://ids:CANARYURL@db/ids password=CANARYWORD w1.9.1.CANARYHANDLE0")
	reader := strings.Replace(line, " admin ", " read ", 1)
	nodes := []*member{d.node("a", guarded(line)), d.node("b", guarded(reader)), d.node("c", guarded(reader))}
	for _, m := range nodes {
		m.serves(-1)
	}
	secrets := append(secretsOf(t, own), token, "CANARY")
	conn, err := grpc.NewClient(nodes[0].Addresses().GRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: ca.Pool()})))
	fatal.If(t, err)
	defer conn.Close()
	workers, ctx := pb.NewWorkerServiceClient(conn), metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token)
	w, err := workers.AcquireWorker(ctx, &pb.AcquireWorkerRequest{Name: "import", Secret: "CANARYSECRET0123456789"})
	fatal.If(t, err)
	if _, err := workers.ExtendWorker(ctx, &pb.ExtendWorkerRequest{Handle: w.GetHandle() + "x"}); err == nil {
		t.Error("another handle extends the worker")
	}
	files := []string{"status.json", "settings.txt", "readyz.txt", "callers.txt", "metrics.txt", "events.jsonl", "history.json", "log.txt"}
	says := []string{`"callers":[{"source":"127.0.0.1","connections":`, "lease.window", "ready: true", "waiting calls", "allocator_ids_issued_total", `"kind":"sid_acquired"`,
		"stretches", "msg=listening"}
	// They need scope admin. A profile is compressed.
	profiled := []string{"goroutines.txt", "cpu.pprof"}
	profile := []string{"goroutine profile: total", "\x1f\x8b"}

	// Nothing listens on the second, which is asked for a third of the time.
	for etcd, timeout := range map[string]string{d.etcd.Endpoint(): "2m", "127.0.0.1:1": "45s"} {
		file := filepath.Join(t.TempDir(), "all.zip")
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"debug", "zip", "--timeout", timeout, "--output", file,
			"--etcd.endpoints", etcd, "--etcd.username", "ids", "--etcd.password-file", own.Etcd.PasswordFile,
			"--ca", certstest.File(t, dir, "ca.pem", ca.PEM), "--addr",
			// an address that the node did not register
			strings.Replace(nodes[0].Addresses().GRPC, "127.0.0.1", "localhost", 1)},
			strings.NewReader(""), &out, &errs, []string{config.EnvToken + "=" + token, "CANARYVARIABLE=CANARYVALUE"})
		if code != cli.ExitOK || !strings.Contains(out.String(), "3 of 3 nodes") {
			t.Fatalf("etcd %s: exit code %d: %s%s", etcd, code, &out, &errs)
		}
		if info, err := os.Stat(file); err != nil || info.Size() > 20<<20 || info.Mode().Perm() != 0o600 {
			t.Errorf("%v %v", info, err)
		}
		texts := unzip(t, file)
		names := slices.Sorted(maps.Keys(texts))
		has := func(name, want string) {
			if !strings.Contains(texts[name], want) {
				t.Errorf("etcd %s: %s lacks %q, of %v; etcd: %s", etcd, name, want, names, texts["etcd/records.error.txt"])
			}
		}
		for name, text := range texts {
			if at := slices.IndexFunc(secrets, func(s string) bool { return strings.Contains(text, s) }); at >= 0 {
				t.Errorf("%s has the secret %q", name, secrets[at])
			}
		}
		for i, m := range nodes {
			_, port, _ := strings.Cut(m.Addresses().GRPC, ":")
			at := slices.IndexFunc(names, func(n string) bool {
				return strings.HasPrefix(n, "nodes/"+m.name+"_at_") && strings.HasSuffix(n, "_"+port+"/status.json")
			})
			if at < 0 {
				t.Errorf("etcd %s: nothing of %s in %v", etcd, m.name, names)
				continue
			}
			dir := filepath.Dir(names[at]) + "/"
			for k, name := range files {
				has(dir+name, says[k])
			}
			for k, name := range profiled {
				if strings.Contains(texts[dir+name+".error.txt"], "cpu profiling already in use") && i == 0 {
					continue // A process makes one profile at a time, and all nodes of these tests are in one.
				}
				if _, ok := texts[dir+name]; ok != (i == 0) {
					t.Errorf("%s of %s is there: %v", name, m.name, ok)
				} else if ok {
					has(dir+name, profile[k])
				}
			}
		}
		has("config-print.txt", "lease.window")
		has("doctor.txt", "exit code")
		has("index.html", ": sid_acquired: ")
		if etcd != d.etcd.Endpoint() {
			has("etcd/records.error.txt", "etcd")
			continue
		}
		has("etcd/records.txt", "/allocator/default/window/9")
		has("etcd-status.txt", "leader")
		has("etcd/records.txt", "REMOVED")
		has("index.html", "doctor.txt")
	}
}

// A node that closes a connection and then answers later than other commands wait for is gathered, as
// long as --timeout lasts.
func TestDebugZipOfALateNode(t *testing.T) {
	t.Parallel()
	m := deploy(t).node("a")
	m.serves(-1)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer l.Close()
	go func() {
		if from, err := l.Accept(); err == nil {
			_ = from.Close()
		}
		for from, err := l.Accept(); err == nil; from, err = l.Accept() {
			go func() {
				defer from.Close()
				time.Sleep(deployment.AskTimeout + 100*time.Millisecond)
				to, err := net.Dial("tcp", m.Addresses().GRPC)
				if err != nil {
					return
				}
				defer to.Close()
				go io.Copy(to, from)
				_, _ = io.Copy(from, to)
			}()
		}
	}()
	var out, errs bytes.Buffer
	run(t.Context(), []string{"debug", "zip", "--timeout", "1m", "--output", filepath.Join(t.TempDir(), "late.zip"),
		"--etcd.endpoints", "127.0.0.1:1", "--addr", l.Addr().String()}, strings.NewReader(""), &out, &errs, nil)
	if !strings.Contains(out.String(), "of 1 of 1 node") {
		t.Fatalf("%s%s", &out, &errs)
	}
}

// A node that accepts connections and says nothing is named after the timeout. Where the archive goes to stdout
// nothing else does.
func TestDebugZipWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer silent.Close()
	file, addr := filepath.Join(t.TempDir(), "all.zip"), silent.Addr().String()
	for _, output := range []string{file, "-"} {
		var out, errs bytes.Buffer
		code := run(t.Context(), []string{"debug", "zip", "--timeout", "1s", "--output", output, "--etcd.endpoints", "127.0.0.1:1",
			"--addr", addr}, strings.NewReader(""), &out, &errs, nil)
		told := &out
		if output == "-" {
			told = &errs
			fatal.If(t, os.WriteFile(file, out.Bytes(), 0o600))
		}
		if code != cli.ExitUnavailable || !strings.Contains(told.String(), "0 of 1 node") ||
			!strings.Contains(errs.String(), addr+": does not answer") || !strings.Contains(unzip(t, file)["index.html"], addr) {
			t.Fatalf("%s: exit code %d: %q %s", output, code, &out, &errs)
		}
	}
}

// unzip returns the files of an archive by name.
func unzip(t *testing.T, file string) map[string]string {
	t.Helper()
	z, err := zip.OpenReader(file)
	fatal.If(t, err)
	defer z.Close()
	texts := map[string]string{}
	for _, f := range z.File {
		r, err := f.Open()
		fatal.If(t, err)
		data, err := io.ReadAll(r)
		fatal.If(t, err)
		texts[f.Name] = string(data)
	}
	return texts
}
