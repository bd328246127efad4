package daemon_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/daemontest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
)

const day = 24 * time.Hour

// securedNode is a node with all that docs/how-to/secure-it.md has: TLS,
// client certificates, tokens and limits.
type securedNode struct {
	*running
	cfg       config.Config
	dir       string
	ca, other *certstest.Authority
	good      certstest.Pair    // of a client
	tokens    map[string]string // by name; all but read and admin may issue
}

// lines makes tokens and returns their file.
func (f *securedNode) lines(t *testing.T, scopes map[string]string) []byte {
	t.Helper()
	var file bytes.Buffer
	for name, scope := range scopes {
		token, line, err := access.NewToken(name, scope)
		fatal.If(t, err)
		f.tokens[name] = token
		fmt.Fprintln(&file, line)
	}
	return file.Bytes()
}

func newFortress(t *testing.T, change func(*config.Config)) *securedNode {
	t.Helper()
	f := &securedNode{dir: t.TempDir(), ca: certstest.NewAuthority(t, "ca"), other: certstest.NewAuthority(t, "other"), tokens: map[string]string{}}
	c := daemontest.Settings(t, "a", shared)
	c.Listen.RESP = "127.0.0.1:0"
	c.TLS.Cert, c.TLS.Key = f.ca.Issue(t, "node", -time.Hour, day).Write(t, f.dir, "node")
	c.TLS.ClientCA = certstest.File(t, f.dir, "clients.pem", f.ca.PEM)
	c.Auth.TokenFile = certstest.File(t, f.dir, "tokens",
		f.lines(t, map[string]string{"issue": "issue", "read": "read", "admin": "admin", "often": "issue", "large": "issue"}))
	change(&c)
	f.cfg, f.good = c, f.ca.Issue(t, "shop", -time.Hour, day)
	daemontest.Init(t, c)
	f.running = start(t, c)
	f.untilReady(t)
	return f
}

func (f *securedNode) tls(t *testing.T) *tls.Config {
	t.Helper()
	return &tls.Config{RootCAs: f.ca.Pool(), Certificates: []tls.Certificate{f.good.TLS(t)}}
}

// grpc returns a connection by c.
func (f *securedNode) grpc(t *testing.T, c *tls.Config) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+f.Addresses().GRPC, grpc.WithTransportCredentials(credentials.NewTLS(c)))
	fatal.If(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// as returns a context with one of the node's tokens, for one short call.
func (f *securedNode) as(t *testing.T, token string) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
	t.Cleanup(cancel)
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+f.tokens[token])
}

// post draws IDs over HTTP and returns status and body; the status is 0 where
// there was no answer.
func (f *securedNode) post(t *testing.T, c *tls.Config, query, token, body string, header ...string) (int, string, error) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: wait.Most}
	req, err := http.NewRequest("POST", "https://"+f.Addresses().HTTP+"/v1/ids?"+query, strings.NewReader(body))
	fatal.If(t, err)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+f.tokens[token])
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// bystander draws IDs over gRPC and HTTP, on old and on new connections, until
// the function it returns is called. Each draw must succeed.
func (f *securedNode) bystander(t *testing.T) (enough func() (draws int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var draws atomic.Int64
	var all sync.WaitGroup
	secure := f.tls(t)
	lasting := f.grpc(t, secure)
	for _, draw := range []func(context.Context) error{
		func(ctx context.Context) error {
			_, err := pb.NewAllocatorServiceClient(lasting).Allocate(ctx, &pb.AllocateRequest{Count: 1})
			return err
		},
		func(ctx context.Context) error {
			conn, err := grpc.NewClient("passthrough:///"+f.Addresses().GRPC, grpc.WithTransportCredentials(credentials.NewTLS(secure)))
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = pb.NewAllocatorServiceClient(conn).Allocate(ctx, &pb.AllocateRequest{Count: 1})
			return err
		},
		func(context.Context) error {
			code, body, err := f.post(t, secure, "count=1", "issue", "")
			if err == nil && code != 200 {
				err = errors.New(body)
			}
			return err
		},
	} {
		all.Go(func() {
			for ctx.Err() == nil {
				one, done := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+f.tokens["issue"]), wait.Most)
				err := draw(one)
				done()
				if ctx.Err() != nil {
					return
				}
				if err != nil {
					t.Errorf("a well-behaved client was not served: %v", err)
					return
				}
				draws.Add(1)
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
	return func() int {
		cancel()
		all.Wait()
		return int(draws.Load())
	}
}

// raw opens a TLS connection that speaks a protocol by hand.
func (f *securedNode) raw(t *testing.T, addr, protocol string) *tls.Conn {
	t.Helper()
	c := f.tls(t)
	if protocol != "" {
		c.NextProtos = []string{protocol}
	}
	conn, err := tls.DialWithDialer(&net.Dialer{Timeout: wait.Most}, "tcp", addr, c)
	fatal.If(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// isClosed fails unless the other side closes conn. What it sends first is passed over.
func isClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(wait.Most))
	_, err := io.Copy(io.Discard, conn)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		t.Errorf("still open after %v", wait.Most)
	}
}

// closes fails unless every listener closes a connection that sends these bytes and
// no more.
func (f *securedNode) closes(t *testing.T, sent []byte) {
	t.Helper()
	var all sync.WaitGroup
	for _, addr := range []string{f.Addresses().GRPC, f.Addresses().HTTP, f.Addresses().RESP} {
		conn, err := net.Dial("tcp", addr)
		fatal.If(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = conn.Write(sent)
		all.Go(func() { isClosed(t, conn) })
	}
	all.Wait()
}

// TestHostileClients: each gets what it deserves, and well-behaved clients are served all the while, on
// connections old and new. chaos/real/abuse has those that send as much as they can.
func TestHostileClients(t *testing.T) {
	t.Parallel()
	f := newFortress(t, func(*config.Config) {})
	a := f.Addresses()
	enough := f.bystander(t)
	type hostile struct {
		name string
		do   func(*testing.T)
	}
	hostiles := []hostile{
		{"has no certificate", func(t *testing.T) { // TestServer of package certs has those that are not good.
			c := &tls.Config{RootCAs: f.ca.Pool()}
			_, err := pb.NewAllocatorServiceClient(f.grpc(t, c)).Allocate(f.as(t, "admin"), &pb.AllocateRequest{Count: 1})
			if status.Code(err) != codes.Unavailable {
				t.Errorf("gRPC: %v", err)
			}
			if code, body, err := f.post(t, c, "", "admin", ""); err == nil {
				t.Errorf("HTTP: %d %s", code, body)
			}
			conn, err := tls.Dial("tcp", a.RESP, c)
			if err == nil { // TLS 1.3 tells a client of its certificate with the first answer
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(wait.Most))
				_, _ = io.WriteString(conn, "PING\r\n")
				_, err = conn.Read(make([]byte, 10))
			}
			if err == nil {
				t.Error("RESP answers")
			}
		}},
		{"speaks in clear", func(t *testing.T) {
			for _, addr := range []string{a.GRPC, a.HTTP, a.RESP} {
				conn, err := net.Dial("tcp", addr)
				fatal.If(t, err)
				defer conn.Close()
				_, _ = io.WriteString(conn, "POST /v1/ids HTTP/1.1\r\nHost: x\r\n\r\n")
				_ = conn.SetDeadline(time.Now().Add(wait.Most))
				b, err := io.ReadAll(conn)
				if strings.Contains(string(b), `"ids"`) || err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%s: %q, %v", addr, b, err)
				}
			}
		}},
		{"never begins a handshake", func(t *testing.T) {
			f.closes(t, nil)
		}},
		{"never ends a handshake", func(t *testing.T) {
			f.closes(t, []byte{22, 3, 1, 2, 0, 1}) // a ClientHello begins
		}},
		{"says nothing after the handshake", func(t *testing.T) {
			var both sync.WaitGroup
			for _, conn := range []net.Conn{f.raw(t, a.GRPC, "h2"), f.raw(t, a.HTTP, "http/1.1")} {
				both.Go(func() { isClosed(t, conn) })
			}
			both.Wait()
		}},
		{"sends headers letter by letter", func(t *testing.T) {
			conn := f.raw(t, a.HTTP, "http/1.1")
			ended := make(chan struct{})
			go func() {
				for {
					if _, err := conn.Write([]byte("P")); err != nil {
						return
					}
					select {
					case <-ended:
						return
					case <-time.After(200 * time.Millisecond):
					}
				}
			}()
			isClosed(t, conn)
			close(ended)
		}},
		{"sends a body letter by letter", func(t *testing.T) {
			conn := f.raw(t, a.HTTP, "http/1.1")
			fmt.Fprintf(conn, "POST /v1/ids HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n", f.tokens["issue"])
			isClosed(t, conn)
		}},
	}
	t.Run("all", func(t *testing.T) {
		for _, h := range hostiles {
			t.Run(h.name, func(t *testing.T) {
				t.Parallel()
				h.do(t)
			})
		}
	})
	if n := enough(); n == 0 {
		t.Error("well-behaved clients drew nothing")
	} else {
		t.Logf("well-behaved clients drew %d times", n)
	}
	if st := f.Node().Stats(); st.Draining || f.Node().Ready() != nil {
		t.Errorf("the node is not ready: %+v", st)
	}
	f.logsNoSecrets(t)
}

// as2 is as without a deadline, for many calls.
func (f *securedNode) as2(token string) context.Context {
	return metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer "+f.tokens[token])
}

// logsNoSecrets checks that the node's log has no secret.
func (f *securedNode) logsNoSecrets(t *testing.T) {
	t.Helper()
	log := f.Log.String()
	if !strings.Contains(log, `callers="those with a token`) {
		t.Fatal("no log")
	}
	secrets := map[string]string{}
	for name, token := range f.tokens {
		secrets["the token "+name] = token
	}
	for _, file := range []string{"node.key", "tokens"} {
		b, err := os.ReadFile(filepath.Join(f.dir, file))
		fatal.If(t, err)
		for line := range strings.Lines(string(b)) {
			if fields := strings.Fields(line); len(fields) > 0 {
				if last := fields[len(fields)-1]; len(last) > 20 {
					secrets["a line of "+file] = strings.TrimPrefix(last, "sha256:")
				}
			}
		}
	}
	for what, secret := range secrets {
		if strings.Contains(log, secret) {
			t.Errorf("the log has %s", what)
		}
	}
}

// TestFilesAreReplacedWhileRunning: what is open stays open, and whoever comes
// next goes by the new files.
func TestFilesAreReplacedWhileRunning(t *testing.T) {
	t.Parallel()
	f := newFortress(t, func(c *config.Config) { c.TLS.Admin = true })
	first := f.tls(t)
	open := pb.NewAllocatorServiceClient(f.grpc(t, first))
	draw := func(c pb.AllocatorServiceClient, token string) error {
		_, err := c.Allocate(f.as(t, token), &pb.AllocateRequest{Count: 1})
		return err
	}
	fatal.If(t, draw(open, "issue"))
	streaming, endStream := context.WithCancel(f.as2("issue"))
	defer endStream()
	stream, err := open.AllocateStream(streaming)
	fatal.If(t, err)
	exchange := func() error {
		if err := stream.Send(&pb.AllocateStreamRequest{Request: &pb.AllocateRequest{Count: 1}}); err != nil && err != io.EOF {
			return err
		}
		_, err := stream.Recv()
		return err
	}
	fatal.If(t, exchange())

	// A certificate of another authority, and clients of that one alone.
	f.other.Issue(t, "node", -time.Hour, day).Write(t, f.dir, "node")
	certstest.File(t, f.dir, "clients.pem", f.other.PEM)
	second := &tls.Config{RootCAs: f.other.Pool(), Certificates: []tls.Certificate{f.other.Issue(t, "shop", -time.Hour, day).TLS(t)}}
	wait.Until(t, "HTTP takes the new certificates", func() bool {
		code, _, _ := f.post(t, second, "", "issue", "")
		return code == 200
	})
	if err := draw(pb.NewAllocatorServiceClient(f.grpc(t, second)), "issue"); err != nil {
		t.Errorf("gRPC, a new connection: %v", err)
	}
	if err := draw(pb.NewAllocatorServiceClient(f.grpc(t, first)), "issue"); status.Code(err) != codes.Unavailable {
		t.Errorf("gRPC, a new connection by the old authority: %v", err)
	}
	if err := errors.Join(draw(open, "issue"), exchange()); err != nil {
		t.Errorf("gRPC, the old connection: %v", err)
	}

	// Nonsense instead of a certificate changes nothing. Nonsense in a line of the tokens
	// changes nothing about the other lines: one that is gone is revoked.
	certstest.File(t, f.dir, "node.pem", []byte("nonsense"))
	lines, err := os.ReadFile(filepath.Join(f.dir, "tokens"))
	fatal.If(t, err)
	var without strings.Builder
	for line := range strings.Lines(string(lines)) {
		if !strings.HasPrefix(line, "often ") {
			without.WriteString(line)
		}
	}
	certstest.File(t, f.dir, "tokens", []byte(without.String()+"issue issue "+f.tokens["issue"]))
	metrics := func() string {
		transport := &http.Transport{TLSClientConfig: second, DisableKeepAlives: true}
		res, err := (&http.Client{Transport: transport, Timeout: wait.Most}).Get("https://" + f.Addresses().Admin + "/metrics")
		fatal.If(t, err)
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		fatal.If(t, err)
		return string(b)
	}
	wait.Until(t, "the metrics tell", func() bool {
		m := metrics()
		return strings.Contains(m, "allocator_reload_failing{files=\"tls\"} 1\n") && strings.Contains(m, "allocator_reload_failing{files=\"tokens\"} 1\n")
	})
	m := metrics()
	for _, want := range []string{"allocator_tls_certificate_remaining_seconds{certificate=\"server\"} 8", "allocator_reloads_total{files=\"tokens\"} 1\n"} {
		if !strings.Contains(m, want) {
			t.Errorf("metrics: no %q", want)
		}
	}
	if err := draw(pb.NewAllocatorServiceClient(f.grpc(t, second)), "issue"); err != nil {
		t.Errorf("with nonsense in the files: %v", err)
	}
	if err := draw(pb.NewAllocatorServiceClient(f.grpc(t, second)), "often"); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a token whose line is gone, beside nonsense: %v", err)
	}

	// A revoked token is refused everywhere, and a new one is not.
	old := f.tokens["issue"]
	certstest.File(t, f.dir, "tokens", f.lines(t, map[string]string{"issue": "issue"}))
	wait.Until(t, "the new token is taken", func() bool { return draw(open, "issue") == nil })
	f.tokens["old"] = old
	// The calls with a token that was not taken yet count for the limit of wrong ones.
	wait.Until(t, "the old token is refused", func() bool { return status.Code(draw(open, "old")) == codes.Unauthenticated })
	wait.Until(t, "a stream of the old token is refused", func() bool { return status.Code(exchange()) == codes.Unauthenticated })
	f.logsNoSecrets(t)
}

// What is half configured does not start, and says what to change.
func TestSecurityThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	ca := certstest.NewAuthority(t, "ca")
	cert, key := ca.Issue(t, "node", -time.Hour, day).Write(t, dir, "node")
	nonsense := certstest.File(t, dir, "nonsense", []byte("hunter2 hunter2 hunter2"))
	for name, change := range map[string]func(*config.Config){
		"tls.cert":              func(c *config.Config) { c.TLS.Cert = cert },
		"tls.client-ca":         func(c *config.Config) { c.TLS.ClientCA = cert },
		"tls.admin":             func(c *config.Config) { c.TLS.Admin = true },
		"tls.cert (":            func(c *config.Config) { c.TLS.Cert, c.TLS.Key = nonsense, key },
		"tls.key: open":         func(c *config.Config) { c.TLS.Cert, c.TLS.Key = cert, dir+"/none" },
		"auth.token-file":       func(c *config.Config) { c.Auth.TokenFile = nonsense },
		"gossip.key-file (":     func(c *config.Config) { c.Gossip.KeyFile = nonsense },
		"gossip.key-file: open": func(c *config.Config) { c.Gossip.KeyFile = dir + "/none" },
		"etcd.tls.ca (":         func(c *config.Config) { c.Etcd.Endpoints, c.Etcd.TLS.CA = []string{"https://127.0.0.1:1"}, nonsense },
	} {
		c := daemontest.Settings(t, "a", shared)
		change(&c)
		_, err := daemon.New(daemon.Config{Settings: c, Version: "test", Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRebinding: a page whose name was rebound to the address of a plain admin port is of the
// same origin to its browser, and its caller is on loopback. The name alone gives it away,
// whatever protects the ports of the API.
func TestRebinding(t *testing.T) {
	f := newFortress(t, func(c *config.Config) { c.Auth.TokenFile, c.Console.Operate = "", true })
	ask := func(host, method, path, form string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+f.Addresses().Admin+path, strings.NewReader(form))
		fatal.If(t, err)
		req.Host = host
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", "http://"+host)
		req.Header.Set("Sec-Fetch-Site", "same-origin")
		res, err := http.DefaultClient.Do(req)
		fatal.If(t, err)
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		fatal.If(t, err)
		return res.StatusCode, string(body)
	}
	for _, path := range []string{"/console/operate", "/console/charts", "/metrics", "/livez"} {
		if code, body := ask("evil.example.com:7947", "GET", path, ""); code != http.StatusMisdirectedRequest {
			t.Errorf("%s: HTTP %d %.100s", path, code, body)
		}
	}
	if code, body := ask("evil.example.com:7947", "POST", "/console/operate", "action=drain"); code != http.StatusMisdirectedRequest {
		t.Errorf("a plan: HTTP %d %.100s", code, body)
	}
	code, body := ask(f.Addresses().Admin, "POST", "/console/operate", "action=drain")
	key := regexp.MustCompile(`name="confirm" value="([A-Z0-9]+)"`).FindStringSubmatch(body)
	if code != http.StatusOK || key == nil {
		t.Fatalf("a plan, by the node's address: HTTP %d %.100s", code, body)
	}
	if code, _ := ask("evil.example.com:7947", "POST", "/console/operate", "confirm="+key[1]); code != http.StatusMisdirectedRequest || f.Node().Stats().Draining {
		t.Errorf("confirmed: HTTP %d", code)
	}
}
