package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
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
)

// start is the time of the first IDs. Scripted nodes have no clock: IDs depend on requests alone.
var start = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// laterReason is no reason of this version.
const laterReason = "OF_A_LATER_VERSION"

// request is what a scripted node was asked.
type request struct {
	count int
	form  string
	after flake.ID
	token string // as sent; "": none
	lease lease  // what a worker said in a call
}

// scripted is a node that follows a script, over HTTP and over gRPC. All methods are safe for concurrent use.
type scripted struct {
	pb.UnimplementedAllocatorServiceServer
	pb.UnimplementedWorkerServiceServer
	sid    flake.SID
	secure *tls.Config // nil: plaintext
	work   sync.WaitGroup

	mu     sync.Mutex // guards the rest
	script []string   // what becomes of each request; the last one is for all later requests too
	asked  []request
	word   int64 // The last ID has it above the sid.
	marks  int   // requests for the watermark
	lent   lease // the worker that is held
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
//	space, unnamed   answers as a node of another space, or of one without a name
//	layout           answers with IDs of another layout (over HTTP: of another form)
//	numbers          answers with JSON numbers, which lose digits
//	text, html 502   answers with no JSON, or as a proxy does that has no node
//	huge             answers with text that does not end
//	unknown          refuses with a reason of a later version
//
// Calls of workers are requests too. There serve, late and
//
//	serve 100        answers that the worker is to be extended after 100 ms, in place of 20 s
//	space            does not know the worker: it is another space's
//	ahead 300        lends a number whose interval begins after 300 ms
//	other, back      answers for another worker, or with an end that went back
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
	done := make(chan struct{})
	n.open, n.done, n.listeners = map[net.Conn]bool{}, done, listeners
	n.http, n.rpc = listeners[0].Addr().String(), listeners[1].Addr().String()
	web := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { n.reply(w, r, done) }),
		ReadHeaderTimeout: whole,
		ErrorLog:          log.New(io.Discard, "", 0), // Some handshakes are to fail.
	}
	rpc := grpc.NewServer()
	pb.RegisterAllocatorServiceServer(rpc, n)
	pb.RegisterWorkerServiceServer(rpc, n)
	n.ends = []func(){func() { _ = web.Close() }, rpc.Stop}
	webs, rpcs := net.Listener(counted{listeners[0], n}), net.Listener(counted{listeners[1], n})
	if n.secure != nil {
		webs = tls.NewListener(webs, n.secure)
		secure := n.secure.Clone()
		secure.NextProtos = []string{"h2"}
		rpcs = tls.NewListener(rpcs, secure)
	}
	n.work.Go(func() { _ = web.Serve(webs) })
	n.work.Go(func() { _ = rpc.Serve(rpcs) })
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

// next notes a request and returns what the script says of it. n.mu is held.
func (n *scripted) next(r request) (o outcome) {
	n.asked = append(n.asked, r)
	words := strings.Fields(n.script[min(len(n.asked), len(n.script))-1])
	if o.act = words[0]; len(words) > 1 {
		o.arg = words[1]
	}
	if o.act == "refuse" {
		o.refuse, o.detail = node.ReasonOf(o.arg), "by script"
		if o.refuse == 0 {
			panic("conformance: there is no reason " + o.arg)
		}
		if len(words) > 2 {
			ms, _ := strconv.Atoi(words[2])
			o.retry = time.Duration(ms) * time.Millisecond
		}
	}
	return o
}

// decide notes a request for IDs and decides what becomes of it.
func (n *scripted) decide(r request, most int) (o outcome) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o = n.next(r)
	o.limit = most
	switch {
	case o.refuse != 0:
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
