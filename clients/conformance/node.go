package main

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/ulid"
)

// start is the time of the first IDs. Scripted nodes have no clock: IDs depend on requests alone.
var start = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// Types of answers over HTTP.
const (
	asJSON    = "application/json"
	asProblem = "application/problem+json"
)

// laterReason is no reason of this version.
const laterReason = "OF_A_LATER_VERSION"

// maxText is how many IDs a request over HTTP may ask for.
const maxText = server.DefaultMaxTextCount

// request is what a scripted node was asked.
type request struct {
	count int
	form  string
	after flake.ID
	token string // as sent; "": none
}

// scripted is a node that follows a script, over HTTP and over gRPC. All methods are safe for concurrent use.
type scripted struct {
	pb.UnimplementedAllocatorServiceServer
	sid    flake.SID
	secure *tls.Config // nil: plaintext
	work   sync.WaitGroup

	mu     sync.Mutex // guards the rest
	script []string   // what becomes of each request; the last one is for all later requests too
	asked  []request
	word   int64 // The last ID has it above the sid.
	marks  int   // requests for the watermark
	http   string
	rpc    string
	wrote  int // bytes of answers without an end
	open   map[net.Conn]bool
	ends   []func()
	done   chan struct{} // closed when the node stops

	listeners [2]*net.TCPListener
}

// newScripted starts a node. script is what it does with each request, divided by commas:
//
//	serve            answers with the IDs
//	refuse R 50      refuses with reason R, and names a delay of 50 ms
//	late 100         answers after 100 ms
//	hang             issues, and never answers
//	drop             issues, and closes the connection
//	cut              issues, and closes the connection in the middle of the answer
//	twice            issues, and sends the answer twice
//	fewer, more      issues one ID less, or one more, than asked for
//	lower            answers with IDs that are not above `after`: its time went back
//	same             answers with one ID again and again
//	falling          answers with the IDs in falling order
//	layout           answers with IDs of another layout (over HTTP: of another form)
//	numbers          answers with JSON numbers, which lose digits
//	text, html 502   answers with no JSON, or as a proxy does that has no node
//	huge             answers with text that does not end
//	unknown          refuses with a reason of a later version
func newScripted(sid int, script string, secure *tls.Config) (*scripted, error) {
	n := &scripted{sid: flake.SID(sid), secure: secure}
	n.play(script)
	var listeners [2]*net.TCPListener
	for i := range listeners {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		listeners[i] = l.(*net.TCPListener)
	}
	n.begin(listeners)
	return n, nil
}

// play makes script what becomes of later requests.
func (n *scripted) play(script string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.script = nil
	for s := range strings.SplitSeq(script, ",") {
		n.script = append(n.script, strings.TrimSpace(s))
	}
}

// begin serves HTTP and gRPC.
func (n *scripted) begin(listeners [2]*net.TCPListener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l, g := listeners[0], listeners[1]
	n.open, n.done, n.listeners = map[net.Conn]bool{}, make(chan struct{}), listeners
	n.http, n.rpc = l.Addr().String(), g.Addr().String()
	server := grpc.NewServer()
	pb.RegisterAllocatorServiceServer(server, n)
	n.ends = []func(){func() { _ = l.Close() }, server.Stop}
	over := net.Listener(counted{l, n})
	rpcs := net.Listener(counted{g, n})
	if n.secure != nil {
		over = tls.NewListener(over, n.secure)
		secure := n.secure.Clone()
		secure.NextProtos = []string{"h2"}
		rpcs = tls.NewListener(rpcs, secure)
	}
	n.work.Go(func() { _ = server.Serve(rpcs) })
	done := n.done
	n.work.Go(func() {
		for {
			c, err := over.Accept()
			if err != nil {
				return
			}
			n.work.Go(func() { n.converse(c, done) })
		}
	})
}

// counted notes connections, so that the node can cut them.
type counted struct {
	net.Listener
	n *scripted
}

func (l counted) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.mu.Lock()
		l.n.open[c] = true
		l.n.mu.Unlock()
	}
	return c, err
}

// hangUp closes all connections.
func (n *scripted) hangUp() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.open {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
	n.open = map[net.Conn]bool{}
}

// stop ends the node: nothing listens at its addresses.
func (n *scripted) stop() {
	n.mu.Lock()
	ends := n.ends
	close(n.done)
	n.mu.Unlock()
	n.hangUp()
	for _, end := range ends {
		end()
	}
	n.hangUp()
	n.work.Wait()
}

// restart begins again at the same addresses, and forgets what it has issued. The addresses stay its own meanwhile:
// nodes of other rows begin at the same time.
func (n *scripted) restart() (err error) {
	var again [2]*net.TCPListener
	for i, l := range n.listeners {
		f, bad := l.File()
		if bad != nil {
			return bad
		}
		copied, bad := net.FileListener(f)
		if err = errors.Join(bad, f.Close()); err != nil {
			return err
		}
		again[i] = copied.(*net.TCPListener)
	}
	n.stop()
	n.mu.Lock()
	n.word = 0
	n.mu.Unlock()
	n.begin(again)
	return nil
}

// vacate stops the node for good. Its new addresses are reserved until the function that it returns is called: nothing
// listens there.
func (n *scripted) vacate() (release func(), err error) {
	n.stop()
	var sockets []int
	release = func() {
		for _, s := range sockets {
			_ = syscall.Close(s)
		}
	}
	for _, address := range []*string{&n.http, &n.rpc} {
		s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
		if err != nil {
			return release, err
		}
		sockets = append(sockets, s)
		if err := syscall.Bind(s, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return release, err
		}
		name, err := syscall.Getsockname(s)
		if err != nil {
			return release, err
		}
		*address = fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)
	}
	return release, nil
}

// requests returns what the node was asked.
func (n *scripted) requests() []request {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]request(nil), n.asked...)
}

// outcome is what becomes of a request.
type outcome struct {
	act    string
	arg    string
	ids    []flake.ID
	refuse node.Reason
	retry  time.Duration
	detail string
	limit  int // INVALID_COUNT names it.
}

// decide notes a request and decides what becomes of it.
func (n *scripted) decide(r request, most int) (o outcome) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked = append(n.asked, r)
	words := strings.Fields(n.script[min(len(n.asked), len(n.script))-1])
	if o.act = words[0]; len(words) > 1 {
		o.arg = words[1]
	}
	o.limit = most
	switch {
	case o.act == "refuse":
		o.refuse, o.detail = node.ReasonOf(o.arg), "by script"
		if o.refuse == 0 {
			panic("conformance: there is no reason " + o.arg)
		}
		if len(words) > 2 {
			ms, _ := strconv.Atoi(words[2])
			o.retry = time.Duration(ms) * time.Millisecond
		}
	case r.count < 1 || r.count > most:
		o.refuse, o.detail = node.InvalidCount, fmt.Sprintf("count is %d: ask for 1 to %d", r.count, most)
	default:
		o.ids = n.issue(r, o.act)
	}
	return o
}

// issue returns the IDs of an answer. n.mu is held.
func (n *scripted) issue(r request, act string) []flake.ID {
	count := r.count
	switch act {
	case "fewer":
		count--
	case "more":
		count++
	}
	first := max(n.word+1, (start.UnixMilli()-flake.DefaultEpoch)<<15, int64(r.after)>>5+1)
	n.word = first + int64(count) - 1
	if act == "lower" {
		first = max(0, int64(r.after)>>5-int64(count))
	}
	ids := make([]flake.ID, count)
	for i := range ids {
		at := int64(i)
		switch act {
		case "same":
			at = 0
		case "falling":
			at = int64(count - 1 - i)
		}
		ids[i] = flake.ID((first+at)<<5 | int64(n.sid))
	}
	return ids
}

// converse answers the requests of a connection over HTTP.
func (n *scripted) converse(c net.Conn, done <-chan struct{}) {
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<16))
		if err != nil {
			return
		}
		if !n.reply(c, r, body, done) {
			return
		}
	}
}

// reply answers one request over HTTP. It reports whether the connection goes on.
func (n *scripted) reply(c net.Conn, r *http.Request, body []byte, done <-chan struct{}) bool {
	if r.URL.Path == "/v1/watermark" {
		return send(c, 200, asJSON, n.watermark(), nil)
	}
	if r.URL.Path != "/v1/ids" || r.Method != http.MethodPost {
		return send(c, 404, "text/plain", []byte("no such route: "+r.Method+" "+r.URL.Path), nil)
	}
	q, err := parse(r, body)
	if err != nil {
		return problem(c, node.InvalidFormat, err.Error(), 0, nil)
	}
	o := n.decide(q, maxText)
	if o.refuse != 0 {
		return problem(c, o.refuse, o.detail, o.retry, map[string]string{"limit": strconv.Itoa(o.limit)})
	}
	answer := n.answer(q, o)
	switch o.act {
	case "late":
		ms, _ := strconv.Atoi(o.arg)
		select {
		case <-time.After(time.Duration(ms) * time.Millisecond):
		case <-done:
		}
	case "hang":
		<-done
		return false
	case "drop":
		return false
	case "cut":
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", asJSON,
			len(answer), answer[:len(answer)/2])
		return false
	case "twice":
		first := send(c, 200, asJSON, answer, nil)
		return send(c, 200, asJSON, answer, nil) && first
	case "html":
		code, _ := strconv.Atoi(o.arg)
		return send(c, code, "text/html", []byte("<html><body>Bad Gateway</body></html>"), nil)
	case "text":
		return send(c, 200, asJSON, []byte("ready"), nil)
	case "unknown":
		return send(c, 503, asProblem, []byte(`{"type":"about:blank","title":"later","status":503,`+
			`"detail":"a later version has it","reason":"`+laterReason+`"}`), nil)
	case "huge":
		_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"+`{"ids":["`)
		for err == nil {
			_, err = io.WriteString(c, strings.Repeat("1", 1<<16))
			n.mu.Lock()
			n.wrote += 1 << 16
			n.mu.Unlock()
		}
		return false
	}
	return send(c, 200, asJSON, answer, nil)
}

// parse reads a request for IDs, whose fields are in the query or in a JSON body.
func parse(r *http.Request, body []byte) (q request, err error) {
	q.count, q.form = 1, "flake"
	var fields struct {
		Count *int
		As    *string
		After any
	}
	if len(body) > 0 {
		if err := json.Unmarshal(body, &fields); err != nil {
			return q, err
		}
	}
	after := ""
	if fields.After != nil {
		after = fmt.Sprint(fields.After)
	}
	if fields.Count != nil {
		q.count = *fields.Count
	}
	if fields.As != nil {
		q.form = *fields.As
	}
	v := r.URL.Query()
	if v.Has("count") {
		if q.count, err = strconv.Atoi(v.Get("count")); err != nil {
			return q, err
		}
	}
	if v.Has("as") {
		q.form = v.Get("as")
	}
	if v.Has("after") {
		after = v.Get("after")
	}
	if after != "" {
		if q.after, err = anyID(after); err != nil {
			return q, err
		}
	}
	q.token = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	_, known := server.ParseForm(q.form)
	if !known {
		return q, fmt.Errorf("there is no form %q", q.form)
	}
	return q, nil
}

// anyID returns the flake in an ID of any form.
func anyID(text string) (flake.ID, error) {
	switch len(text) {
	case 13:
		return flake.Parse(text)
	case 26:
		w, err := ulid.Parse(text)
		if err != nil {
			return 0, err
		}
		return w.Flake(flake.Default)
	case 36:
		w, err := ulid.ParseUUID(text)
		if err != nil {
			return 0, err
		}
		return w.Flake(flake.Default)
	}
	return flake.ParseInt(text)
}

// answer returns the body of an answer with IDs.
func (n *scripted) answer(q request, o outcome) []byte {
	form, _ := server.ParseForm(q.form)
	if o.act == "layout" {
		form ^= 1 // a flake in place of an integer, a UUID in place of a ULID, and so on
	}
	var ids []any
	for i, id := range o.ids {
		text := string(form.Append(nil, id, flake.Default, uint64(i)))
		if o.act == "numbers" {
			ids = append(ids, json.Number(strconv.FormatInt(id.Int64(), 10)))
		} else {
			ids = append(ids, text)
		}
	}
	body, err := json.Marshal(map[string]any{"ids": ids, "node": fmt.Sprint("node-", n.sid), "sid": n.sid})
	if err != nil {
		panic("conformance: " + err.Error())
	}
	return body
}

// problem answers with a refusal.
func problem(c net.Conn, r node.Reason, detail string, retry time.Duration, meta map[string]string) bool {
	w := server.WireOf(r)
	p := map[string]any{
		"type":   "about:blank",
		"title":  w.Title,
		"status": w.Status,
		"detail": detail,
		"reason": r.String(),
		"help":   w.Help,
	}
	if r == node.InvalidCount {
		p["metadata"] = meta
	}
	var headers []string
	if retry > 0 {
		p["retry_after_ms"] = retry.Milliseconds()
		headers = append(headers, fmt.Sprintf("Retry-After: %d", (retry.Milliseconds()+999)/1000))
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic("conformance: " + err.Error())
	}
	return send(c, w.Status, asProblem, body, headers)
}

// send writes a whole answer. It reports whether the connection goes on.
func send(c net.Conn, code int, kind string, body []byte, headers []string) bool {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-store\r\n",
		code, http.StatusText(code), kind, len(body))
	for _, h := range headers {
		b.WriteString(h + "\r\n")
	}
	b.WriteString("\r\n")
	_, err := io.WriteString(c, b.String()+string(body))
	return err == nil
}
