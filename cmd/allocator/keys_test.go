package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/nodestub"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/cluster"
)

func withEnv(env []string, args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	code = run(context.Background(), args, strings.NewReader(""), &out, &errs, env)
	return code, out.String(), errs.String()
}

// handshakes returns the address of a server that does a handshake of TLS with each client, for these protocols.
func handshakes(t *testing.T, ca *certstest.Authority, protocols ...string) string {
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{ca.Issue(t, "other", -time.Hour, time.Hour).TLS(t)},
		NextProtos:   protocols,
	})
	fatal.If(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_ = c.(*tls.Conn).Handshake()
			_ = c.Close()
		}
	}()
	return l.Addr().String()
}

func TestGetByTLSAndToken(t *testing.T) {
	ca, other := certstest.NewAuthority(t, "ca"), certstest.NewAuthority(t, "other")
	dir := t.TempDir()
	addr := nodestub.StartSecure(t, ca, "good")
	_, plain := nodestub.Start(t, nodestub.Answering)
	http, redis := handshakes(t, ca, "http/1.1"), handshakes(t, ca)
	caFile := certstest.File(t, dir, "ca.pem", ca.PEM)
	otherFile := certstest.File(t, dir, "other.pem", other.PEM)
	cert, key := ca.Issue(t, "me", -time.Hour, time.Hour).Write(t, dir, "me")
	token := certstest.File(t, dir, "token", []byte("good\n"))
	wrong := certstest.File(t, dir, "wrong", []byte("wrong"))
	_, line, err := access.NewToken("a", "issue")
	fatal.If(t, err)
	lines := certstest.File(t, dir, "lines", []byte(line))
	empty := certstest.File(t, dir, "empty", []byte(" \n"))
	all := []string{"--addr", addr, "--ca", caFile, "--cert", cert, "--key", key}
	for _, tc := range []struct {
		name string
		env  []string
		args []string
		code int
		says string
	}{
		{"all of it", nil, append(all, "--token-file", token), cli.ExitOK, ""},
		{"a token from the environment", []string{"ALLOCATOR_TOKEN=good"}, all, cli.ExitOK, ""},
		{"the file comes first", []string{"ALLOCATOR_TOKEN=wrong"}, append(all, "--token-file", token), cli.ExitOK, ""},
		{"no token", nil, all, cli.ExitInvalid, "UNAUTHENTICATED"},
		{"a wrong token", nil, append(all, "--token-file", wrong), cli.ExitInvalid, "UNAUTHENTICATED"},
		{"no certificate", nil, []string{"--addr", addr, "--ca", caFile}, cli.ExitUnavailable, "give --cert and --key"},
		{"a port of HTTP with TLS", nil, []string{"--addr", http, "--ca", caFile}, cli.ExitUnavailable, "allocator: A server with TLS answers there"},
		{"a port of Redis with TLS", nil, []string{"--addr", redis, "--ca", caFile}, cli.ExitUnavailable, "allocator: A server with TLS answers there"},
		{"another authority", nil, []string{"--addr", addr, "--ca", otherFile}, cli.ExitUnavailable, "allocator: A node answers, but no authority in --ca signed its certificate"},
		{"no TLS", nil, []string{"--addr", addr}, cli.ExitUnavailable, "give --ca"},
		{"TLS to a node without", nil, []string{"--addr", plain, "--ca", caFile}, cli.ExitUnavailable, "omit --ca"},
		{"a token without TLS", []string{"ALLOCATOR_TOKEN=good"}, []string{"--addr", plain}, cli.ExitOK, ""},
		{"a certificate without its key", nil, []string{"--ca", caFile, "--cert", cert}, cli.ExitUsage, "give both or neither"},
		{"a certificate without TLS", nil, []string{"--cert", cert, "--key", key}, cli.ExitUsage, "give --ca"},
		{"no such file", nil, []string{"--ca", dir + "/none"}, cli.ExitUsage, "no such file"},
		{"the file of the node", nil, append(all, "--token-file", lines), cli.ExitUsage, "is not one token"},
		{"an empty file", nil, append(all, "--token-file", empty), cli.ExitUsage, "is empty"},
		{"no such token file", nil, append(all, "--token-file", dir+"/none"), cli.ExitUsage, "no such file"},
		{"nonsense in the environment", []string{"ALLOCATOR_TOKEN=hunter2 hunter2"}, all, cli.ExitUsage, "$ALLOCATOR_TOKEN is not one token"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, errs := withEnv(tc.env, append([]string{"get", "2", "--timeout", "20s"}, tc.args...)...)
			if code != tc.code || !strings.Contains(errs, tc.says) || (code == cli.ExitOK) != (strings.Count(out, "\n") == 2) {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, out, errs)
			}
			if strings.Contains(errs, "is one running") { // In each row a node answers.
				t.Errorf("stderr %q", errs)
			}
			for _, secret := range []string{"hunter2", "Bearer", "sha256:"} {
				if strings.Contains(errs, secret) {
					t.Errorf("stderr shows %s: %q", secret, errs)
				}
			}
		})
	}
}

// TestTokenInClear: commands send a token without TLS to this machine alone, unless they are told to.
func TestTokenInClear(t *testing.T) {
	for _, args := range []string{
		"get --addr ADDR", "status --addr ADDR", "events --addr ADDR", "watermark --addr ADDR",
		"parse --addr ADDR 0000000000001", "admin drain --addr ADDR", "admin undrain --addr ADDR", "admin recover --addr ADDR",
		"doctor --addr ADDR", "doctor --draw 1 --addr ADDR",
		"worker run --wait 1ms --addr ADDR -- true", "agent --listen.resp unix:/nowhere/sock --addr ADDR",
	} {
		for _, addr := range []string{"10.0.0.1:9000", "ids.example.com:9000", "127.0.0.1:1,10.0.0.1:9000"} {
			code, _, errs := withEnv([]string{"ALLOCATOR_TOKEN=good"}, strings.Fields(strings.ReplaceAll(args, "ADDR", addr))...)
			if code != cli.ExitUsage || !strings.Contains(errs, "the token would be sent unencrypted to "+addr[strings.LastIndex(addr, ",")+1:]) {
				t.Errorf("%s to %s: exit code %d, %s", args, addr, code, errs)
			}
		}
	}
	socket := "unix:" + filepath.Join(t.TempDir(), "none")
	for _, args := range []string{
		"--addr 127.0.0.1:1", "--addr localhost:1", "--addr [::1]:1", "--addr " + socket, "--plaintext-token --addr 127.0.0.1:1,ids.invalid:9000",
	} {
		for _, command := range []string{"get --timeout 100ms ARGS", "worker run --wait 1ms ARGS -- true"} {
			code, _, errs := withEnv([]string{"ALLOCATOR_TOKEN=good"}, strings.Fields(strings.ReplaceAll(command, "ARGS", args))...)
			if code != cli.ExitUnavailable {
				t.Errorf("%s, %s: exit code %d, %s", command, args, code, errs)
			}
		}
	}
}

func TestTokenNew(t *testing.T) {
	code, line, token := allocator("token", "new", "checkout", "--scopes", "read,issue")
	token = strings.TrimSpace(token)
	if code != cli.ExitOK || !strings.HasPrefix(line, "checkout issue,read sha256:") || strings.Contains(line, token) || token == "" {
		t.Fatalf("exit code %d, stdout %q, stderr %q", code, line, token)
	}
	file := filepath.Join(t.TempDir(), "token")
	code, second, errs := allocator("token", "new", "ops", "--scopes", "admin", "--out", file)
	b, err := os.ReadFile(file)
	if code != cli.ExitOK || err != nil || errs != "" {
		t.Fatalf("exit code %d, %v, stderr %q", code, err, errs)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	tokens, err := access.ParseTokens([]byte(line + second))
	fatal.If(t, err)
	guard := access.New(access.Config{Tokens: tokens})
	for name, secret := range map[string]string{"checkout": token, "ops": strings.TrimSpace(string(b))} {
		c, err := guard.Identify(access.Credentials{Token: secret})
		if err != nil || c.Name() != name || (guard.Allow(c, access.Admin) == nil) != (name == "ops") {
			t.Errorf("%s: %q, %v", name, c.Name(), err)
		}
	}
	if code, _, errs := allocator("token", "new", "ops", "--out", file); code != cli.ExitInvalid || !strings.Contains(errs, "exists") {
		t.Errorf("over a file: exit code %d, stderr %q", code, errs)
	}
	for _, args := range [][]string{{"token", "new"}, {"token", "new", "No Name"}, {"token", "new", "a", "--scopes", "all"}, {"token", "new", "a", "b"}} {
		if code, out, _ := allocator(args...); code != cli.ExitUsage || out != "" {
			t.Errorf("%q: exit code %d, stdout %q", args, code, out)
		}
	}
}

// TestKeygen: what keygen prints is a keyring that gossip takes, and another one
// each time.
func TestKeygen(t *testing.T) {
	seen := map[string]bool{}
	for range 3 {
		var out bytes.Buffer
		if code := run(t.Context(), []string{"gossip", "keygen"}, nil, &out, io.Discard, nil); code != cli.ExitOK {
			t.Fatalf("exit code %d", code)
		}
		keys, err := cluster.ParseKeys(out.Bytes())
		if err != nil || len(keys) != 1 || len(keys[0]) != 32 {
			t.Errorf("%q: keys of length %d, %v", out.String(), len(keys), err)
		}
		seen[out.String()] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d different keys of 3", len(seen))
	}
}
