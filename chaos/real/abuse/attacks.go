package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/lease"
)

// attack is one entry of the suite.
type attack struct {
	name  string
	sends string // what the table says
	run   func(context.Context, *attacker)
	with
}

// with is what few attacks need.
type with struct {
	short   bool // part of the short profile
	clear   bool // The node has no TLS, so that the event loop serves RESP.
	socket  bool // RESP is on a Unix socket, whose callers are one source: all have the same user.
	sources int  // addresses it comes from; 0 is one
	args    []string
}

// conns runs f on n connections at once.
func conns(n int, f func(*attacker, context.Context) error) func(context.Context, *attacker) {
	return func(ctx context.Context, a *attacker) {
		each(ctx, n, func(ctx context.Context) error { return f(a, ctx) })
	}
}

// attacks are all there are, in the order of the table.
var attacks = []attack{
	{"gossip-sealed", "64 connections to the gossip port, each a sealed stream that announces 20 MiB and sends zeros",
		conns(64, gossip(10, binary.BigEndian.AppendUint32(nil, 20<<20), 20<<20)), with{short: true}},
	{"gossip-clear", "64 connections to the gossip port of a node without a key, each a list of a million members in " +
		"49 bytes",
		conns(64, gossip(6, []byte("\x83\xa5Nodes\xd2\x00\x0f\xff\xff\xacUserStateLen\x00\xa4Join\xc3"), 0)),
		with{args: []string{"--gossip.key-file", ""}}},
	{"gossip-idle", "400 connections to the gossip port that send a label and nothing else",
		conns(400, gossip(-1, nil, 0)), with{}},
	{"gossip-packets", "forged packets to the gossip port as fast as they go", conns(2, gossipPackets), with{}},

	{"grpc-unfinished", "30 gRPC connections, each with 100 messages of 4 MiB begun and not ended, without a token",
		conns(30, grpcUnfinished), with{short: true}},
	{"stream-unread", "30 connections of a caller with a token, each with 100 ID streams of requests whose answers " +
		"are not read", conns(30, streamUnread), with{short: true}},
	{"streams-unread", "40 connections, each with 250 ID streams of which 16 are served, whose windows are ignored",
		conns(40, streamsUnread), with{}},
	{"texts-unread", "30 connections, each with 100 calls for 10,000 texts whose answers are not read",
		conns(30, textsUnread(0)), with{short: true}},
	{"texts-unread-paid", "the same, with 20 valid calls for each of them", conns(30, textsUnread(20)), with{}},
	{"reflection-unread", "30 connections, each with 100 streams of reflection whose answers are not read",
		conns(30, reflectionUnread), with{}},
	{"cluster-unread", "30 gRPC connections, each with 100 calls for the cluster of 2,040 nodes whose answers are " +
		"not read", crowded(conns(30, pressed(calls(100, cluster, nil)))), with{}},
	{"cluster-unread-http", "1,000 HTTP connections that ask for the cluster of 2,040 nodes and do not read the answer",
		crowded(conns(1000, clusterUnreadHTTP)), with{}},
	{"watch-unread", "60 gRPC connections, each with 16 streams of events whose answers are not read, of 2,040 nodes",
		crowded(conns(60, pressed(calls(16, watch, nil)))), with{}},
	{"wm-watch-grpc", "1,000 gRPC connections from 8 addresses, each with 16 streams of the watermark, of one caller",
		conns(1000, kept(watchMark)), with{sources: 8}},
	{"wm-watch-unread", "600 such connections whose windows are 0", conns(600, pressed(watchMark)), with{sources: 8}},
	{"wm-wait-grpc", "400 gRPC connections from 8 addresses, each with 100 calls that wait a minute for the watermark",
		conns(400, kept(waitMark)), with{sources: 8}},
	{"http2-bodies", "200 HTTP/2 connections, each with 250 bodies begun and not ended, without a token",
		conns(200, http2Bodies), with{short: true}},
	{"resp-unfinished", "3,000 RESP connections, each with 64 KiB of a command that does not end",
		conns(3000, respUnfinished), with{}},
	{"resp-unread", "64 RESP connections without TLS of a caller with a token that pipeline requests for 100 IDs and " +
		"read no answer", conns(64, plain(toRESP, respUnread)), with{clear: true}},
	{"resp-slow", "3,000 RESP connections without TLS that send a byte of a command every second",
		conns(3000, plain(toRESP, respSlow)), with{clear: true}},
	{"slots-socket", "5,000 connections to a Unix socket for RESP that send nothing, of the honest callers' user",
		conns(5000, plain(toSocket, begin(nil))), with{clear: true, socket: true}},

	{"resets-1", "HTTP/2 requests without a token, each reset at once, on 1 gRPC connection", conns(1, resets), with{}},
	{"resets-2", "the same on 2 connections", conns(2, resets), with{}},
	{"resets-4", "the same on 4 connections", conns(4, resets), with{}},
	{"resets-8", "the same on 8 connections", conns(8, resets), with{short: true}},
	{"resets-http", "the same on 8 connections to the HTTP port", conns(8, resetsHTTP), with{}},
	{"settings", "SETTINGS frames on 8 gRPC connections, whose acks are not read",
		conns(8, settings), with{short: true}},
	{"pings", "PING frames on 8 gRPC connections, whose acks are not read", conns(8, pings), with{}},
	{"settings-http", "SETTINGS frames on 8 connections to the HTTP port, whose acks are not read",
		conns(8, settingsHTTP), with{}},
	{"malformed-headers", "requests with malformed header fields on 8 gRPC connections",
		conns(8, malformedHeaders), with{}},
	{"continuation", "header blocks of endless CONTINUATION frames on 8 gRPC connections",
		conns(8, continuation), with{}},
	{"header-bombs", "header fields of 1 MiB, and HPACK references to them, on 8 gRPC connections",
		conns(8, headerBombs), with{}},

	{"right-auth", "pipelined AUTH with a right token on 8 RESP connections, of a node with 1,000 tokens",
		conns(8, secure(toRESP, rightAuth)), with{short: true}},
	{"resp-pings", "pipelined PING of a caller with a token on 8 RESP connections",
		conns(8, secure(toRESP, afterAuth("PING\r\n"))), with{}},
	{"resp-info", "pipelined INFO of a caller with a token on 8 RESP connections",
		conns(8, secure(toRESP, afterAuth("INFO\r\n"))), with{}},
	{"wrong-auth", "pipelined AUTH with a wrong token on 8 RESP connections",
		conns(8, secure(toRESP, repeat("AUTH wrong-token-wrong-token\r\n", 512))), with{short: true}},
	{"malformed-next", "pipelined ID.NEXT of a caller with a token, with arguments that are none, on 8 RESP " +
		"connections", conns(8, secure(toRESP, afterAuth("ID.NEXT COUNT x\r\n"))), with{}},
	{"wrong-token", "gRPC calls with a wrong token on 8 connections", conns(8, wrongToken), with{}},
	{"wrong-token-http", "HTTP/1.1 requests with a wrong token, pipelined, on 8 connections",
		conns(8, secure(toHTTP, repeat("POST /v1/ids?count=1 HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer wrong\r\n"+
			"Content-Length: 0\r\n\r\n", 16), "http/1.1")), with{}},
	{"metrics", "pipelined GET /metrics on 16 connections to the admin port",
		conns(16, plain(toAdmin, repeat("GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n", 16))), with{short: true}},
	{"handshakes", "TLS handshakes, each on a new connection, 8 at a time", conns(8, handshakes), with{}},

	{"slots-grpc", "5,000 TLS connections to the gRPC port that answer pings and call nothing",
		conns(5000, slots(toGRPC)), with{short: true}},
	{"slots-http", "5,000 TLS connections to the HTTP port that answer pings and request nothing",
		conns(5000, slots(toHTTP)), with{}},
	{"slots-resp", "5,000 TLS connections to the RESP port that send nothing",
		conns(5000, secure(toRESP, begin(nil))), with{}},
	{"slots-admin", "5,000 connections to the admin port that send a request line every second and end none",
		conns(5000, plain(toAdmin, slowly("GET /livez HTTP/1.1\r\nHost: node\r\n"))), with{short: true}},
	{"slots-sources", "5,000 connections to the gRPC port as above, from 200 addresses",
		conns(5000, slots(toGRPC)), with{sources: 200}},
	{"slots-valid", "4,096 connections to the gRPC and HTTP ports from 2 addresses, with one valid call on each",
		conns(4096, slotsValid), with{short: true, sources: 2}},
	{"admin-pages", "256 live pages on the admin port, from 4 addresses",
		conns(256, plain(toAdmin, livePage("/console/feed?page=nodes"))), with{short: true, sources: 4}},
	{"events-all", "1,024 streams of events by HTTP of one caller",
		conns(1024, secure(toHTTP, livePage("/v1/events"), "http/1.1")), with{}},
	{"half-open", "5,000 connections to the HTTP port that begin a TLS handshake and stop",
		// A ClientHello of 508 bytes that ends early.
		conns(5000, plain(toHTTP, begin([]byte{22, 3, 1, 2, 0, 1, 0, 1, 0xfc}))), with{}},
	{"slowloris", "2,000 HTTP/1.1 requests that get a header field a second",
		conns(2000, secure(toHTTP, slowly("POST /v1/ids HTTP/1.1\r\nHost: node\r\n"), "http/1.1")), with{}},
	{"registrations", "20,000 registrations in etcd without a process", registrations, with{}},
	{"json-bombs", "HTTP/1.1 requests with bodies of nested JSON and of gzip, on 16 connections",
		conns(16, secure(toHTTP, jsonBombs, "http/1.1")), with{}},
}

// Ports of the node.
func toGRPC(a *attacker) string   { return a.GRPC }
func toHTTP(a *attacker) string   { return a.HTTP }
func toRESP(a *attacker) string   { return a.RESP }
func toAdmin(a *attacker) string  { return a.Admin }
func toGossip(a *attacker) string { return a.Gossip }
func toSocket(a *attacker) string { return a.Socket }

// plain opens a connection without TLS and does f with it.
func plain(port func(*attacker) string,
	f func(context.Context, *attacker, net.Conn) error) func(*attacker, context.Context) error {
	return func(a *attacker, ctx context.Context) error {
		conn, err := a.dial(ctx, port(a))
		if err != nil {
			return err
		}
		defer conn.Close()
		return f(ctx, a, conn)
	}
}

// secure opens a connection with TLS and does f with it.
func secure(port func(*attacker) string, f func(context.Context, *attacker, net.Conn) error,
	protocols ...string) func(*attacker, context.Context) error {
	return func(a *attacker, ctx context.Context) error {
		conn, err := a.dialTLS(ctx, port(a), protocols...)
		if err != nil {
			return err
		}
		defer conn.Close()
		return f(ctx, a, conn)
	}
}

// onH2 opens an HTTP/2 connection, whose frames are read if read is set, and does f with it.
func onH2(port func(*attacker) string, read bool, f func(*h2) error,
	settings ...http2.Setting) func(*attacker, context.Context) error {
	return func(a *attacker, ctx context.Context) error {
		c, err := a.h2To(ctx, port(a), read, settings...)
		if err != nil {
			return err
		}
		defer c.close()
		return f(c)
	}
}

// begin sends b, which begins something, and waits until the node closes.
func begin(b []byte) func(context.Context, *attacker, net.Conn) error {
	return beginAs(func(*attacker) []byte { return b })
}

// beginAs is begin with what depends on the node's tokens.
func beginAs(text func(*attacker) []byte) func(context.Context, *attacker, net.Conn) error {
	return func(ctx context.Context, a *attacker, conn net.Conn) error {
		if _, err := conn.Write(text(a)); err != nil {
			return err
		}
		a.units.Add(1)
		return hold(ctx, conn)
	}
}

// gossip opens a stream with a label and a message of a kind.
func gossip(kind int, head []byte, size int) func(*attacker, context.Context) error {
	return plain(toGossip, func(ctx context.Context, a *attacker, conn net.Conn) error {
		b := append([]byte{244, byte(len(a.Label))}, a.Label...)
		if kind >= 0 {
			b = append(append(b, byte(kind)), head...)
		}
		_, err := conn.Write(b)
		zeros := make([]byte, 64<<10)
		for left := size; left > 0 && err == nil; left -= len(zeros) {
			_, err = conn.Write(zeros)
		}
		a.units.Add(1)
		if err == nil {
			err = hold(ctx, conn)
		}
		return err
	})
}

func gossipPackets(a *attacker, ctx context.Context) error {
	conn, err := net.Dial("udp", a.Gossip)
	if err != nil {
		return err
	}
	defer conn.Close()
	b := append(append([]byte{244, byte(len(a.Label))}, a.Label...), make([]byte, 600)...)
	b[2+len(a.Label)] = 1 // the version of the seal
	for ctx.Err() == nil && a.limit.WaitN(ctx, len(b)) == nil {
		_, _ = conn.Write(b)
		a.units.Add(1)
		a.bytes.Add(int64(len(b)))
	}
	return nil
}

var grpcUnfinished = onH2(toGRPC, true, func(c *h2) error {
	var streams []uint32
	for range 100 {
		id, err := c.call("Allocate", "")
		if err != nil {
			return err
		}
		// A message of 4 MiB less a little, which is not compressed.
		if _, err := c.write(id, binary.BigEndian.AppendUint32([]byte{0}, 4<<20-64)); err != nil {
			return err
		}
		streams = append(streams, id)
	}
	return c.fill(streams)
})

// fill sends on all streams what their windows allow, forever.
func (c *h2) fill(streams []uint32) error {
	return c.sendAll(streams, func(id uint32) (int, error) { return c.data(id, 16<<10) })
}

// sendAll sends on all streams again and again. send returns how much it sent; if that is
// nothing on any stream, a window has to grow first.
func (c *h2) sendAll(streams []uint32, send func(id uint32) (int, error)) error {
	for {
		moved := 0
		for _, id := range streams {
			n, err := send(id)
			if err != nil {
				return err
			}
			moved += n
		}
		if err := c.flush(); err != nil {
			return err
		}
		if moved == 0 {
			if err := c.room(); err != nil {
				return err
			}
		}
	}
}

// request is a message of an ID stream that asks for 1 ID.
var request = []byte{0, 0, 0, 0, 6, 0x08, 1, 0x12, 2, 0x08, 1}

var streamUnread = onH2(toGRPC, true, func(c *h2) error {
	var streams []uint32
	for range 100 {
		id, err := c.call("AllocateStream", c.a.Token)
		if err != nil {
			return err
		}
		streams = append(streams, id)
	}
	many := bytes.Repeat(request, 1024)
	return c.sendAll(streams, func(id uint32) (int, error) {
		c.mu.Lock()
		fits := min(c.windows[id], c.conWin) >= int64(len(many))
		c.mu.Unlock()
		if !fits {
			return 0, nil
		}
		return c.write(id, many)
	})
})

// kept does f and keeps the connection to the gRPC port.
func kept(f func(*h2) error, settings ...http2.Setting) func(*attacker, context.Context) error {
	return onH2(toGRPC, true, func(c *h2) error {
		if err := f(c); err != nil {
			return err
		}
		for c.room() == nil {
		}
		return c.fail(c.ctx.Err())
	}, settings...)
}

// pressed is kept with windows of 0: no part of an answer is taken.
func pressed(f func(*h2) error) func(*attacker, context.Context) error {
	return kept(f, http2.Setting{ID: http2.SettingInitialWindowSize})
}

// unary makes a call with a message, which is empty if it is nil.
func (c *h2) unary(path, token string, message []byte) (id uint32, err error) {
	if id, err = c.callPath(path, token); err != nil {
		return 0, err
	}
	b := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	return id, c.do(func(fr *http2.Framer) error { return errors.Join(fr.WriteData(id, true, b), c.w.Flush()) })
}

// Paths of methods.
const (
	allocate = "/allocator.v1.AllocatorService/Allocate"
	cluster  = "/allocator.v1.AdminService/GetCluster"
	watch    = "/allocator.v1.AdminService/WatchEvents"

	watchWatermark = "/allocator.v1.AllocatorService/WatchWatermark"
	getWatermark   = "/allocator.v1.AllocatorService/GetWatermark"

	reflect = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
)

// textsUnread asks for texts, with valid calls for one ID before each.
func textsUnread(paid int) func(*attacker, context.Context) error {
	return pressed(func(c *h2) error {
		for range 100 {
			for range paid {
				id, err := c.unary(allocate, c.a.Token, []byte{0x08, 1})
				if err == nil {
					err = c.do(func(fr *http2.Framer) error { return fr.WriteWindowUpdate(id, 1000) })
				}
				if err != nil {
					return err
				}
			}
			// count: 10,000, form: FORM_UUID
			if _, err := c.unary(allocate, c.a.Token, []byte{0x08, 0x90, 0x4e, 0x18, 4}); err != nil {
				return err
			}
		}
		return nil
	})
}

// calls makes n calls of a caller that may read, with a message.
func calls(n int, path string, message []byte) func(*h2) error {
	return func(c *h2) error {
		for range n {
			if _, err := c.unary(path, c.a.Reader, message); err != nil {
				return err
			}
		}
		return nil
	}
}

// watchMark opens as many streams of the watermark as a connection may have.
var watchMark = calls(16, watchWatermark, nil)

// waitMark waits for the watermark of the next hour in as many calls as a connection may have.
func waitMark(c *h2) error {
	id, err := flake.Default.Min(time.Now().Add(time.Hour).UnixMilli())
	if err != nil {
		return err
	}
	m, err := proto.Marshal(&pb.GetWatermarkRequest{After: id.Int64(), WaitMs: time.Minute.Milliseconds()})
	if err != nil {
		return err
	}
	return calls(100, getWatermark, m)(c)
}

var reflectionUnread = pressed(func(c *h2) error {
	symbol := "allocator.v1.AllocatorService"
	m := append([]byte{0x22, byte(len(symbol))}, symbol...) // file_containing_symbol
	one := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(m))), m...)
	for range 100 {
		id, err := c.callPath(reflect, c.a.Reader)
		if err != nil {
			return err
		}
		if _, err := c.write(id, bytes.Repeat(one, 300)); err != nil {
			return err
		}
	}
	return c.flush()
})

// getRequest has a path and a token.
const getRequest = "GET %s HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer %s\r\n\r\n"

func clusterUnreadHTTP(a *attacker, ctx context.Context) error {
	return secure(toHTTP, func(ctx context.Context, a *attacker, conn net.Conn) error {
		_, err := fmt.Fprintf(conn, getRequest, "/v1/cluster", a.Reader)
		a.units.Add(1)
		if err == nil {
			<-ctx.Done()
		}
		return err
	}, "http/1.1")(a, ctx)
}

// crowded is an attack on a node that sees 2,040 others.
func crowded(f func(context.Context, *attacker)) func(context.Context, *attacker) {
	return func(ctx context.Context, a *attacker) {
		var both sync.WaitGroup
		both.Go(func() { register(ctx, a, 2040) })
		f(ctx, a)
		both.Wait()
	}
}

var streamsUnread = onH2(toGRPC, true, func(c *h2) error {
	many := bytes.Repeat(request, 1024)
	var streams []uint32
	for range 250 {
		id, err := c.call("AllocateStream", c.a.Token)
		if err != nil {
			return err
		}
		streams = append(streams, id)
	}
	return c.sendAll(streams, func(id uint32) (int, error) {
		err := c.do(func(fr *http2.Framer) error { return fr.WriteData(id, false, many) })
		return len(many), err
	})
})

// livePage follows a stream of events and reads it.
func livePage(path string) func(context.Context, *attacker, net.Conn) error {
	return beginAs(func(a *attacker) []byte { return fmt.Appendf(nil, getRequest, path, a.Reader) })
}

// slotsValid makes one valid call on a connection, and keeps it.
func slotsValid(a *attacker, ctx context.Context) error {
	if a.next.Load()/int64(a.sources)%2 == 0 {
		return kept(func(c *h2) error {
			_, err := c.unary(allocate, c.a.Token, []byte{0x08, 1})
			return err
		})(a, ctx)
	}
	return secure(toHTTP, beginAs(func(a *attacker) []byte {
		return fmt.Appendf(nil, "POST /v1/ids HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer %s\r\n"+
			"Content-Length: 0\r\n\r\n", a.Token)
	}), "http/1.1")(a, ctx)
}

var http2Bodies = onH2(toHTTP, true, func(c *h2) error {
	var streams []uint32
	for range 250 {
		id, err := c.open(false, ":method", "POST", ":scheme", "https", ":path", "/v1/ids", ":authority", "node",
			"content-type", "application/json")
		if err != nil {
			return err
		}
		streams = append(streams, id)
	}
	return c.fill(streams)
})

var respUnfinished = secure(toRESP, begin(append([]byte("*2\r\n$7\r\nID.NEXT\r\n$65000\r\n"), make([]byte, 64000)...)))

func respUnread(ctx context.Context, a *attacker, conn net.Conn) error {
	if _, err := fmt.Fprintf(conn, "AUTH %s\r\n", a.Token); err != nil {
		return err
	}
	const n = 100
	return a.repeat(ctx, conn, []byte(strings.Repeat("ID.NEXT COUNT 100\r\n", n)), n, false)
}

func respSlow(ctx context.Context, a *attacker, conn net.Conn) error {
	request := []byte("*3\r\n$7\r\nID.NEXT\r\n$5\r\nCOUNT\r\n$1\r\n1\r\n")
	var err error
	for i := 0; err == nil && ctx.Err() == nil; i++ {
		_, err = conn.Write(request[i%len(request):][:1])
		a.units.Add(1)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	return err
}

// flood opens a connection, does f again and again, and reads nothing.
func flood(port func(*attacker) string, read bool, f func(*h2) error) func(*attacker, context.Context) error {
	return onH2(port, read, func(c *h2) error {
		for c.ctx.Err() == nil {
			if err := f(c); err != nil {
				return err
			}
		}
		return nil
	})
}

// flooded begins calls of the service for IDs with a token, and ends each by a frame.
func flooded(port func(*attacker) string, token string,
	end func(*http2.Framer, uint32) error) func(*attacker, context.Context) error {
	return flood(port, true, func(c *h2) error {
		id, err := c.call("Allocate", token)
		if err != nil {
			return err
		}
		return c.do(func(fr *http2.Framer) error {
			delete(c.windows, id)
			return end(fr, id)
		})
	})
}

func reset(fr *http2.Framer, id uint32) error { return fr.WriteRSTStream(id, http2.ErrCodeCancel) }

// frames sends one frame again and again, and reads nothing.
func frames(port func(*attacker) string, f func(*http2.Framer) error) func(*attacker, context.Context) error {
	return flood(port, false, func(c *h2) error { return c.do(f) })
}

func emptySettings(fr *http2.Framer) error { return fr.WriteSettings() }

var (
	resets       = flooded(toGRPC, "", reset)
	resetsHTTP   = flooded(toHTTP, "", reset)
	settings     = frames(toGRPC, emptySettings)
	settingsHTTP = frames(toHTTP, emptySettings)
	pings        = frames(toGRPC, func(fr *http2.Framer) error { return fr.WritePing(false, [8]byte{}) })

	malformedHeaders = flood(toGRPC, true, func(c *h2) error {
		_, err := c.open(true, ":method", "POST", "UPPER", "case", ":path", "after", "connection", "close")
		return err
	})
	wrongToken = flooded(toGRPC, "allocator_WRONGWRONGWRONGWRONGWRONG1", func(fr *http2.Framer, id uint32) error {
		return fr.WriteData(id, true, []byte{0, 0, 0, 0, 2, 0x08, 1})
	})
	headerBombs = flood(toGRPC, true, func(c *h2) error {
		fields := []string{":method", "POST", ":scheme", "https", ":path", "/", ":authority", "node"}
		big := strings.Repeat("x", 4000)
		for range 2000 { // a header takes one byte once it is in the table
			fields = append(fields, "x-bomb", big)
		}
		_, err := c.open(true, fields...)
		return err
	})
)

var continuation = onH2(toGRPC, true, func(c *h2) error {
	if err := c.do(func(fr *http2.Framer) error {
		return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}})
	}); err != nil {
		return err
	}
	part := append([]byte{0x10, 1, 'x', 0x7f, 0x81, 0x1f}, bytes.Repeat([]byte{'y'}, 4096)...)
	for c.ctx.Err() == nil {
		if err := c.do(func(fr *http2.Framer) error { return fr.WriteContinuation(1, false, part) }); err != nil {
			return err
		}
	}
	return nil
})

// repeat sends a request again and again, n at once.
func repeat(request string, n int) func(context.Context, *attacker, net.Conn) error {
	return func(ctx context.Context, a *attacker, conn net.Conn) error {
		return a.repeat(ctx, conn, []byte(strings.Repeat(request, n)), n, true)
	}
}

// afterAuth sends a command of a caller with a token again and again.
func afterAuth(command string) func(context.Context, *attacker, net.Conn) error {
	return func(ctx context.Context, a *attacker, conn net.Conn) error {
		if _, err := fmt.Fprintf(conn, "AUTH %s\r\n", a.Token); err != nil {
			return err
		}
		return repeat(command, 512)(ctx, a, conn)
	}
}

func rightAuth(ctx context.Context, a *attacker, conn net.Conn) error {
	return repeat("AUTH "+a.Token+"\r\n", 128)(ctx, a, conn)
}

func handshakes(a *attacker, ctx context.Context) error {
	conn, err := a.dialTLS(ctx, a.GRPC, "h2")
	if err != nil {
		return err
	}
	a.units.Add(1)
	return conn.Close()
}

func slots(port func(*attacker) string) func(*attacker, context.Context) error {
	return onH2(port, false, func(c *h2) error {
		c.a.units.Add(1)
		c.read()
		return errors.New("closed")
	})
}

// slowly sends the first lines of a request, and a header field a second.
func slowly(first string) func(context.Context, *attacker, net.Conn) error {
	return func(ctx context.Context, a *attacker, conn net.Conn) error {
		_, err := conn.Write([]byte(first))
		a.units.Add(1)
		for err == nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			_, err = conn.Write([]byte("X-Slow: x\r\n"))
		}
		return err
	}
}

// registrations needs what a node needs: the rights to write to etcd.
func registrations(ctx context.Context, a *attacker) { register(ctx, a, 20_000) }

func register(ctx context.Context, a *attacker, nodes int) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{a.Etcd}, DialTimeout: 5 * time.Second})
	if err != nil {
		return
	}
	defer client.Close()
	prefix := "/" + a.Label + "/node/"
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*time.Second)
		defer cancel()
		_, _ = client.Delete(ctx, prefix+"fa4e", clientv3.WithPrefix())
	}()
	const perTxn = 100
	for i := 0; i < nodes && ctx.Err() == nil; i += perTxn {
		var ops []clientv3.Op
		for j := i; j < min(i+perTxn, nodes); j++ {
			instance := fmt.Sprintf("fa4e%04x-0000-4000-8000-%012x", j>>16, j)
			ops = append(ops, clientv3.OpPut(prefix+instance, lease.Encode(lease.Registration{
				Instance: lease.Instance(instance),
				Node:     fmt.Sprint("fake-", j),
				Gossip:   fmt.Sprintf("127.1.%d.%d:1", j>>8, j&255),
			})))
		}
		if _, err := client.Txn(ctx).Then(ops...).Commit(); err != nil {
			return
		}
		a.units.Add(perTxn)
	}
	<-ctx.Done()
}

func jsonBombs(ctx context.Context, a *attacker, conn net.Conn) error {
	body := strings.Repeat(`{"a":[`, 100_000)
	var b bytes.Buffer
	for _, encoding := range []string{"identity", "gzip"} {
		fmt.Fprintf(&b, "POST /v1/ids HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer %s\r\nContent-Type: "+
			"application/json\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n%s",
			a.Token, encoding, len(body), body)
	}
	return a.repeat(ctx, conn, b.Bytes(), 2, true)
}
