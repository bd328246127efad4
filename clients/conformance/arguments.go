package main

import (
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/flakelease/allocator/internal/certs"
)

// refused checks that no client is made.
func (t *stage) refused(what string, c call) {
	c.Op = "open"
	a := t.ask(c)
	if a.Error == nil {
		t.close()
	}
	if a.Error == nil || a.Error.Kind != "invalid" || a.Error.Message == "" {
		t.failf("%s: %q, and not invalid with a message", what, a)
	}
}

func wrongNodes(t *stage) {
	good, rpc := "http://"+t.nodes[0].http, t.nodes[0].rpc
	for _, w := range []struct{ what, url, rpc string }{
		{"no URL", "allocator", "allocator"},
		{"empty", "", ""},
		{"no scheme", "127.0.0.1:8080", "127.0.0.1:"},
		{"no host", "http://", ":9000"},
		{"another scheme", "ftp://127.0.0.1:8080", "127.0.0.1:port"},
		{"no port of TCP", "http://127.0.0.1:99999", "127.0.0.1:99999"},
	} {
		t.refused(w.what, call{Nodes: []string{w.url}, GRPC: []string{w.rpc}})
		t.refused(w.what+" after a node", call{Nodes: []string{good, w.url}, GRPC: []string{rpc, w.rpc}})
	}
	t.refused("no nodes", call{})
}

func wrongOptions(t *stage) {
	c := call{Nodes: []string{"http://" + t.nodes[0].http}, GRPC: []string{t.nodes[0].rpc}}
	for what, o := range map[string]options{
		"a negative time for attempts": {AttemptTimeoutMs: -1},
		"a negative age":               {Prefetch: 64, PrefetchMaxAgeMs: -1},
		"no token file":                {TokenFile: "/nonexistent/token"},
		"no file of an authority":      {CAFile: "/nonexistent/ca.pem"},
	} {
		c.Options = o
		t.refused(what, c)
	}
}

// file writes a file into the directory of the row, in one step.
func (t *stage) file(name, text string, mode os.FileMode) string {
	path := filepath.Join(t.dir, name)
	err := os.WriteFile(path+".new", []byte(text), mode)
	err = errors.Join(err, os.Chmod(path+".new", mode), os.Rename(path+".new", path))
	if err != nil {
		t.failf("%v", err)
	}
	return path
}

// authority makes an authority of its own, with a certificate for 127.0.0.1 and each name, and returns its file.
func (t *stage) authority(name string) string {
	dir := filepath.Join(t.dir, name)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		_, err = certs.Authority{Dir: dir, Now: time.Now()}.Sign([]string{name}, time.Hour, false)
	}
	if err != nil {
		t.failf("%v", err)
	}
	return filepath.Join(dir, "ca.pem")
}

func openToken(t *stage) {
	c := call{Nodes: []string{"http://" + t.nodes[0].http}, GRPC: []string{t.nodes[0].rpc}}
	c.Options.TokenFile = t.file("token", "secret\n", 0o644)
	t.refused("a token file of mode 0644", c)
	c.Options.TokenFile = t.file("token", "secret\n", 0o600)
	c.Nodes = append(c.Nodes, "http://node.invalid:8080")
	t.refused("a token without TLS to another machine", c)
}

func tokens(t *stage) {
	t.s.options.TokenFile = t.file("token", "first\n", 0o600)
	if !t.open() {
		return
	}
	sent := func(want string) {
		t.one(call{})
		if r := t.nodes[0].requests(); len(r) == 0 || r[len(r)-1].token != want {
			t.failf("the node was not shown the token %s: %+v", want, r)
		}
	}
	sent("first")
	sent("first")
	t.file("token", "second-one\n", 0o600)
	t.nodes[0].hangUp() // A stream shows its token when it begins.
	sent("second-one")
	t.close()
}

func trusted(t *stage) {
	t.s.options.CAFile = t.ca
	if t.open() && t.one(call{}) != "" {
		t.one(call{})
		t.close()
	}
}

func untrusted(t *stage) {
	t.s.options.CAFile = t.authority("other")
	if t.open() {
		t.fails(call{}, "unavailable|timeout")
		t.close()
	}
	if n := len(t.nodes[0].requests()); n > 0 {
		t.failf("%d requests went to a server that nobody vouches for", n)
	}
}

func plaintext(t *stage) {
	t.scheme = "http://"
	if t.open() {
		t.fails(call{}, "unavailable|timeout|protocol")
		t.close()
	}
}

func noTLS(t *stage) {
	t.scheme, t.s.options.CAFile = "https://", t.authority("other")
	if t.open() {
		t.fails(call{}, "unavailable|timeout")
		t.close()
	}
}
