package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// The doors that a bench asks at.
const (
	viaGRPC   = "grpc"
	viaStream = "stream"
	viaHTTP   = "http"
	viaRESP   = "resp"
	viaSDK    = "sdk"
)

// doors returns what opens the door of a caller by its number, and what closes
// all they share. Nobody is contacted yet.
func (p benchPlan) doors(context.Context) (open func(i int) asker, closeAll func(), err error) {
	addr := func(i int) string { return p.addrs[i%len(p.addrs)] }
	for _, a := range p.addrs {
		if _, _, err := net.SplitHostPort(a); err != nil {
			return nil, nil, usage("--addr: %q is not host:port", a)
		}
	}
	none := func() {}
	switch p.via {
	case viaSDK:
		c, err := p.sdk()
		if err != nil {
			return nil, nil, usage("--via sdk: %w", err)
		}
		return func(int) asker { return sdkDoor{c} }, func() { _ = c.Close() }, nil
	case viaHTTP:
		return func(i int) asker { return p.httpDoor(addr(i)) }, none, nil
	case viaRESP:
		return func(i int) asker { return &respDoor{plan: p, addr: addr(i)} }, none, nil
	}
	conns := make([]*grpc.ClientConn, p.callers)
	closeAll = func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	}
	for i := range conns {
		if conns[i], err = p.dialer.dial(addr(i)); err != nil {
			closeAll()
			return nil, nil, err
		}
	}
	return func(i int) asker {
		c := pb.NewAllocatorServiceClient(conns[i])
		if p.via == viaStream {
			return &streamDoor{client: c}
		}
		return &unaryDoor{client: c, request: pb.AllocateRequest{}}
	}, closeAll, nil
}

// tlsConfig returns how to speak TLS to addr; nil: in clear.
func (p benchPlan) tlsConfig(addr string) *tls.Config {
	if p.dialer.tls == nil {
		return nil
	}
	c := p.dialer.tls.Config().Clone()
	if c.ServerName == "" {
		c.ServerName, _, _ = net.SplitHostPort(addr) // checked before
	}
	return c
}

func (p benchPlan) sdk() (*client.Client, error) {
	o := client.Options{Targets: p.addrs, Timeout: benchTimeout, TLS: p.tlsConfig(p.addrs[0])}
	if o.TLS != nil {
		o.TLS.ServerName = "" // each target's own
	}
	if p.dialer.token != "" {
		o.Token = func(context.Context) (string, error) { return p.dialer.token, nil }
		o.PlaintextToken = o.TLS == nil
	}
	return client.New(o)
}

// reasonOf returns a refusal as an error of doors; err itself if it is none.
func reasonOf(err error) error {
	if err == nil {
		return nil
	}
	if reason, _ := refusal(err); reason != "" {
		return &refusedError{reason}
	}
	return err
}

func blockOf(r *pb.AllocateResponse) answered {
	return answered{first: flake.ID(r.GetFirst()), count: int(r.GetCount()), stride: r.GetStride(), sid: flake.SID(r.GetSid())}
}

// counted returns d, or an error if it has not as many IDs as were asked for.
func counted(d answered, count int) (answered, error) {
	if d.size() != count {
		return answered{}, fmt.Errorf("%d IDs came where %d were asked for", d.size(), count)
	}
	return d, nil
}

// unaryDoor asks a request a call.
type unaryDoor struct {
	client  pb.AllocatorServiceClient
	request pb.AllocateRequest
}

func (u *unaryDoor) ask(ctx context.Context, count int) (answered, error) {
	u.request.Count = int32(count)
	r, err := u.client.Allocate(ctx, &u.request)
	if err != nil {
		return answered{}, reasonOf(err)
	}
	return counted(blockOf(r), count)
}

func (u *unaryDoor) close() {}

// streamDoor asks on one stream, and opens another when that ends.
type streamDoor struct {
	client   pb.AllocatorServiceClient
	stream   pb.AllocatorService_AllocateStreamClient
	cancel   context.CancelFunc
	sequence int64
}

func (s *streamDoor) ask(ctx context.Context, count int) (d answered, err error) {
	if s.stream == nil {
		var own context.Context
		own, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
		if s.stream, err = s.client.AllocateStream(own); err != nil {
			s.close()
			return answered{}, reasonOf(err)
		}
	}
	stop := context.AfterFunc(ctx, s.cancel) // the stream's own context outlives the request's
	defer stop()
	s.sequence++
	err = s.stream.Send(&pb.AllocateStreamRequest{Sequence: s.sequence, Request: &pb.AllocateRequest{Count: int32(count)}})
	var r *pb.AllocateStreamResponse
	if err == nil || errors.Is(err, io.EOF) { // why is for Recv to say
		r, err = s.stream.Recv()
	}
	switch {
	case err != nil:
		s.close()
		return answered{}, reasonOf(err)
	case r.GetSequence() != s.sequence:
		s.close()
		return answered{}, fmt.Errorf("the answer to request %d came to %d", r.GetSequence(), s.sequence)
	case r.GetRefusal() != nil:
		return answered{}, &refusedError{strings.TrimPrefix(r.GetRefusal().GetReason().String(), "REASON_")}
	}
	return counted(blockOf(r.GetResponse()), count)
}

func (s *streamDoor) close() {
	if s.cancel != nil {
		s.cancel()
	}
	s.stream, s.cancel = nil, nil
}

// sdkDoor asks the Go SDK's client, which all callers share.
type sdkDoor struct{ client *client.Client }

func (s sdkDoor) ask(ctx context.Context, count int) (answered, error) {
	var d answered
	var err error
	if count == 1 {
		d = answered{count: 1, stride: 1}
		d.first, err = s.client.Next(ctx)
	} else {
		var b client.Block
		b, err = s.client.Block(ctx, count)
		d = answered{first: b.First, count: b.Count, stride: b.Stride, sid: b.SID}
	}
	if r, ok := errors.AsType[*client.Refusal](err); ok {
		return answered{}, &refusedError{string(r.Reason)}
	}
	if err != nil {
		return answered{}, err
	}
	return counted(d, count)
}

func (s sdkDoor) close() {}

// httpDoor asks on one connection, kept open.
type httpDoor struct {
	client    *http.Client
	transport *http.Transport
	url       string
	token     string
	ids       []flake.ID
}

func (p benchPlan) httpDoor(addr string) *httpDoor {
	t := &http.Transport{TLSClientConfig: p.tlsConfig(addr), MaxIdleConnsPerHost: 1, DisableCompression: true}
	scheme := "http"
	if t.TLSClientConfig != nil {
		scheme = "https"
	}
	return &httpDoor{
		client: &http.Client{Transport: t}, transport: t, token: p.dialer.token,
		url: scheme + "://" + addr + "/v1/ids?count=" + strconv.Itoa(p.count),
	}
}

func (h *httpDoor) ask(ctx context.Context, count int) (answered, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, nil)
	if err != nil {
		return answered{}, err
	}
	req.Header.Set("Accept", "text/plain") // one a line: less to read than JSON
	if h.token != "" {
		req.Header.Set("Authorization", "Bearer "+h.token)
	}
	res, err := h.client.Do(req)
	if err != nil {
		return answered{}, err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return answered{}, err
	}
	if res.StatusCode != http.StatusOK {
		var problem struct{ Reason, Detail string }
		if json.Unmarshal(body, &problem) == nil && problem.Reason != "" {
			return answered{}, &refusedError{problem.Reason}
		}
		return answered{}, fmt.Errorf("status %s", res.Status)
	}
	h.ids = h.ids[:0]
	for line := range bytes.Lines(body) {
		id, err := flake.Parse(string(bytes.TrimSuffix(line, []byte("\n"))))
		if err != nil {
			return answered{}, err
		}
		h.ids = append(h.ids, id)
	}
	return counted(answered{list: h.ids}, count)
}

func (h *httpDoor) close() { h.transport.CloseIdleConnections() }

// respDoor asks on one connection of the Redis protocol.
type respDoor struct {
	plan    benchPlan
	addr    string
	conn    net.Conn
	r       *bufio.Reader
	command []byte
	ids     []flake.ID
}

func (d *respDoor) ask(ctx context.Context, count int) (answered, error) {
	if err := d.open(ctx, count); err != nil {
		d.close()
		return answered{}, err
	}
	if end, ok := ctx.Deadline(); ok {
		_ = d.conn.SetDeadline(end)
	}
	d.ids = d.ids[:0]
	_, err := d.conn.Write(d.command)
	if err == nil {
		err = d.read(0)
	}
	if _, refused := err.(*refusedError); err != nil && !refused {
		d.close()
	}
	if err != nil {
		return answered{}, err
	}
	return counted(answered{list: d.ids}, count)
}

// open connects, unless that was done before, and shows the token.
func (d *respDoor) open(ctx context.Context, count int) (err error) {
	if d.conn != nil {
		return nil
	}
	dial := net.Dialer{Timeout: 5 * time.Second}
	if cfg := d.plan.tlsConfig(d.addr); cfg != nil {
		d.conn, err = (&tls.Dialer{NetDialer: &dial, Config: cfg}).DialContext(ctx, "tcp", d.addr)
	} else {
		d.conn, err = dial.DialContext(ctx, "tcp", d.addr)
	}
	if err != nil {
		d.conn = nil
		return err
	}
	d.r = bufio.NewReaderSize(d.conn, 16<<10)
	d.command = appendCommand(nil, "ID.NEXT")
	if count > 1 {
		d.command = appendCommand(nil, "ID.NEXT", "COUNT", strconv.Itoa(count))
	}
	if d.plan.dialer.token == "" {
		return nil
	}
	if _, err := d.conn.Write(appendCommand(nil, "AUTH", d.plan.dialer.token)); err != nil {
		return err
	}
	line, err := d.r.ReadString('\n')
	if err == nil && line[0] != '+' {
		err = respError(line)
	}
	return err
}

func appendCommand(b []byte, words ...string) []byte {
	b = fmt.Appendf(b, "*%d\r\n", len(words))
	for _, w := range words {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b
}

// read reads an answer: one ID, or an array of them.
func (d *respDoor) read(depth int) error {
	line, err := d.r.ReadString('\n')
	if err != nil {
		return err
	}
	n, numberErr := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch {
	case line[0] == '-':
		return respError(line)
	case line[0] == '$' && numberErr == nil && n > 0 && n < 64:
		text, err := d.r.Peek(n)
		if err != nil {
			return err
		}
		id, err := flake.Parse(string(text))
		if err != nil {
			return err
		}
		d.ids = append(d.ids, id)
		_, err = d.r.Discard(n + 2)
		return err
	case line[0] == '*' && numberErr == nil && depth == 0 && n <= d.plan.count:
		for range n {
			if err := d.read(1); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("answer %.40q is none to ID.NEXT: is this a node?", line)
}

// respError returns an error that a node wrote: a code, then the reason where it
// is a refusal.
func respError(line string) error {
	words := strings.Fields(line[1:])
	for _, w := range words[:min(len(words), 2)] {
		if _, ok := pb.Reason_value["REASON_"+w]; ok {
			return &refusedError{w}
		}
	}
	return errors.New(strings.TrimSpace(line))
}

func (d *respDoor) close() {
	if d.conn != nil {
		_ = d.conn.Close()
		d.conn = nil
	}
}
