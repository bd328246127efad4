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
	name    string
	sends   string // what the table says
	sources int    // addresses it comes from; 0 is one
	args    []string
	short   bool // part of the short profile
	clear   bool // The node has no TLS, so that the event loop serves RESP.
	socket  bool // RESP is on a Unix socket, whose callers are one source: all have the same user.
	run     func(context.Context, *attacker)
}

// conns runs f on n connections at once.
func conns(n int, f func(*attacker, context.Context) error) func(context.Context, *attacker) {
	return func(ctx context.Context, a *attacker) {
		each(ctx, n, func(ctx context.Context) error { return f(a, ctx) })
	}
}

// attacks are all there are, in the order of the table.
var attacks = []attack{
	{
		name:  "gossip-sealed",
		short: true,
		sends: "64 connections to the gossip port, each a sealed stream that announces 20 MiB and sends zeros",
		run:   conns(64, gossip(10, binary.BigEndian.AppendUint32(nil, 20<<20), 20<<20)),
	},
	{
		name: "gossip-clear",
		sends: "64 connections to the gossip port of a node without a key, each a list of a million members in " +
			"49 bytes",
		args: []string{"--gossip.key-file", ""},
		run:  conns(64, gossip(6, []byte("\x83\xa5Nodes\xd2\x00\x0f\xff\xff\xacUserStateLen\x00\xa4Join\xc3"), 0)),
	},
	{
		name:  "gossip-idle",
		sends: "400 connections to the gossip port that send a label and nothing else",
		run:   conns(400, gossip(-1, nil, 0)),
	},
	{
		name:  "gossip-packets",
		sends: "forged packets to the gossip port as fast as they go",
		run:   conns(2, gossipPackets),
	},

	{
		name:  "grpc-unfinished",
		short: true,
		sends: "30 gRPC connections, each with 100 messages of 4 MiB begun and not ended, without a token",
		run:   conns(30, grpcUnfinished),
	},
	{
		name:  "stream-unread",
		short: true,
		sends: "30 connections of a caller with a token, each with 100 ID streams of requests whose answers are " +
			"not read",
		run: conns(30, streamUnread),
	},
	{
		name:  "streams-unread",
		sends: "40 connections, each with 250 ID streams of which 16 are served, whose windows are ignored",
		run:   conns(40, streamsUnread),
	},
	{
		name:  "texts-unread",
		short: true,
		sends: "30 connections, each with 100 calls for 10,000 texts whose answers are not read",
		run:   conns(30, textsUnread(0)),
	},
	{
		name:  "texts-unread-paid",
		sends: "the same, with 20 valid calls for each of them",
		run:   conns(30, textsUnread(20)),
	},
	{
		name:  "reflection-unread",
		sends: "30 connections, each with 100 streams of reflection whose answers are not read",
		run:   conns(30, reflectionUnread),
	},
	{
		name:  "cluster-unread",
		sends: "30 gRPC connections, each with 100 calls for the cluster of 2,040 nodes whose answers are not read",
		run:   crowded(conns(30, clusterUnread)),
	},
	{
		name:  "cluster-unread-http",
		sends: "1,000 HTTP connections that ask for the cluster of 2,040 nodes and do not read the answer",
		run:   crowded(conns(1000, clusterUnreadHTTP)),
	},
	{
		name:  "watch-unread",
		sends: "60 gRPC connections, each with 16 streams of events whose answers are not read, of 2,040 nodes",
		run:   crowded(conns(60, watchUnread)),
	},
	{
		name:    "wm-watch-grpc",
		sends:   "1,000 gRPC connections from 8 addresses, each with 16 streams of the watermark, of one caller",
		sources: 8,
		run:     conns(1000, onH2(toGRPC, true, watchMark)),
	},
	{
		name:    "wm-watch-unread",
		sends:   "600 such connections whose windows are 0",
		sources: 8,
		run:     conns(600, pressed(watchMark)),
	},
	{
		name:    "wm-wait-grpc",
		sends:   "400 gRPC connections from 8 addresses, each with 100 calls that wait a minute for the watermark",
		sources: 8,
		run:     conns(400, onH2(toGRPC, true, waitMark)),
	},
	{
		name:  "http2-bodies",
		short: true,
		sends: "200 HTTP/2 connections, each with 250 bodies begun and not ended, without a token",
		run:   conns(200, http2Bodies),
	},
	{
		name:  "resp-unfinished",
		sends: "3,000 RESP connections, each with 64 KiB of a command that does not end",
		run:   conns(3000, respUnfinished),
	},
	{
		name:  "resp-unread",
		clear: true,
		sends: "64 RESP connections without TLS of a caller with a token that pipeline requests for 100 IDs and read " +
			"no answer",
		run: conns(64, plain(toRESP, respUnread)),
	},
	{
		name:  "resp-slow",
		clear: true,
		sends: "3,000 RESP connections without TLS that send a byte of a command every second",
		run:   conns(3000, plain(toRESP, respSlow)),
	},
	{
		name:   "slots-socket",
		clear:  true,
		socket: true,
		sends:  "5,000 connections to a Unix socket for RESP that send nothing, of the honest callers' user",
		run:    conns(5000, plain(toSocket, begin(nil))),
	},

	{
		name:  "resets-1",
		sends: "HTTP/2 requests without a token, each reset at once, on 1 gRPC connection",
		run:   conns(1, resets),
	},
	{name: "resets-2", sends: "the same on 2 connections", run: conns(2, resets)},
	{name: "resets-4", sends: "the same on 4 connections", run: conns(4, resets)},
	{name: "resets-8", short: true, sends: "the same on 8 connections", run: conns(8, resets)},
	{name: "resets-http", sends: "the same on 8 connections to the HTTP port", run: conns(8, resetsHTTP)},
	{
		name:  "settings",
		short: true,
		sends: "SETTINGS frames on 8 gRPC connections, whose acks are not read",
		run:   conns(8, settings),
	},
	{name: "pings", sends: "PING frames on 8 gRPC connections, whose acks are not read", run: conns(8, pings)},
	{
		name:  "settings-http",
		sends: "SETTINGS frames on 8 connections to the HTTP port, whose acks are not read",
		run:   conns(8, settingsHTTP),
	},
	{
		name:  "malformed-headers",
		sends: "requests with malformed header fields on 8 gRPC connections",
		run:   conns(8, malformedHeaders),
	},
	{
		name:  "continuation",
		sends: "header blocks of endless CONTINUATION frames on 8 gRPC connections",
		run:   conns(8, continuation),
	},
	{
		name:  "header-bombs",
		sends: "header fields of 1 MiB, and HPACK references to them, on 8 gRPC connections",
		run:   conns(8, headerBombs),
	},

	{
		name:  "right-auth",
		short: true,
		sends: "pipelined AUTH with a right token on 8 RESP connections, of a node with 1,000 tokens",
		run:   conns(8, secure(toRESP, rightAuth)),
	},
	{
		name:  "resp-pings",
		sends: "pipelined PING of a caller with a token on 8 RESP connections",
		run:   conns(8, secure(toRESP, afterAuth("PING\r\n"))),
	},
	{
		name:  "resp-info",
		sends: "pipelined INFO of a caller with a token on 8 RESP connections",
		run:   conns(8, secure(toRESP, afterAuth("INFO\r\n"))),
	},
	{
		name:  "wrong-auth",
		short: true,
		sends: "pipelined AUTH with a wrong token on 8 RESP connections",
		run:   conns(8, secure(toRESP, repeat("AUTH wrong-token-wrong-token\r\n", 512))),
	},
	{
		name:  "malformed-next",
		sends: "pipelined ID.NEXT of a caller with a token, with arguments that are none, on 8 RESP connections",
		run:   conns(8, secure(toRESP, malformedNext)),
	},
	{name: "wrong-token", sends: "gRPC calls with a wrong token on 8 connections", run: conns(8, wrongToken)},
	{
		name:  "wrong-token-http",
		sends: "HTTP/1.1 requests with a wrong token, pipelined, on 8 connections",
		run: conns(8, secure(toHTTP,
			repeat("POST /v1/ids?count=1 HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer wrong\r\nContent-Length: "+
				"0\r\n\r\n", 16), "http/1.1")),
	},
	{
		name:  "metrics",
		short: true,
		sends: "pipelined GET /metrics on 16 connections to the admin port",
		run:   conns(16, plain(toAdmin, repeat("GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n", 16))),
	},
	{name: "handshakes", sends: "TLS handshakes, each on a new connection, 8 at a time", run: conns(8, handshakes)},

	{
		name:  "slots-grpc",
		short: true,
		sends: "5,000 TLS connections to the gRPC port that answer pings and call nothing",
		run:   conns(5000, slots(toGRPC)),
	},
	{
		name:  "slots-http",
		sends: "5,000 TLS connections to the HTTP port that answer pings and request nothing",
		run:   conns(5000, slots(toHTTP)),
	},
	{
		name:  "slots-resp",
		sends: "5,000 TLS connections to the RESP port that send nothing",
		run:   conns(5000, secure(toRESP, begin(nil))),
	},
	{
		name:  "slots-admin",
		short: true,
		sends: "5,000 connections to the admin port that send a request line every second and end none",
		run:   conns(5000, plain(toAdmin, slowly("GET /livez HTTP/1.1\r\nHost: node\r\n"))),
	},
	{
		name:    "slots-sources",
		sends:   "5,000 connections to the gRPC port as above, from 200 addresses",
		sources: 200,
		run:     conns(5000, slots(toGRPC)),
	},
	{
		name:    "slots-valid",
		short:   true,
		sends:   "4,096 connections to the gRPC and HTTP ports from 2 addresses, with one valid call on each",
		sources: 2,
		run:     conns(4096, slotsValid),
	},
	{
		name:    "admin-pages",
		short:   true,
		sends:   "256 live pages on the admin port, from 4 addresses",
		sources: 4,
		run:     conns(256, plain(toAdmin, livePage("/console/feed?page=nodes"))),
	},
	{
		name:  "events-all",
		sends: "1,024 streams of events by HTTP of one caller",
		run:   conns(1024, secure(toHTTP, livePage("/v1/events"), "http/1.1")),
	},
	{
		name:  "half-open",
		sends: "5,000 connections to the HTTP port that begin a TLS handshake and stop",
		// A ClientHello of 508 bytes that ends early.
		run: conns(5000, plain(toHTTP, begin([]byte{22, 3, 1, 2, 0, 1, 0, 1, 0xfc}))),
	},
	{
		name:  "slowloris",
		sends: "2,000 HTTP/1.1 requests that get a header field a second",
		run:   conns(2000, secure(toHTTP, slowly("POST /v1/ids HTTP/1.1\r\nHost: node\r\n"), "http/1.1")),
	},
	{name: "registrations", sends: "20,000 registrations in etcd without a process", run: registrations},
	{
		name:  "json-bombs",
		sends: "HTTP/1.1 requests with bodies of nested JSON and of gzip, on 16 connections",
		run:   conns(16, secure(toHTTP, jsonBombs, "http/1.1")),
	},
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
func onH2(port func(*attacker) string, read bool, f func(*h2) error) func(*attacker, context.Context) error {
	return func(a *attacker, ctx context.Context) error {
		c, err := a.h2To(ctx, port(a), read)
		if err != nil {
			return err
		}
		defer c.close()
		return f(c)
	}
}

// begin sends b, which begins something, and waits until the node closes.
func begin(b []byte) func(context.Context, *attacker, net.Conn) error {
	return func(ctx context.Context, a *attacker, conn net.Conn) error {
		if _, err := conn.Write(b); err != nil {
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

// pressed is onH2 with windows of 0: no part of an answer is taken.
func pressed(f func(*h2) error) func(*attacker, context.Context) error {
	return func(a *attacker, ctx context.Context) error {
		c, err := a.h2To(ctx, a.GRPC, true, http2.Setting{ID: http2.SettingInitialWindowSize})
		if err != nil {
			return err
		}
		defer c.close()
		if err := f(c); err != nil {
			return err
		}
		for c.room() == nil {
		}
		return c.fail(ctx.Err())
	}
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

var clusterUnread = pressed(func(c *h2) error {
	for range 100 {
		if _, err := c.unary(cluster, c.a.Reader, nil); err != nil {
			return err
		}
	}
	return nil
})

var watchUnread = pressed(func(c *h2) error {
	for range 16 {
		if _, err := c.unary(watch, c.a.Reader, nil); err != nil {
			return err
		}
	}
	return nil
})

// watchMark opens as many streams of the watermark as a connection may have, and keeps them.
func watchMark(c *h2) error {
	for range 16 {
		if _, err := c.unary(watchWatermark, c.a.Reader, nil); err != nil {
			return err
		}
	}
	for c.room() == nil {
	}
	return c.fail(c.ctx.Err())
}

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
	for range 100 {
		if _, err := c.unary(getWatermark, c.a.Reader, m); err != nil {
			return err
		}
	}
	for c.room() == nil {
	}
	return c.fail(c.ctx.Err())
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
	return func(ctx context.Context, a *attacker, conn net.Conn) error {
		_, err := fmt.Fprintf(conn, getRequest, path, a.Reader)
		a.units.Add(1)
		if err == nil {
			err = hold(ctx, conn)
		}
		return err
	}
}

// slotsValid makes one valid call on a connection, and keeps it.
func slotsValid(a *attacker, ctx context.Context) error {
	if a.next.Load()/int64(a.sources)%2 == 0 {
		return onH2(toGRPC, true, func(c *h2) error {
			if _, err := c.unary(allocate, c.a.Token, []byte{0x08, 1}); err != nil {
				return err
			}
			for c.room() == nil {
			}
			return c.fail(ctx.Err())
		})(a, ctx)
	}
	return secure(toHTTP, func(ctx context.Context, a *attacker, conn net.Conn) error {
		_, err := fmt.Fprintf(conn, "POST /v1/ids HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer %s\r\n"+
			"Content-Length: 0\r\n\r\n", a.Token)
		a.units.Add(1)
		if err == nil {
			err = hold(ctx, conn)
		}
		return err
	}, "http/1.1")(a, ctx)
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

func reset(c *h2) error {
	id, err := c.call("Allocate", "")
	if err != nil {
		return err
	}
	return c.do(func(fr *http2.Framer) error {
		delete(c.windows, id)
		return fr.WriteRSTStream(id, http2.ErrCodeCancel)
	})
}

var (
	resets     = flood(toGRPC, true, reset)
	resetsHTTP = flood(toHTTP, true, reset)
	settings   = flood(toGRPC, false, func(c *h2) error {
		return c.do(func(fr *http2.Framer) error { return fr.WriteSettings() })
	})
	settingsHTTP = flood(toHTTP, false, func(c *h2) error {
		return c.do(func(fr *http2.Framer) error { return fr.WriteSettings() })
	})
	pings = flood(toGRPC, false, func(c *h2) error {
		return c.do(func(fr *http2.Framer) error { return fr.WritePing(false, [8]byte{}) })
	})

	malformedHeaders = flood(toGRPC, true, func(c *h2) error {
		_, err := c.open(true, ":method", "POST", "UPPER", "case", ":path", "after", "connection", "close")
		return err
	})
	wrongToken = flood(toGRPC, true, func(c *h2) error {
		id, err := c.call("Allocate", "allocator_WRONGWRONGWRONGWRONGWRONG1")
		if err != nil {
			return err
		}
		return c.do(func(fr *http2.Framer) error {
			delete(c.windows, id)
			return fr.WriteData(id, true, []byte{0, 0, 0, 0, 2, 0x08, 1})
		})
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

func malformedNext(ctx context.Context, a *attacker, conn net.Conn) error {
	if _, err := fmt.Fprintf(conn, "AUTH %s\r\n", a.Token); err != nil {
		return err
	}
	return repeat("ID.NEXT COUNT x\r\n", 512)(ctx, a, conn)
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
