package load

import (
	"bufio"
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
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/node"
)

// Kinds of clients.
const (
	GRPC   = "grpc"
	Stream = "stream"
	HTTP   = "http"
	RESP   = "resp"
	SDK    = "sdk"
)

// Config says how clients reach nodes. The zero Config is plaintext without a
// token.
type Config struct {
	TLS   *tls.Config // nil: plaintext; its ServerName may be empty. Only HTTP and RESP use it.
	Token string      // Only HTTP and RESP use it.
	// GRPC are the options of gRPC connections, with the transport's credentials
	// and the token; nil: plaintext.
	GRPC []grpc.DialOption
	Dial func(ctx context.Context, network, addr string) (net.Conn, error) // nil: net.Dialer's
	// Stride is that of all blocks. Where it is 0, an answer that lists IDs shows it.
	Stride int64
}

// Open returns a client with a connection of its own to the node at addr, of any
// kind but SDK. It connects with the first request, and again after the connection is
// lost.
func (c Config) Open(kind, addr string) (Client, error) {
	switch kind {
	case HTTP:
		t := &http.Transport{
			DialContext:         c.Dial,
			TLSClientConfig:     c.tls(addr),
			MaxIdleConnsPerHost: 1,
			DisableCompression:  true,
		}
		scheme := "http"
		if t.TLSClientConfig != nil {
			scheme = "https"
		}
		return &httpClient{
			config: c,
			client: &http.Client{Transport: t},
			url:    scheme + "://" + addr + "/v1/ids?count=",
		}, nil
	case RESP:
		return &respClient{config: c, addr: addr}, nil
	case GRPC, Stream:
	default:
		return nil, fmt.Errorf("load: no kind of client of one node is called %q", kind)
	}
	opts := c.GRPC
	if opts == nil {
		opts = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, append(c.dialer(), opts...)...)
	if err != nil {
		return nil, err
	}
	g := grpcClient{config: c, conn: conn, service: pb.NewAllocatorServiceClient(conn)}
	if kind == Stream {
		return &streamClient{grpcClient: g}, nil
	}
	return &g, nil
}

// OpenSDK returns a client of the Go SDK, which workers may share. It dials and checks as c says; o says all else.
func (c Config) OpenSDK(o client.Options) (Client, error) {
	o.DialOptions = append(o.DialOptions, c.dialer()...)
	s, err := client.New(o)
	if err != nil {
		return nil, err
	}
	return sdkClient{s, c, o.Mode}, nil
}

func (c Config) dialer() []grpc.DialOption {
	if c.Dial == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return c.Dial(ctx, "tcp", addr)
	})}
}

// tls returns how to speak TLS to addr; nil: plaintext.
func (c Config) tls(addr string) *tls.Config {
	if c.TLS == nil {
		return nil
	}
	own := c.TLS.Clone()
	if own.ServerName == "" {
		own.ServerName, _, _ = net.SplitHostPort(addr)
	}
	return own
}

// checked returns b, or an error if it is not an answer to r.
func (c Config) checked(b client.Block, r Request) (client.Block, error) {
	switch {
	case b.Count != r.Count:
		return b, fmt.Errorf("%w: requested %d IDs and got %d", ErrContract, r.Count, b.Count)
	case c.Stride > 0 && b.Stride != c.Stride:
		return b, fmt.Errorf("%w: a stride of %d, not %d", ErrContract, b.Stride, c.Stride)
	case b.Count > 1 && b.Stride < 1:
		return b, fmt.Errorf("%w: %d IDs with a stride of %d", ErrContract, b.Count, b.Stride)
	}
	return b, nil
}

// block collects IDs that an answer lists.
type block struct {
	client.Block
	next flake.ID
}

// add appends the ID written in text. The difference of the first two is the
// stride, unless that is known.
func (b *block) add(text string) error {
	id, err := flake.Parse(text)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %.40q: %w", ErrContract, text, err)
	case b.Count == 0:
		b.First = id
	case b.Count == 1 && b.Stride == 0:
		b.Stride = int64(id - b.First)
	case id != b.next:
		return fmt.Errorf("%w: ID %d is %v, not %v", ErrContract, b.Count, id, b.next)
	}
	b.Count, b.next = b.Count+1, id+flake.ID(b.Stride)
	return nil
}

// grpcClient sends one request a call.
type grpcClient struct {
	config  Config
	conn    *grpc.ClientConn
	service pb.AllocatorServiceClient
}

func (g *grpcClient) Close() { _ = g.conn.Close() }

func (g *grpcClient) Allocate(ctx context.Context, r Request) (client.Block, error) {
	res, err := g.service.Allocate(ctx, &pb.AllocateRequest{Count: int32(r.Count), After: int64(r.After)})
	if err != nil {
		return client.Block{}, refusalOr(err)
	}
	return g.config.checked(blockOf(res), r)
}

func blockOf(r *pb.AllocateResponse) client.Block {
	return client.Block{
		First:  flake.ID(r.GetFirst()),
		Count:  int(r.GetCount()),
		Stride: r.GetStride(),
		SID:    flake.SID(r.GetSid()),
		Node:   r.GetNode(),
	}
}

// refusalOr returns the refusal in an error of gRPC, or the error if it is none.
func refusalOr(err error) error {
	if r := client.RefusalOf(err, ""); r != nil {
		return r
	}
	return err
}

// streamClient keeps one stream open, and opens another when that has ended.
type streamClient struct {
	grpcClient
	stream   pb.AllocatorService_AllocateStreamClient
	cancel   context.CancelFunc
	sequence int64
}

func (s *streamClient) Close() {
	s.end()
	s.grpcClient.Close()
}

func (s *streamClient) end() {
	if s.cancel != nil {
		s.cancel()
	}
	s.stream, s.cancel = nil, nil
}

func (s *streamClient) Allocate(ctx context.Context, r Request) (client.Block, error) {
	b, err := s.exchange(ctx, r)
	if _, refused := errors.AsType[*client.Refusal](err); err == nil || refused && s.stream != nil {
		return b, err
	}
	s.end()
	if ctx.Err() != nil { // the stream says that it was canceled
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return b, err
}

func (s *streamClient) exchange(ctx context.Context, r Request) (client.Block, error) {
	old := s.stream != nil
	stop, err := s.send(ctx, r)
	if err != nil && old && ctx.Err() == nil {
		// It ended while it was idle, which says nothing about the node now. No request
		// was sent.
		s.end()
		stop, err = s.send(ctx, r)
	}
	if err != nil {
		return client.Block{}, refusalOr(err)
	}
	defer stop()
	res, err := s.stream.Recv()
	switch {
	case err != nil:
		s.end()
		return client.Block{}, refusalOr(err)
	case res.GetSequence() != s.sequence:
		return client.Block{}, fmt.Errorf("%w: answer %d to request %d", ErrContract, res.GetSequence(), s.sequence)
	case res.GetRefusal() != nil:
		refusal := res.GetRefusal()
		return client.Block{}, &client.Refusal{
			Reason:     client.Reason(node.Reason(refusal.GetReason()).String()),
			Message:    refusal.GetMessage(),
			RetryAfter: time.Duration(refusal.GetRetryAfterMs()) * time.Millisecond,
		}
	}
	return s.config.checked(blockOf(res.GetResponse()), r)
}

// send sends a request, and opens a stream first if there is none. stop ends what
// cancels the stream with ctx.
func (s *streamClient) send(ctx context.Context, r Request) (stop func() bool, err error) {
	if s.stream == nil {
		var own context.Context // the stream outlives the request
		own, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
		if s.stream, err = s.service.AllocateStream(own); err != nil {
			return nil, err
		}
	}
	stop = context.AfterFunc(ctx, s.cancel)
	s.sequence++
	if err := s.stream.Send(&pb.AllocateStreamRequest{
		Sequence: s.sequence,
		Request:  &pb.AllocateRequest{Count: int32(r.Count), After: int64(r.After)},
	}); err != nil {
		stop()
		_, err = s.stream.Recv() // Send says only that the stream has ended; Recv says why
		return nil, err
	}
	return stop, nil
}

// sdkClient is the Go SDK's.
type sdkClient struct {
	*client.Client
	config Config
	mode   client.Mode
}

func (s sdkClient) Close() { _ = s.Client.Close() }

func (s sdkClient) Allocate(ctx context.Context, r Request) (client.Block, error) {
	if r.Count == 1 && s.mode == client.Prefetch { // IDs fetched before need no block
		id, err := s.Next(ctx)
		return client.Block{First: id, Count: 1}, err
	}
	b, err := s.Block(ctx, r.Count)
	if err != nil {
		return client.Block{}, err
	}
	return s.config.checked(b, r)
}

// httpClient takes IDs as text, one a line, on one connection.
type httpClient struct {
	config Config
	client *http.Client
	url    string
}

func (h *httpClient) Close() { h.client.CloseIdleConnections() }

func (h *httpClient) Allocate(ctx context.Context, r Request) (client.Block, error) {
	url := h.url + strconv.Itoa(r.Count)
	if r.After > 0 {
		url += "&after=" + r.After.String()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return client.Block{}, err
	}
	req.Header.Set("Accept", "text/plain")
	if h.config.Token != "" {
		req.Header.Set("Authorization", "Bearer "+h.config.Token)
	}
	res, err := h.client.Do(req)
	if err != nil {
		return client.Block{}, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		return client.Block{}, problem(res)
	}
	b := block{Block: client.Block{Stride: h.config.Stride}}
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() && lines.Err() == nil { // After an error the last line may be half of one.
		if err := b.add(lines.Text()); err != nil {
			return client.Block{}, err
		}
	}
	if lines.Err() != nil {
		return client.Block{}, lines.Err()
	}
	return h.config.checked(b.Block, r)
}

// problem returns the refusal in an answer, or an error if it has none.
func problem(res *http.Response) error {
	var p struct{ Reason, Detail string }
	err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&p)
	_, syntax := errors.AsType[*json.SyntaxError](err)
	switch {
	case syntax || err == nil && p.Reason == "":
		return fmt.Errorf("%w: status %s without a problem document", ErrContract, res.Status)
	case err != nil: // cut off
		return err
	}
	seconds, _ := strconv.Atoi(res.Header.Get("Retry-After"))
	return &client.Refusal{
		Reason:     client.Reason(p.Reason),
		Message:    p.Detail,
		RetryAfter: time.Duration(seconds) * time.Second,
	}
}

// respClient speaks the Redis protocol on one connection.
type respClient struct {
	config Config
	addr   string
	conn   net.Conn
	r      *bufio.Reader
	out    []byte
}

func (c *respClient) Close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

func (c *respClient) Allocate(ctx context.Context, r Request) (client.Block, error) {
	b, err := c.exchange(ctx, r)
	if _, refused := errors.AsType[*client.Refusal](err); err != nil && !refused {
		c.Close()
	}
	if err != nil {
		return client.Block{}, err
	}
	return c.config.checked(b, r)
}

func (c *respClient) exchange(ctx context.Context, r Request) (client.Block, error) {
	if err := c.open(ctx); err != nil {
		return client.Block{}, err
	}
	end, _ := ctx.Deadline()
	conn := c.conn            // It may be another, or none, when the function below runs.
	_ = conn.SetDeadline(end) // zero: there is none
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	args := []string{"ID.NEXT", "COUNT", strconv.Itoa(r.Count), "AFTER", r.After.String()}
	switch {
	case r.After > 0:
	case r.Count > 1:
		args = args[:3]
	default:
		args = args[:1]
	}
	c.out = appendCommand(c.out[:0], args...)
	if _, err := c.conn.Write(c.out); err != nil {
		return client.Block{}, err
	}
	b := block{Block: client.Block{Stride: c.config.Stride}}
	err := readIDs(c.r, &b, r.Count)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return b.Block, err
}

// open connects, unless that was done before, and shows the token.
func (c *respClient) open(ctx context.Context) (err error) {
	if c.conn != nil {
		return nil
	}
	dial := c.config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	}
	if c.conn, err = dial(ctx, "tcp", c.addr); err != nil {
		c.conn = nil
		return err
	}
	if cfg := c.config.tls(c.addr); cfg != nil {
		secure := tls.Client(c.conn, cfg)
		c.conn = secure
		if err := secure.HandshakeContext(ctx); err != nil {
			return err
		}
	}
	c.r = bufio.NewReaderSize(c.conn, 16<<10)
	if c.config.Token == "" {
		return nil
	}
	if _, err := c.conn.Write(appendCommand(nil, "AUTH", c.config.Token)); err != nil {
		return err
	}
	line, err := c.r.ReadString('\n')
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

// readIDs reads an answer: one ID, or an array of at most limit.
func readIDs(r *bufio.Reader, b *block, limit int) error {
	line, err := r.ReadString('\n')
	if err != nil {
		return err
	}
	n, numberErr := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch {
	case line[0] == '-':
		return respError(line)
	case line[0] == '$' && numberErr == nil && n > 0 && n < 64:
		text, err := r.Peek(n)
		if err != nil {
			return err
		}
		if err := b.add(string(text)); err != nil {
			return err
		}
		_, err = r.Discard(n + 2)
		return err
	case line[0] == '*' && numberErr == nil && n <= limit:
		for range n {
			if err := readIDs(r, b, 0); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("%w: %.40q is not an answer to ID.NEXT: is this a node?", ErrContract, line)
}

// respError returns an error that a node wrote: a code, then the reason where it
// is a refusal.
func respError(line string) error {
	line = strings.TrimSpace(line[1:])
	words := strings.Fields(line)
	for _, w := range words[:min(len(words), 2)] {
		if node.ReasonOf(w) != 0 {
			return &client.Refusal{Reason: client.Reason(w), Message: line}
		}
	}
	return errors.New(line)
}
