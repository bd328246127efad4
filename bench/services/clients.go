package services

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "github.com/flakelease/allocator/api/allocator/v1"
)

// line is a connection with a buffer to read from.
type line struct {
	net.Conn
	r *bufio.Reader
}

func dial(addr string) (line, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return line{}, err
	}
	return line{c, bufio.NewReaderSize(c, 64<<10)}, nil
}

func (l line) close() { _ = l.Conn.Close() }

// tcpCaller sends 8 bytes, pipe times at once, and reads as many back.
func tcpCaller(addr string, pipe int) (Caller, error) {
	l, err := dial(addr)
	if err != nil {
		return Caller{}, err
	}
	out, in := make([]byte, 8*pipe), make([]byte, 8*pipe)
	return Caller{func() (int, error) {
		if _, err := l.Write(out); err != nil {
			return 0, err
		}
		_, err := io.ReadFull(l.r, in)
		return pipe, err
	}, l.close}, nil
}

// httpCaller asks for count IDs by HTTP/1.1 on one connection.
func httpCaller(addr string, count int) (Caller, error) {
	l, err := dial(addr)
	if err != nil {
		return Caller{}, err
	}
	req := fmt.Appendf(nil, "POST /v1/ids?count=%d HTTP/1.1\r\nHost: %s\r\nContent-Length: 0\r\n\r\n", count, addr)
	return Caller{func() (int, error) {
		if _, err := l.Write(req); err != nil {
			return 0, err
		}
		first, err := l.r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		if !bytes.HasPrefix(first, []byte("HTTP/1.1 200 ")) {
			return 0, fmt.Errorf("services: %s answered %q", addr, first)
		}
		length := -1
		for {
			h, err := l.r.ReadSlice('\n')
			if err != nil {
				return 0, err
			}
			if len(h) <= 2 {
				break
			}
			if v, ok := bytes.CutPrefix(h, []byte("Content-Length: ")); ok {
				if length, err = strconv.Atoi(string(bytes.TrimSpace(v))); err != nil {
					return 0, err
				}
			}
		}
		if length < 0 {
			return 0, errors.New("services: an answer without a length")
		}
		_, err = l.r.Discard(length)
		return count, err
	}, l.close}, nil
}

// respCaller sends a command of the Redis protocol, pipe times at once. Each
// answer counts for perAnswer IDs.
func respCaller(addr string, pipe, perAnswer int, command ...string) (Caller, error) {
	l, err := dial(addr)
	if err != nil {
		return Caller{}, err
	}
	one := fmt.Appendf(nil, "*%d\r\n", len(command))
	for _, arg := range command {
		one = fmt.Appendf(one, "$%d\r\n%s\r\n", len(arg), arg)
	}
	out := bytes.Repeat(one, pipe)
	return Caller{func() (int, error) {
		if _, err := l.Write(out); err != nil {
			return 0, err
		}
		for range pipe {
			if err := skipReply(l.r); err != nil {
				return 0, err
			}
		}
		return pipe * perAnswer, nil
	}, l.close}, nil
}

// skipReply reads one answer of the Redis protocol. One that has come whole, a
// number or a short string, is stepped over where it lies: at a million
// answers a second the client would otherwise cost more than the servers.
func skipReply(r *bufio.Reader) error {
	b, err := r.Peek(max(r.Buffered(), 1))
	if err != nil {
		return err
	}
	if n := wholeReply(b); n > 0 {
		_, err := r.Discard(n)
		return err
	}
	head, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	switch head[0] {
	case ':', '+':
		return nil
	case '-':
		if bytes.Contains(head, []byte("ENTROPY_OVERFLOW")) {
			return ErrRefused
		}
		return fmt.Errorf("services: %s", bytes.TrimSpace(head))
	case '$':
		n, err := strconv.Atoi(string(bytes.TrimSpace(head[1:])))
		if err != nil || n < 0 {
			return fmt.Errorf("services: answer %q", head)
		}
		_, err = r.Discard(n + 2)
		return err
	case '*':
		n, err := strconv.Atoi(string(bytes.TrimSpace(head[1:])))
		if err != nil {
			return err
		}
		for range n {
			if err := skipReply(r); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("services: answer %q", head)
}

// wholeReply returns the length of the answer that b begins with, if that is a
// number or a string of two digits' length and there is all of it; else 0.
func wholeReply(b []byte) int {
	switch {
	case b[0] == ':':
		return bytes.IndexByte(b, '\n') + 1
	case len(b) > 5 && b[0] == '$' && b[3] == '\r' && b[1] >= '1' && b[1] <= '9' && b[2] >= '0' && b[2] <= '9':
		if n := 5 + 10*int(b[1]-'0') + int(b[2]-'0') + 2; n <= len(b) && b[n-1] == '\n' {
			return n
		}
	}
	return 0
}

// bytesCodec passes messages through as bytes, so that the client takes little of
// the processors that it shares with the servers.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	to := v.(*[]byte)
	*to = (*to)[:0]
	for _, b := range data {
		*to = append(*to, b.ReadOnlyData()...)
	}
	return nil
}

func dialGRPC(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{})))
}

// unaryCaller calls Allocate on a connection of its own.
func unaryCaller(addr string, count int) (Caller, error) {
	conn, err := dialGRPC(addr)
	if err != nil {
		return Caller{}, err
	}
	req, err := proto.Marshal(&pb.AllocateRequest{Count: int32(count)})
	if err != nil {
		return Caller{}, err
	}
	ctx, res := context.Background(), make([]byte, 0, 256)
	return Caller{func() (int, error) {
		err := conn.Invoke(ctx, pb.AllocatorService_Allocate_FullMethodName, &req, &res)
		if status.Code(err) == codes.ResourceExhausted {
			return 0, ErrRefused
		}
		if err == nil && (len(res) < 9 || res[0] != 0x09) {
			err = fmt.Errorf("services: answer %x", res)
		}
		return count, err
	}, func() { _ = conn.Close() }}, nil
}

// streamCaller sends pipe requests at once on a stream of its own.
func streamCaller(addr string, pipe, count int) (Caller, error) {
	conn, err := dialGRPC(addr)
	if err != nil {
		return Caller{}, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	stop := func() { cancel(); _ = conn.Close() }
	stream, err := conn.NewStream(ctx, &pb.AllocatorService_ServiceDesc.Streams[0],
		pb.AllocatorService_AllocateStream_FullMethodName)
	if err != nil {
		stop()
		return Caller{}, err
	}
	req, err := proto.Marshal(&pb.AllocateStreamRequest{Sequence: 1, Request: &pb.AllocateRequest{Count: int32(count)}})
	if err != nil {
		stop()
		return Caller{}, err
	}
	res := make([]byte, 0, 256)
	return Caller{func() (int, error) {
		for range pipe {
			if err := stream.SendMsg(&req); err != nil {
				return 0, err
			}
		}
		got := 0
		for range pipe {
			if err := stream.RecvMsg(&res); err != nil {
				return got, err
			}
			switch { // sequence 1, then a response or a refusal
			case len(res) > 4 && res[2] == 0x12:
				got += count
			case len(res) < 4 || res[2] != 0x1a:
				return got, fmt.Errorf("services: answer %x", res)
			}
		}
		if got == 0 {
			return 0, ErrRefused
		}
		return got, nil
	}, stop}, nil
}

// pgCaller runs a prepared statement of PostgreSQL by its extended protocol.
// setup runs before, and may fail: another caller did it.
func pgCaller(addr, setup, statement string) (Caller, error) {
	l, err := dial(addr)
	if err != nil {
		return Caller{}, err
	}
	message := func(b []byte, kind byte, body string) []byte {
		if kind != 0 {
			b = append(b, kind)
		}
		return append(binary.BigEndian.AppendUint32(b, uint32(4+len(body))), body...)
	}
	fail := func(err error) (Caller, error) { l.close(); return Caller{}, err }
	ask := func(b []byte) (rows int, err error) {
		if _, err := l.Write(b); err != nil {
			return 0, err
		}
		return pgAnswer(l.r)
	}
	if _, err := ask(message(nil, 0, "\x00\x03\x00\x00user\x00test\x00database\x00postgres\x00\x00")); err != nil {
		return fail(err)
	}
	if setup != "" {
		_, _ = ask(message(nil, 'Q', setup+"\x00"))
	}
	if _, err := ask(message(message(nil, 'P', "next\x00"+statement+"\x00\x00\x00"), 'S', "")); err != nil {
		return fail(err)
	}
	run := message(message(message(nil, 'B', "\x00next\x00\x00\x00\x00\x00\x00\x00"), 'E', "\x00\x00\x00\x00\x00"),
		'S', "")
	return Caller{func() (int, error) { return ask(run) }, l.close}, nil
}

// pgAnswer reads to the end of an answer, and counts its rows.
func pgAnswer(r *bufio.Reader) (rows int, err error) {
	var failed error
	for {
		var head [5]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return rows, err
		}
		n := int(binary.BigEndian.Uint32(head[1:])) - 4
		if head[0] == 'E' {
			b := make([]byte, n)
			if _, err := io.ReadFull(r, b); err != nil {
				return rows, err
			}
			failed = fmt.Errorf("services: postgres: %q", b)
			continue
		}
		if _, err := r.Discard(n); err != nil {
			return rows, err
		}
		switch head[0] {
		case 'D':
			rows++
		case 'Z': // ready for the next
			return rows, failed
		}
	}
}
