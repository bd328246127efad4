package access

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/clock"
)

// line returns a line of a token file for a known token.
func line(name, scopes, token string) string {
	return fmt.Sprintf("%s %s sha256:%x\n", name, scopes, sha256.Sum256([]byte(token)))
}

func parse(t testing.TB, file string) *Tokens {
	t.Helper()
	tokens, err := ParseTokens([]byte(file))
	fatal.If(t, err)
	return tokens
}

func TestNilGuardLetsEverybodyThrough(t *testing.T) {
	g := New(Config{})
	if g != nil {
		t.Fatalf("a guard for nothing: %v", g)
	}
	c, err := g.Identify(Credentials{Token: "whatever"})
	if err != nil || g.NeedsToken() {
		t.Fatalf("%v, needs a token: %t", err, g.NeedsToken())
	}
	for s := range numScopes {
		if err := g.Allow(c, s); (err == nil) != (s != Admin) {
			t.Errorf("%v: %v", s, err)
		}
	}
	c, err = g.Identify(Credentials{Address: netip.MustParseAddr("::ffff:127.0.0.2")})
	if err = errors.Join(err, g.Allow(c, Admin)); err != nil {
		t.Errorf("admin, on this machine: %v", err)
	}
}

// Who has which scopes where no token is required.
func TestScopesWithoutTokens(t *testing.T) {
	uri := func(s string) []*url.URL {
		u, err := url.Parse(s)
		fatal.If(t, err)
		return []*url.URL{{Scheme: "spiffe", Host: "example.org", Path: "/shop"}, u}
	}
	here, away := netip.MustParseAddr("::1"), netip.MustParseAddr("10.1.2.3")
	for _, tc := range []struct {
		name string
		cfg  Config
		c    Credentials
		want string
	}{
		{"this machine", Config{}, Credentials{Address: here}, "admin"},
		{"another machine", Config{}, Credentials{Address: away}, "issue,read,worker"},
		{"an unknown address", Config{}, Credentials{}, "issue,read,worker"},
		{"this machine, open to nobody", Config{OpenAdmin: OpenToNobody}, Credentials{Address: here}, "issue,read,worker"},
		{"another machine, open to all", Config{OpenAdmin: OpenToAll}, Credentials{Address: away}, "admin"},
		{"a certificate", Config{Certificates: true}, Credentials{Certificate: "shop", Address: away}, "issue,read,worker"},
		{"a certificate on this machine", Config{Certificates: true}, Credentials{Certificate: "shop", Address: here}, "admin"},
		{"a certificate with a scope", Config{Certificates: true}, Credentials{Certificate: "ops", URIs: uri("urn:allocator:scope:admin"), Address: away}, "admin"},
		{"a certificate with one scope, on this machine", Config{Certificates: true}, Credentials{Certificate: "shop", URIs: uri("urn:allocator:scope:issue"), Address: here}, "issue"},
		{"one with two", Config{Certificates: true}, Credentials{Certificate: "shop", URIs: uri("urn:allocator:scope:read,issue")}, "issue,read"},
		{"one with a scope that does not exist", Config{Certificates: true}, Credentials{Certificate: "shop", URIs: uri("urn:allocator:scope:root"), Address: here}, ""},
		{"one with another URI", Config{Certificates: true}, Credentials{Certificate: "shop", URIs: uri("https://allocator/scope:admin")}, "issue,read,worker"},
		{"scopes without a verified certificate", Config{}, Credentials{URIs: uri("urn:allocator:scope:admin"), Address: away}, "issue,read,worker"},
	} {
		g := New(tc.cfg)
		c, err := g.Identify(tc.c)
		if err != nil || c.scopes.String() != tc.want {
			t.Errorf("%s: %q, %v, want %q", tc.name, c.scopes, err, tc.want)
		}
		if err := g.Allow(c, Admin); (err == nil) != (tc.want == "admin") {
			t.Errorf("%s: admin: %v", tc.name, err)
		}
	}
	// Tokens alone count where they are required.
	g := New(Config{Tokens: parse(t, line("shop", "issue", "t")), OpenAdmin: OpenToAll, Certificates: true})
	c, err := g.Identify(Credentials{Token: "t", Address: here, Certificate: "ops", URIs: uri("urn:allocator:scope:admin")})
	if err != nil || g.Allow(c, Admin) == nil || g.Allow(c, Read) == nil {
		t.Errorf("%q, %v", c.scopes, err)
	}
}

// Each scope lets through what it names, and admin everything.
func TestScopes(t *testing.T) {
	g := New(Config{Tokens: parse(t, line("i", "issue", "ti")+line("r", "read", "tr")+line("ir", "read,issue", "tir")+line("a", "admin", "ta"))})
	for _, tc := range []struct {
		token               string
		issue, read, admin_ bool
	}{
		{"ti", true, false, false},
		{"tr", false, true, false},
		{"tir", true, true, false},
		{"ta", true, true, true},
	} {
		c, err := g.Identify(Credentials{Token: tc.token})
		fatal.If(t, err)
		for s, want := range map[Scope]bool{Issue: tc.issue, Read: tc.read, Admin: tc.admin_} {
			err := g.Allow(c, s)
			if want != (err == nil) || err != nil && !errors.Is(err, ErrPermissionDenied) {
				t.Errorf("token %s, scope %v: %v", tc.token, s, err)
			}
		}
	}
	if err := g.Allow(Caller{}, Issue); !errors.Is(err, ErrNoToken) {
		t.Errorf("somebody who was never identified: %v", err)
	}
	if err := New(Config{Rate: 1, Now: func() clock.Mono { return 0 }}).Allow(Caller{}, Issue); !errors.Is(err, ErrPermissionDenied) {
		t.Errorf("somebody who was never identified, without tokens: %v", err)
	}
}

func TestIdentify(t *testing.T) {
	g := New(Config{Tokens: parse(t, line("shop", "issue", "good"))})
	for _, tc := range []struct {
		c    Credentials
		want error
	}{
		{Credentials{Token: "good"}, nil},
		{Credentials{}, ErrNoToken},
		{Credentials{Certificate: "shop"}, ErrNoToken},
		{Credentials{Token: "Good"}, ErrUnknownToken},
		{Credentials{Token: "good="}, ErrUnknownToken},
		{Credentials{Token: "go od"}, ErrMalformed},
		{Credentials{Token: "good\n"}, ErrMalformed},
		{Credentials{Token: string(make([]byte, 300))}, ErrMalformed},
	} {
		c, err := g.Identify(tc.c)
		if !errors.Is(err, tc.want) || tc.want != nil && (!errors.Is(err, ErrUnauthenticated) || c != (Caller{})) {
			t.Errorf("%+v: %v, want %v", tc.c, err, tc.want)
		}
		if err == nil && c.Name() != "shop" {
			t.Errorf("name %q", c.Name())
		}
	}
	limited := New(Config{Rate: 1, Now: func() clock.Mono { return 0 }})
	for want, c := range map[string]Credentials{
		"crm":               {Certificate: "crm", Address: netip.MustParseAddr("10.1.2.3")},
		"10.1.2.3/32":       {Address: netip.MustParseAddr("::ffff:10.1.2.3")},
		"2001:db8:0:1::/64": {Address: netip.MustParseAddr("2001:db8:0:1:2:3:4:5%eth0")},
		"invalid Prefix":    {},
	} {
		who, err := limited.Identify(c)
		fatal.If(t, err)
		got := who.client.name
		if got == "" {
			got = who.client.addr.String()
		}
		if got != want {
			t.Errorf("%+v is %q, want %q", c, got, want)
		}
	}
}

// A revoked token is refused on connections that it opened, and a
// token whose scopes change has the new ones.
func TestSetTokensReachesOpenConnections(t *testing.T) {
	g := New(Config{Tokens: parse(t, line("a", "issue", "ta")+line("b", "issue", "tb"))})
	a, _ := g.Identify(Credentials{Token: "ta"})
	b, _ := g.Identify(Credentials{Token: "tb"})
	g.SetTokens(parse(t, line("c", "issue", "tc")+line("a", "read", "ta")))
	if err := g.Allow(a, Issue); !errors.Is(err, ErrPermissionDenied) {
		t.Errorf("a scope taken away: %v", err)
	}
	if err := g.Allow(a, Read); err != nil {
		t.Errorf("a scope given: %v", err)
	}
	if err := g.Allow(b, Issue); !errors.Is(err, ErrUnknownToken) {
		t.Errorf("a revoked token: %v", err)
	}
}

// Without a readable file for too long nobody is accepted, on open connections neither,
// until the file is back.
func TestStaleTokens(t *testing.T) {
	tokens := parse(t, line("a", "issue", "ta"))
	g := New(Config{Tokens: tokens})
	a, _ := g.Identify(Credentials{Token: "ta"})
	g.SetTokens(Stale())
	if err := g.Allow(a, Issue); !errors.Is(err, ErrStale) {
		t.Errorf("an open connection: %v", err)
	}
	if _, err := g.Identify(Credentials{Token: "ta"}); !errors.Is(err, ErrStale) || !g.NeedsToken() {
		t.Errorf("a new one: %v", err)
	}
	g.SetTokens(tokens)
	if err := g.Allow(a, Issue); err != nil {
		t.Errorf("the file is back: %v", err)
	}
}

// Wrong tokens count for their address, and for no other. Right ones from the same address
// are accepted: a proxy has one address for all its clients.
func TestWrongTokensAreCounted(t *testing.T) {
	var now clock.Mono
	g := New(Config{Tokens: parse(t, line("a", "issue", "ta")), Now: func() clock.Mono { return now }})
	from := func(addr, token string) error {
		_, err := g.Identify(Credentials{Token: token, Address: netip.MustParseAddr(addr)})
		return err
	}
	for i := range failureBurst {
		if err := from("2001:db8::1", []string{"wrong", "mal formed"}[i%2]); !errors.Is(err, ErrUnauthenticated) {
			t.Fatalf("wrong token %d: %v", i, err)
		}
	}
	limited, ok := errors.AsType[*LimitedError](from("2001:db8::2", "wrong")) // It is in the /64 of 2001:db8::1.
	if !ok || !limited.Failures || limited.RetryAfter != time.Second/failureRate {
		t.Errorf("one too many: %+v", limited)
	}
	if err := from("2001:db8::1", "ta"); err != nil {
		t.Errorf("a right token from there: %v", err)
	}
	if err := from("2001:db8:0:1::1", "wrong"); !errors.Is(err, ErrUnknownToken) {
		t.Errorf("another address: %v", err)
	}
	if _, err := g.Identify(Credentials{Token: "wrong"}); !errors.Is(err, ErrUnknownToken) {
		t.Errorf("an unknown address: %v", err)
	}
	now += clock.Mono(time.Second)
	if err := from("2001:db8::1", "wrong"); !errors.Is(err, ErrUnknownToken) {
		t.Errorf("after a pause: %v", err)
	}
}

// table of a rate of 4 a second: when calls are let through.
func TestRate(t *testing.T) {
	var now clock.Mono
	g := New(Config{Rate: 4, Now: func() clock.Mono { return now }})
	one, _ := g.Identify(Credentials{Certificate: "one"})
	two, _ := g.Identify(Credentials{Certificate: "two"})
	const ms = clock.Mono(time.Millisecond)
	for i, tc := range []struct {
		at   clock.Mono
		who  Caller
		wait time.Duration // 0: let through
	}{
		{0, one, 0}, {0, one, 0}, {0, one, 0}, {0, one, 0}, // the burst
		{0, one, 250 * time.Millisecond},
		{0, two, 0}, // each client has its own
		{40 * ms, one, 210 * time.Millisecond},
		{250 * ms, one, 0}, // what was refused did not count
		{250 * ms, one, 250 * time.Millisecond},
		{10_000 * ms, one, 0}, {10_000 * ms, one, 0}, {10_000 * ms, one, 0}, {10_000 * ms, one, 0}, // a pause saves no more than a burst
		{10_000 * ms, one, 250 * time.Millisecond},
	} {
		now = tc.at
		err := g.Allow(tc.who, Issue)
		limited, _ := errors.AsType[*LimitedError](err)
		switch {
		case tc.wait == 0 && err != nil, tc.wait > 0 && (limited == nil || limited.RetryAfter != tc.wait):
			t.Errorf("call %d at %v: %v, want a wait of %v", i, time.Duration(tc.at), err, tc.wait)
		}
	}
	// Without the scope, no token of the bucket is used.
	g = New(Config{Tokens: parse(t, line("r", "read", "tr")), Rate: 1, Now: func() clock.Mono { return now }})
	r, _ := g.Identify(Credentials{Token: "tr"})
	for range 5 {
		if err := g.Allow(r, Issue); !errors.Is(err, ErrPermissionDenied) {
			t.Fatal(err)
		}
	}
	if err := g.Allow(r, Read); err != nil {
		t.Errorf("refusals counted for the rate: %v", err)
	}
}

// Any number of callers at once get the burst and not one more.
func TestRateIsExactUnderConcurrency(t *testing.T) {
	g := New(Config{Rate: 500, Now: func() clock.Mono { return 7 }})
	c, _ := g.Identify(Credentials{Certificate: "one"})
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				if g.Allow(c, Issue) == nil {
					passed.Add(1)
				}
			}
		})
	}
	all.Wait()
	if passed.Load() != 500 {
		t.Errorf("%d passed, want 500", passed.Load())
	}
}

// A flood of addresses uses no more memory than the bound, and does not give a
// client that is over its rate a new start.
func TestClientsAreBounded(t *testing.T) {
	var now clock.Mono = 1
	g := New(Config{Rate: 100, Now: func() clock.Mono { return now }})
	busy, _ := g.Identify(Credentials{Certificate: "busy"})
	for range 100 {
		fatal.If(t, g.Allow(busy, Issue))
	}
	size := func() (n int) {
		for i := range g.limit.shards {
			n += len(g.limit.shards[i].clients)
		}
		return n
	}
	for i := range numShards * shardLimit * 5 / 4 {
		c, _ := g.Identify(Credentials{Address: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})})
		fatal.If(t, g.Allow(c, Issue))
	}
	if n := size(); n > numShards*shardLimit {
		t.Errorf("%d clients are remembered", n)
	}
	if err := g.Allow(busy, Issue); err == nil {
		t.Error("the flood gave the busy client a new start")
	}
	// Everybody falls silent: the next ones take the places of all of them.
	now += clock.Mono(time.Hour)
	for i := range 64 * numShards {
		c, _ := g.Identify(Credentials{Address: netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})})
		_ = g.Allow(c, Issue)
	}
	if n := size(); n > 2*64*numShards {
		t.Errorf("%d clients are remembered after an hour of silence", n)
	}
}

func TestAllowAllocatesNothing(t *testing.T) {
	token, made, err := NewToken("a", "issue")
	fatal.If(t, err)
	g := New(Config{Tokens: parse(t, made), Rate: 1_000_000, Now: func() clock.Mono { return 0 }})
	if n := testing.AllocsPerRun(1000, func() {
		c, err := g.Identify(Credentials{Token: token})
		if err != nil || g.Allow(c, Issue) != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a call", n)
	}
}

// TestOwners: who acquired a worker, and how many it may have.
func TestOwners(t *testing.T) {
	token, made, err := NewToken("shop", "worker")
	fatal.If(t, err)
	g := New(Config{Tokens: parse(t, strings.TrimSpace(made)+" workers=7\n")})
	c, err := g.Identify(Credentials{Token: token, Certificate: "x"})
	if err != nil || c.Owner() != "shop" || g.Workers(c, 128) != 7 {
		t.Errorf("%q may have %d, %v", c.Owner(), g.Workers(c, 128), err)
	}
	g.SetTokens(parse(t, made))
	if n := g.Workers(c, 128); n != 128 {
		t.Errorf("after the line was changed: %d", n)
	}
	var open *Guard
	for _, tc := range []struct {
		c    Credentials
		want string
	}{
		{Credentials{Address: netip.MustParseAddr("10.1.2.3")}, "ip:10.1.2.3/32"},
		{Credentials{Address: netip.MustParseAddr("2001:db8::7")}, "ip:2001:db8::/64"},
		{Credentials{Certificate: strings.Repeat("c", 80)}, "cert:" + strings.Repeat("c", 59)},
	} {
		c, err := open.Identify(tc.c)
		if err != nil || c.Owner() != tc.want || open.Workers(c, 128) != 128 {
			t.Errorf("%q, %v, want %q", c.Owner(), err, tc.want)
		}
	}
}

// An owner is whole characters, and each program that embeds a node has its own.
func TestOwner(t *testing.T) {
	for want, c := range map[string]Caller{
		"ip:10.0.0.7/32":                  open(Credentials{Address: netip.MustParseAddr("10.0.0.7")}, OpenToNobody),
		"cert:shop":                       open(Credentials{Certificate: "shop"}, OpenToNobody),
		"cert:a\ufffdb":                   open(Credentials{Certificate: "a\ufffdb"}, OpenToNobody),
		"cert:ab":                         open(Credentials{Certificate: "a\xffb"}, OpenToNobody),
		"embed:orders-1":                  Program("orders-1"),
		"cert:" + strings.Repeat("é", 29): open(Credentials{Certificate: strings.Repeat("é", 40)}, OpenToNobody),
	} {
		if got := c.Owner(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestPlaces: one client cannot take the places of all, and is forgotten with its last one.
func TestPlaces(t *testing.T) {
	p := Places[string]{Each: 2, All: 3}
	p.Give("nobody") // None was taken.
	for i, client := range []string{"a", "a", "a", "b", "b"} {
		if got, want := p.Take(client), i != 2 && i != 4; got != want {
			t.Errorf("place %d, of %s: %t", i, client, got)
		}
	}
	for _, client := range []string{"a", "b", "a"} {
		p.Give(client)
	}
	if p.taken != 0 || len(p.of) != 0 {
		t.Errorf("%d places and %d clients are remembered", p.taken, len(p.of))
	}
	if p := (Places[int]{Each: 1}); !p.Take(1) || !p.Take(2) || p.Take(1) {
		t.Error("places for any number of clients")
	}
}
