package respserver_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/server/respserver"
	"github.com/flakelease/allocator/ulid"
)

// array returns a request as programs send it.
func array(words []string) string {
	text := fmt.Sprintf("*%d\r\n", len(words))
	for _, word := range words {
		text += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
	}
	return text
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestReplies is the session in testdata/replies.txt: behind each request, its reply.
func TestReplies(t *testing.T) {
	c := newFixture(t).serve(nil).dial()
	session, err := os.ReadFile("testdata/replies.txt")
	fatal.If(t, err)
	lines := strings.Split(strings.TrimSpace(string(session)), "\n")
	for i, line := range lines {
		if ask, ok := strings.CutPrefix(line, "> "); ok {
			var words []string
			got := ""
			if json.Unmarshal([]byte(ask), &words) == nil { // A line has no words with spaces.
				c.send(array(words))
				got = c.reply()
			} else {
				got = c.ask(ask)
			}
			if got != lines[i+1] {
				t.Errorf("line %d: %s\n got %s\nwant %s", i+1, ask, got, lines[i+1])
			}
		}
	}
	if got := c.ask("INFO"); !strings.Contains(got, "\r\nloading:0\r\n") || !strings.Contains(got, "redis_version:7.") || !strings.Contains(got, "\r\nsid:7\r\n") || !strings.Contains(got, "\r\nconnected_clients:1\r\n") {
		t.Errorf("INFO: %s", got)
	}
	if got := c.ask("ID.STATUS"); !strings.HasPrefix(got, `{"name":"node-a"`) || !strings.Contains(got, `"ready":true`) || !strings.Contains(got, `"sid":7`) {
		t.Errorf("ID.STATUS: %s", got)
	}
	if got := c.ask("COMMAND"); !strings.HasPrefix(got, "*[*[id.next ") {
		t.Errorf("COMMAND: %s", got)
	}
	if got := c.ask("QUIT"); got != "+OK" {
		t.Errorf("QUIT: %s", got)
	}
	c.closed()
}

// TestIDs: each way to ask gives IDs that rise, in the form asked for, as bulk
// strings and never as integers.
func TestIDs(t *testing.T) {
	w := newFixture(t).serve(nil)
	c := w.dial()
	var last flake.ID
	check := func(ask, text string) {
		t.Helper()
		id, err := flake.Parse(text)
		switch len(text) {
		case 17:
			id, err = flake.ParseInt(text)
		case 26, 36:
			v, parseErr := ulid.Parse(text)
			if len(text) == 36 {
				v, parseErr = ulid.ParseUUID(text)
			}
			if parseErr != nil || !v.IsV7() {
				t.Fatalf("%s: %q: %v", ask, text, parseErr)
			}
			id, err = v.Flake(flake.Default)
		}
		if err != nil || id <= last {
			t.Fatalf("%s: %q, %v, after %v", ask, text, err, last)
		}
		last = id
	}
	for _, tc := range []struct {
		ask  string
		long int
	}{
		{"ID.NEXT", 13}, {"id.next format flake", 13}, {"ID.NEXT FORMAT int", 17}, {"ID.NEXT FORMAT ulid", 26}, {"ID.NEXT FORMAT uuid", 36},
		{"HGET id next", 13}, {"hget id flake", 13}, {"HGET id int", 17}, {"HGET id ulid", 26}, {"HGET id uuid", 36},
	} {
		got := c.ask(tc.ask)
		if len(got) != tc.long {
			t.Fatalf("%s: %q", tc.ask, got)
		}
		check(tc.ask, got)
	}
	for _, ask := range []string{"ID.NEXT COUNT 1", "ID.NEXT COUNT 3 FORMAT uuid", "ID.NEXT FORMAT int COUNT 1000", "ID.NEXT COUNT 10000 FORMAT uuid", "ID.NEXT COUNT 10000"} {
		got := c.ask(ask)
		ids := strings.Fields(strings.TrimSuffix(strings.TrimPrefix(got, "*["), "]"))
		if len(ids) == 0 || !slices.Contains(strings.Fields(ask), strconv.Itoa(len(ids))) {
			t.Fatalf("%s: %d IDs", ask, len(ids))
		}
		for _, id := range ids {
			check(ask, id)
		}
	}
	// Twice the same wide form would be a duplicate in its random bits.
	if a, b := c.ask("ID.NEXT FORMAT uuid"), c.ask("ID.NEXT FORMAT uuid"); a[24:] == b[24:] {
		t.Errorf("%s and %s have the same random bits", a, b)
	}
	if got := c.ask("ID.DECODE " + last.String()); !strings.Contains(got, `"base32":"`+last.String()+`"`) || !strings.Contains(got, `"sid":7`) {
		t.Errorf("ID.DECODE: %s", got)
	}
	if got := c.ask("ID.DECODE " + strconv.Itoa(int(last)) + " kind int"); !strings.Contains(got, `"base32":"`+last.String()+`"`) {
		t.Errorf("ID.DECODE: %s", got)
	}
}

// TestPipeline: requests sent at once are answered in order, whatever stands
// between them, with rising IDs; those that stand together share a block.
func TestPipeline(t *testing.T) {
	w := newFixture(t).serve(nil)
	c := w.dial()
	var last flake.ID
	const rounds = 300 // 7 IDs each: more than one buffer holds
	c.send(strings.Repeat("*1\r\n$7\r\nID.NEXT\r\nID.NEXT\r\nHGET id next\r\nPING\r\nID.NEXT FORMAT uuid\r\n"+
		"ID.NEXT COUNT 0\r\nID.NEXT COUNT 2\r\nID.NEXT\r\n", rounds))
	next := func(text string) {
		t.Helper()
		id := c.parse(text)
		if id <= last {
			t.Fatalf("%v after %v", id, last)
		}
		last = id
	}
	for range rounds {
		first := c.parse(c.reply())
		for range 2 {
			if id := c.parse(c.reply()); id != first+32 || first <= last {
				t.Fatalf("%v after %v and %v: not of one block", id, first, last)
			} else {
				first = id
			}
		}
		last = first
		if got := c.reply(); got != "+PONG" {
			t.Fatal(got)
		}
		v, err := ulid.ParseUUID(c.reply())
		fatal.If(t, err)
		if id, err := v.Flake(flake.Default); err != nil || id <= last {
			t.Fatalf("%v after %v: %v", id, last, err)
		} else {
			last = id
		}
		if got := c.reply(); !strings.HasPrefix(got, "-ERR INVALID_COUNT ") {
			t.Fatal(got)
		}
		pair := strings.Fields(strings.Trim(c.reply(), "*[]"))
		next(pair[0])
		next(pair[1])
		next(c.reply())
	}
	if st := w.node.Stats(); st.Issued != 7*rounds {
		t.Errorf("%d IDs were issued for %d requests", st.Issued, 7*rounds)
	}
	counts := map[string]int64{}
	for _, n := range w.service.Stats() {
		if n.Requests > 0 {
			counts[n.Surface+" "+n.Outcome] = n.Requests
		}
	}
	if len(counts) != 3 || counts["resp_ids OK"] != 6*rounds || counts["resp_ids INVALID_COUNT"] != rounds || counts["resp_other OK"] != rounds {
		t.Errorf("counted %v", counts)
	}
}

// TestPipelineOfForms: each request of a pipeline is answered in its own form, whatever
// the requests beside it ask for.
func TestPipelineOfForms(t *testing.T) {
	w := newFixture(t).serve(nil)
	c := w.dial()
	var last flake.ID
	forms := []string{"flake", "uuid", "int", "ulid"}
	for round := range 200 {
		var asked []string
		var requests strings.Builder
		for i := range 2 + round%30 {
			// Runs of different lengths, in an order that comes to each pair.
			form := forms[(i/(1+round%3)*(1+round/4%3)+round)%len(forms)]
			asked = append(asked, form)
			switch {
			case form == "flake" && i%2 == 0:
				requests.WriteString("*1\r\n$7\r\nID.NEXT\r\n")
			case i%3 == 0:
				requests.WriteString("HGET id " + form + "\r\n")
			default:
				requests.WriteString("ID.NEXT FORMAT " + form + "\r\n")
			}
		}
		c.send(requests.String())
		for i, form := range asked {
			text := c.reply()
			d, err := describe.Parse(text, describe.Kind(form), flake.Format{Layout: flake.Scalable, Epoch: flake.DefaultEpoch})
			if err != nil {
				t.Fatalf("round %d: request %d of %v got %q: %v", round, i, asked, text, err)
			}
			id, err := d.AsFlake(flake.Default)
			if err != nil || id <= last {
				t.Fatalf("round %d: request %d of %v got %q after %v: %v", round, i, asked, text, last, err)
			}
			last = id
		}
	}
}

// frozen is a wall clock that does not move, beside a monotonic one that does.
type frozen struct{ began time.Time }

func (f frozen) Now() clock.Reading {
	return clock.Reading{Wall: start, Mono: clock.Mono(time.Since(f.began))}
}

// TestPipelineWaitsOnce: when nothing is left to issue, a pipeline of any length and
// form takes as long to be refused as one request does, and so does the next pipeline.
func TestPipelineWaitsOnce(t *testing.T) {
	for name, request := range map[string]string{
		"plain":  "*1\r\n$7\r\nID.NEXT\r\n",
		"forms":  "ID.NEXT FORMAT ulid\r\nID.NEXT FORMAT uuid\r\n",
		"counts": "ID.NEXT COUNT 2\r\n",
		"mixed":  "*1\r\n$7\r\nID.NEXT\r\nPING\r\nID.NEXT COUNT 2\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const wait = 40 * time.Millisecond
				w := newFixture(t)
				w.exhaust(frozen{time.Now()}, wait)
				here, there := net.Pipe()
				p := &pipe{conn: make(chan net.Conn, 1), ended: make(chan struct{})}
				p.conn <- there
				c := newClient(t, here)
				w.listen(server.Config{}).serve(p)
				for range 3 {
					const times = 1000 // more than one buffer of requests, and of answers
					began := time.Now()
					go func() { _, _ = io.WriteString(c, strings.Repeat(request, times)) }()
					for range times * strings.Count(request, "ID.NEXT") {
						got := c.reply()
						for got == "+PONG" {
							got = c.reply()
						}
						if !strings.HasPrefix(got, "-TRYAGAIN ENTROPY_OVERFLOW ") {
							t.Fatal(got)
						}
					}
					if took := time.Since(began); took < wait/2 || took > 3*wait/2 {
						t.Fatalf("a pipeline was refused after %v, a request waits up to %v", took, wait)
					}
				}
				_ = here.Close()
			})
		})
	}
}

// TestPipelineRefused: where a block is refused to all who would share it, those
// who can be served still are, and each of the others hears why.
func TestPipelineRefused(t *testing.T) {
	w := newFixture(t).serve(nil)
	for range 250 { // up to the last entropy of the lead, less 10
		if _, err := w.node.Next(t.Context(), 1<<15, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.node.Next(t.Context(), 1<<15-10, 0); err != nil {
		t.Fatal(err)
	}
	c := w.dial()
	c.send(strings.Repeat("*1\r\n$7\r\nID.NEXT\r\n", 25))
	for range 10 {
		c.parse(c.reply())
	}
	for range 15 {
		if got := c.reply(); got != "-TRYAGAIN ENTROPY_OVERFLOW more IDs were requested than the clock allows: new IDs would be 251ms ahead of it, at most 250ms is allowed "+
			"(excess_ms=1 lead_ms=251 limit_ms=250 retry_after_ms=1)" {
			t.Fatal(got)
		}
	}
	if n := w.node.Stats().Refused[node.EntropyOverflow]; n != 15 {
		t.Errorf("%d refusals were counted, want 15", n)
	}
}

// pipe is a listener of one connection without a buffer in between.
type pipe struct {
	conn  chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func (p *pipe) Accept() (net.Conn, error) {
	select {
	case c := <-p.conn:
		return c, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}
func (p *pipe) Close() error   { p.once.Do(func() { close(p.ended) }); return nil }
func (p *pipe) Addr() net.Addr { return &net.TCPAddr{} }

// TestBackPressure: a client that asks and does not read makes the node issue no
// more than one buffer holds, and is cut off in the end; what it asked for in
// arrays, too.
func TestBackPressure(t *testing.T) {
	// A long request leaves a long buffer, for many short ones at once.
	long := "*2\r\n$4\r\nECHO\r\n$4090\r\n" + strings.Repeat("y", 4090) + "\r\n"
	for name, tc := range map[string]struct {
		first, ask string
		most       int64
	}{
		"one by one": {"", "*1\r\n$7\r\nID.NEXT\r\n", 819},
		"wide":       {"", "ID.NEXT FORMAT uuid\r\n", 819},
		"arrays":     {"", "ID.NEXT COUNT 1000\r\n", 1000},
		// 509 fit beside the long request, and are read; of the 1,024 that then fit, a
		// part of them.
		"in a long buffer": {long, "ID.NEXT\n", 509 + 819},
		// Nothing is issued for it before the answer to the first is written.
		"array after all": {"PING\r\n", "ID.NEXT COUNT 10000\r\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			here, there := net.Pipe()
			p := &pipe{conn: make(chan net.Conn, 1), ended: make(chan struct{})}
			p.conn <- there
			limit := 200 * time.Millisecond
			if tc.first == long {
				limit = time.Second // Its reader must not be too late.
			}
			w := newFixture(t, func(c *respserver.Config) { c.WriteTimeout = limit }).serve(p)
			c := newClient(t, here)
			if tc.first == long { // what follows is asked for once this is read
				go func() { _, _ = io.CopyN(io.Discard, here, int64(len(long)-len("*2\r\n$4\r\nECHO\r\n")+509*20)) }()
			}
			sent := 0
			for first := tc.first; ; first = "" {
				n, err := io.WriteString(c, first+strings.Repeat(tc.ask, 10_000))
				sent += n
				if err != nil {
					break // cut off
				}
			}
			if n := w.node.Stats().Issued; n > tc.most || n == 0 && tc.most > 0 {
				t.Errorf("%d IDs were issued for %d bytes of requests, want %d at most", n, sent, tc.most)
			}
		})
	}
}

// A connection that sends one wrong token after the other is closed; a client with a right
// one from the same address is served.
func TestWrongTokensEndTheConnection(t *testing.T) {
	list, tokens := servertest.Tokens(t, "issue")
	w := newGuardedFixture(t, access.New(access.Config{Tokens: list, Now: func() clock.Mono { return 0 }})).serve(nil)
	c := w.dial()
	n := 0
	for ; n < 1000; n++ {
		if got := c.ask("AUTH wrong"); strings.HasPrefix(got, "-WRONGPASS RATE_LIMITED ") {
			break
		} else if !strings.HasPrefix(got, "-WRONGPASS UNAUTHENTICATED ") {
			t.Fatal(got)
		}
	}
	if n == 0 || n == 1000 {
		t.Errorf("limited after %d wrong tokens", n)
	}
	c.closed()
	d := w.dial()
	if got := d.ask("AUTH " + tokens["issue"]); got != "+OK" {
		t.Errorf("a right token: %s", got)
	}
	d.parse(d.ask("ID.NEXT"))
}

// What a browser sends for a web page is not obeyed: the connection ends at the first line
// that is one of HTTP, before the commands in the body.
func TestHTTPRequestsAreNotObeyed(t *testing.T) {
	w := newFixture(t).serve(nil)
	before := w.node.Stats().Issued
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\nContent-Length: 9\r\n\r\nID.NEXT\r\n",
		"post / HTTP/1.1\r\n\r\nID.NEXT\r\n",
		"PUT /\r\nHost: evil.example\r\n\r\nID.NEXT\r\n",
		"*1\r\n$4\r\nPOST\r\n*1\r\n$7\r\nID.NEXT\r\n",
	} {
		c := w.dial()
		c.send(request)
		if strings.Contains(request, "HTTP") {
			if got := c.text(); !strings.HasPrefix(got, "HTTP/1.1 400 Bad Request\r\n") || !strings.Contains(got, "listen.http") {
				t.Error(got)
			}
		} else if strings.HasPrefix(request, "PUT") {
			if got := c.reply(); !strings.HasPrefix(got, "-ERR unknown command 'PUT'") {
				t.Error(got)
			}
		}
		c.closed()
	}
	if n := w.node.Stats().Issued - before; n != 0 {
		t.Errorf("%d IDs were issued", n)
	}
	c := w.dial()
	c.parse(c.ask("ID.NEXT"))
}

// A client without TLS at a port with TLS gets an answer in the protocol that it speaks.
func TestPlainToTLS(t *testing.T) {
	pair := certstest.NewAuthority(t, "ca").Issue(t, "node", -time.Hour, time.Hour)
	w := newFixture(t).serve(tls.NewListener(listen(t), &tls.Config{Certificates: []tls.Certificate{pair.TLS(t)}}))
	for request, want := range map[string]string{
		"*1\r\n$4\r\nPING\r\n":          "-ERR this port speaks TLS: connect with it, as redis-cli --tls does\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\n": "HTTP/1.1 400 Bad Request\r\n",
	} {
		c := w.dial()
		c.send(request)
		if got := c.text(); !strings.HasPrefix(got, want) {
			t.Errorf("%q is answered %q", request, got)
		}
	}
}

// TestProtocolErrors: what is no request is said so, after the answers to all that
// came before it, and ends the connection.
func TestProtocolErrors(t *testing.T) {
	w := newFixture(t).serve(nil)
	fills := "*3\r\n$4096\r\n" + strings.Repeat("y", 4<<10) + "\r\n$4074\r\n" + strings.Repeat("y", 4074) + "\r\n"
	if len(fills) != 8<<10 { // and nobody waits for the rest
		t.Fatalf("%d bytes", len(fills))
	}
	for bad, want := range map[string]string{
		fills:                     "-ERR Protocol error: request above 8192 bytes",
		"*1\r\n:5\r\n":            "-ERR Protocol error: expected '$', got ':'",
		"*65\r\n":                 "-ERR Protocol error: invalid multibulk length",
		strings.Repeat("x", 4096): "-ERR Protocol error: too big inline request",
		"\x16\x03\x01":            "-ERR Protocol error: this port has no TLS",
	} {
		c := w.dial()
		c.send("PING\r\nID.NEXT\r\n")
		c.send(bad)
		if got := c.reply(); got != "+PONG" {
			t.Error(got)
		}
		c.parse(c.reply())
		if got := c.reply(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		c.closed()
	}
}

// TestIdle: a connection on which no request becomes complete is closed, one in use
// is not.
func TestIdle(t *testing.T) {
	const timeout = time.Second
	w := newFixture(t, func(c *respserver.Config) { c.IdleTimeout = timeout }).serve(nil)
	used, idle, slow := w.dial(), w.dial(), w.dial()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for { // a byte now and then is no request
			if _, err := slow.Write([]byte("x")); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}()
	gone := make(chan struct{})
	go func() { idle.closed(); close(gone) }()
	since := time.Now() // when its last request that was answered was sent
	for still := true; still; {
		select {
		case <-gone:
			still = false
		case <-time.After(50 * time.Millisecond):
		}
		sent, got := time.Now(), ""
		_, err := io.WriteString(used, "PING\r\n") // the last time when the idle one is closed
		if err == nil {
			got, err = used.read()
		}
		if idle := time.Since(since); got != "+PONG" && idle < timeout {
			t.Fatalf("%q, %v after %v", got, err, idle)
		} else if got != "+PONG" { // The test itself had no time.
			sent, used = time.Now(), w.dial()
		}
		since = sent
	}
	<-ended
}

// guarded returns a fixture for callers with a token to issue or one to read.
func guarded(t *testing.T) (w *fixture, guard *access.Guard, issue, read string) {
	t.Helper()
	list, tokens := servertest.Tokens(t, "issue", "read")
	guard = access.New(access.Config{Tokens: list})
	return newGuardedFixture(t, guard).serve(nil), guard, tokens["issue"], tokens["read"]
}

func TestAuth(t *testing.T) {
	w, _, issue, read := guarded(t)
	const noToken = "-NOAUTH UNAUTHENTICATED no token was sent: send AUTH TOKEN, or set it as the password of your client"
	for name, hello := range map[string]string{
		"one argument": "AUTH " + issue, "two arguments": "AUTH default " + issue, "HELLO": "HELLO 3 AUTH default " + issue,
	} {
		t.Run(name, func(t *testing.T) {
			c := w.dial()
			for _, ask := range []string{"PING", "ID.NEXT", "*1\r\n$7\r\nID.NEXT", "HGET id next", "ID.STATUS", "NOTHING"} {
				if got := c.ask(ask); got != noToken {
					t.Errorf("%s: %s", ask, got)
				}
			}
			if got := c.ask("HELLO 3"); !strings.HasPrefix(got, "-NOAUTH HELLO must be called") {
				t.Error(got)
			}
			if got := c.ask("AUTH wrong"); !strings.HasPrefix(got, "-WRONGPASS UNAUTHENTICATED ") {
				t.Error(got)
			}
			_, others := servertest.Tokens(t, "issue")
			if got := c.ask("AUTH default " + others["issue"]); !strings.HasPrefix(got, "-WRONGPASS UNAUTHENTICATED the token is unknown") {
				t.Error(got)
			}
			if got := c.ask("PING"); got != noToken {
				t.Error(got)
			}
			if got := c.ask(hello); got != "+OK" && !strings.HasPrefix(got, "%[server") {
				t.Fatal(got)
			}
			c.parse(c.ask("ID.NEXT"))
			c.parse(c.ask("*1\r\n$7\r\nID.NEXT"))
			if got := c.ask("PING"); got != "+PONG" {
				t.Error(got)
			}
			if got := c.ask("ID.STATUS"); got != "-NOPERM PERMISSION_DENIED the token of the-issue does not have the scope read (scope=read)" {
				t.Error(got)
			}
			c.ask("AUTH " + read)
			if got := c.ask("ID.DECODE 5"); !strings.HasPrefix(got, "{") {
				t.Error(got)
			}
			c.send("*1\r\n$7\r\nID.NEXT\r\nPING\r\nID.NEXT COUNT 2\r\n")
			for _, want := range []string{"-NOPERM ", "+PONG", "-NOPERM "} {
				if got := c.reply(); !strings.HasPrefix(got, want) {
					t.Errorf("%s, want %s", got, want)
				}
			}
			if c.ask("RESET"); c.ask("PING") != noToken {
				t.Error("RESET keeps the token")
			}
		})
	}
}

// TestRevokedToken: after a token was revoked, its open connections are unauthenticated
// for every command, until they send another token.
func TestRevokedToken(t *testing.T) {
	w, guard, issue, read := guarded(t)
	asks := []string{"PING", "INFO", "COMMAND COUNT", "CLIENT ID", "ECHO x", "NOTHING", "ID.NEXT", "*1\r\n$7\r\nID.NEXT", "ID.STATUS"}
	var clients []*client
	for i := range asks {
		c := w.dial()
		if c.ask("AUTH " + read); i%2 == 0 {
			c.ask("AUTH " + issue)
		}
		clients = append(clients, c)
	}
	others, _ := servertest.Tokens(t, "issue")
	guard.SetTokens(others)
	for i, ask := range asks {
		if got := clients[i].ask(ask); !strings.HasPrefix(got, "-NOAUTH UNAUTHENTICATED the token is unknown") {
			t.Errorf("%s: %s", ask, got)
		}
	}
	if n := w.node.Stats().Issued; n != 0 {
		t.Errorf("%d IDs were issued", n)
	}
}

// TestInfoIsForReaders: the state of the node is for the scope read.
func TestInfoIsForReaders(t *testing.T) {
	w, _, issue, read := guarded(t)
	c := w.dial()
	c.ask("AUTH " + issue)
	if got := c.ask("INFO"); strings.Contains(got, "ids_issued") || !strings.Contains(got, "loading:0") {
		t.Errorf("with the scope issue: %s", got)
	}
	c.ask("AUTH " + read)
	if got := c.ask("INFO"); !strings.Contains(got, "ids_issued:0") {
		t.Errorf("with the scope read: %s", got)
	}
}

// TestUnauthenticatedClientsHoldLittle: without a token, a request may be as long as one to
// show a token, and no longer.
func TestUnauthenticatedClientsHoldLittle(t *testing.T) {
	w, _, issue, _ := guarded(t)
	c := w.dial()
	c.send("*2\r\n$4\r\nECHO\r\n$4096\r\n" + strings.Repeat("y", 4<<10-21))
	if got := c.reply(); got != "-ERR Protocol error: request above 4096 bytes without a token" {
		t.Error(got)
	}
	c.closed()
	c = w.dial()
	c.send("AUTH " + issue + "\r\n*2\r\n$4\r\nECHO\r\n$4090\r\n" + strings.Repeat("y", 4090) + "\r\n")
	if got := c.reply(); got != "+OK" {
		t.Fatal(got)
	}
	if got := c.reply(); len(got) != 4090 {
		t.Errorf("%d bytes", len(got))
	}
}

// TestRate: each request of a pipeline counts.
func TestRate(t *testing.T) {
	now := clock.Mono(0)
	w := newGuardedFixture(t, access.New(access.Config{Rate: 10, Now: func() clock.Mono { return now }})).serve(nil)
	c := w.dial()
	c.send(strings.Repeat("*1\r\n$7\r\nID.NEXT\r\n", 15))
	for range 10 {
		c.parse(c.reply())
	}
	for range 5 {
		if got := c.reply(); got != "-TRYAGAIN RATE_LIMITED this client exceeds its limit of requests per second: retry after the delay, or request more IDs at a time (retry_after_ms=100)" {
			t.Error(got)
		}
	}
	if n := w.node.Stats().Issued; n != 10 {
		t.Errorf("%d IDs were issued", n)
	}
}

// TestDrain: a node that drains says so on open connections, and then ends them;
// what is being answered is answered in full.
func TestDrain(t *testing.T) {
	w := newFixture(t)
	l := listen(t)
	w.addr = l.Addr().String()
	go func() { w.ended <- w.listener.Serve(l) }()
	idle, busy := w.dial(), w.dial()
	idle.ask("PING")
	c := w.dial()
	c.parse(c.ask("ID.NEXT"))

	// More than sockets hold: it is under way while the listener closes.
	busy.send(strings.Repeat("ID.NEXT COUNT 10000 FORMAT uuid\r\n", 40))
	busy.reply()
	w.node.Drain()
	if got := c.ask("ID.NEXT"); got != "-TRYAGAIN DRAINING node node-a is draining: try another node (retry_after_ms=20)" {
		t.Error(got)
	}
	finished := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), wait.Most)
		defer cancel()
		finished <- w.listener.Shutdown(ctx)
	}()
	idle.closed()
	c.closed()
	for n := 1; n < 40; n++ {
		got, err := busy.read()
		if err != nil {
			t.Fatalf("answer %d: %v", n, err)
		}
		if !strings.HasPrefix(got, "-TRYAGAIN DRAINING") && len(strings.Fields(got)) != 10_000 {
			t.Fatalf("answer %d is cut short: %.80s", n, got)
		}
	}
	busy.closed()
	if err := <-finished; err != nil {
		t.Error(err)
	}
	if err := <-w.ended; !errors.Is(err, respserver.ErrClosed) {
		t.Errorf("Serve returned %v", err)
	}
	if _, err := net.Dial("tcp", w.addr); err == nil {
		t.Error("the port is still open")
	}
}

// TestCutOff: a client that does not read holds nobody up for longer than allowed.
func TestCutOff(t *testing.T) {
	w := newFixture(t)
	l := listen(t)
	w.addr = l.Addr().String()
	go func() { w.ended <- w.listener.Serve(l) }()
	c := w.dial()
	go func() { _, _ = io.WriteString(c.Conn, strings.Repeat("ID.NEXT COUNT 10000 FORMAT uuid\r\n", 40)) }()
	c.reply()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := w.listener.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown returned %v", err)
	}
	if n := w.listener.Connections(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
	<-w.ended
}

// TestEmptyRequestsCost: a connection that sends nothing but line ends is slowed.
func TestEmptyRequestsCost(t *testing.T) {
	for _, empty := range []string{"\r\n", "*0\r\n"} {
		x := newFixture(t)
		q := quota.New(quota.Config{Now: func() clock.Mono { return 0 }}) // Nobody gets new tokens.
		l := q.Listen(listen(t), quota.ListenerConfig{})
		x.serve(l)
		c, err := net.Dial("tcp", x.addr)
		fatal.If(t, err)
		defer c.Close()
		go func() { _, _ = io.WriteString(c, strings.Repeat(empty, 40_000)+"PING\r\n") }()
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			_, _ = c.Read(make([]byte, 1))
		}()
		for l.Stats().Slowed == 0 {
			select {
			case <-answered:
				t.Fatalf("40,000 times %q cost nothing", empty)
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// TestEveryCommandCosts: commands that draw no ID are answered at the rate of their source,
// and those that do beside them are not slowed.
func TestEveryCommandCosts(t *testing.T) {
	const sent, paid = 5000, 2000 + 500 // what a source has at once, and what is in a buffer
	list, tokens := servertest.Tokens(t, "issue")
	auth := "AUTH " + tokens["issue"]
	for command, lines := range map[string]int{
		"PING":          1,
		"SELECT 0":      1,
		auth:            1,
		"ECHO x":        2,
		"CLIENT ID":     1,
		"COMMAND COUNT": 1,
	} {
		x := newGuardedFixture(t, access.New(access.Config{Tokens: list}))
		l := listen(t)
		q := quota.New(quota.Config{Now: func() clock.Mono { return 0 }}) // Nobody gets new tokens.
		x.serve(q.Listen(l, quota.ListenerConfig{}))
		replies := func(command string, lines int, patience time.Duration) int {
			c, err := net.Dial("tcp", x.addr)
			fatal.If(t, err)
			defer c.Close()
			go func() {
				_, _ = io.WriteString(c, auth+"\r\n"+strings.Repeat(command+"\r\n", sent))
			}()
			r, n := bufio.NewReader(c), 0
			for n < sent*lines+1 {
				_ = c.SetReadDeadline(time.Now().Add(patience))
				if _, err := r.ReadString('\n'); err != nil {
					break
				}
				n++
			}
			return n / lines
		}
		if n := replies(command, lines, 300*time.Millisecond); n > paid {
			t.Errorf("%s: %d of %d were answered", command, n, sent)
		}
		if n := replies("ID.NEXT", 2, wait.Most); n != sent {
			t.Errorf("after %s: %d of %d IDs were issued", command, n, sent)
		}
	}
}
