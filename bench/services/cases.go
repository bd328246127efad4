package services

import (
	"context"
	"fmt"
	"time"

	"go.etcd.io/etcd/client/v3"
)

// A Case is one way to get IDs from another process.
type Case struct {
	Group   string // cases of a group do the same work
	Name    string
	Ours    bool
	Mode    string // of our steps within a millisecond: draw, or sustained (+1 ahead of the clock)
	Callers int
	PerOp   int           // requests sent together; 0 is 1
	Every   int           // one Op in so many is timed; 0 is 1
	Warm    time.Duration // at least, before it is measured

	// Servers returns the addresses whose processor time counts, none if w cannot
	// run the case.
	Servers func(w *World) []string
	// Open returns the callers, and what closes all they share.
	Open func(ctx context.Context, w *World, callers int) ([]Caller, func(), error)
}

// ID is what a Goal names a case by.
func (c Case) ID() string { return c.Group + ": " + c.Name }

// Groups in the order of the tables.
const (
	Single    = "one ID a request, 64 connections"
	Pipelined = "16 requests at once on each of 64 connections"
	SDK       = "callers in one process"
	Blocks    = "blocks"
)

// A Goal bounds a case by another of the run, or by a figure.
type Goal struct {
	Case    string
	Peer    string  // "" for a figure
	AtLeast float64 // IDs a second: ours divided by the peer's, or the figure
	P99     bool    // ours must also be no later than the peer's at the 99th percentile
}

// LayoutCap is how many IDs a second one sid of the default layout has: 15 bits
// of entropy a millisecond.
const LayoutCap = 32_768_000

// Goals are what the project set itself.
var Goals = []Goal{
	{Case: Single + ": this, RESP", Peer: Single + ": Redis INCR", AtLeast: 1.1},
	{Case: Single + ": this, HTTP", Peer: Single + ": an empty handler, net/http", AtLeast: 0.92},
	{Case: Single + ": this, gRPC unary", Peer: Single + ": an empty handler, grpc-go unary", AtLeast: 0.92},
	{Case: Single + ": this, gRPC stream", Peer: Single + ": an empty handler, grpc-go stream", AtLeast: 0.92},
	{Case: Pipelined + ": this, gRPC stream", Peer: Single + ": this, gRPC unary", AtLeast: 8},
	{Case: Pipelined + ": this, gRPC stream", Peer: Pipelined + ": an empty handler, grpc-go stream", AtLeast: 0.92},
	{Case: Pipelined + ": this, RESP", Peer: Pipelined + ": Redis INCR", AtLeast: 1.4},
	{Case: SDK + ": this, coalesced, 64", Peer: Single + ": Redis INCR", AtLeast: 4, P99: true},
	{Case: SDK + ": this, coalesced, 1,000", AtLeast: 1_300_000},
	{Case: SDK + ": this, prefetched, 1", AtLeast: 20_000_000},
	{Case: Blocks + ": this, blocks of 1,000, one node", AtLeast: 20_000_000},
	{Case: Blocks + ": this, blocks of 100,000, three nodes", AtLeast: 3 * 0.95 * LayoutCap},
}

// each makes one caller after the other.
func each(open func(w *World, i int) (Caller, error)) func(context.Context, *World, int) ([]Caller, func(), error) {
	return func(_ context.Context, w *World, n int) ([]Caller, func(), error) {
		callers := make([]Caller, 0, n)
		closeAll := func() {
			for _, c := range callers {
				if c.Close != nil {
					c.Close()
				}
			}
		}
		for i := range n {
			c, err := open(w, i)
			if err != nil {
				closeAll()
				return nil, nil, err
			}
			callers = append(callers, c)
		}
		return callers, closeAll, nil
	}
}

func peer(kind string) func(*World) []string {
	return func(w *World) []string { return []string{w.Peer[kind]} }
}

// grpcNodes are the first n nodes, by the address they are known by.
func grpcNodes(n int) func(*World) []string {
	return func(w *World) (addrs []string) {
		for _, node := range w.Node[:n] {
			addrs = append(addrs, node.GRPC)
		}
		return addrs
	}
}

func optional(addr func(*World) string) func(*World) []string {
	return func(w *World) []string {
		if a := addr(w); a != "" {
			return []string{a}
		}
		return nil
	}
}

var (
	redis    = optional(func(w *World) string { return w.Redis })
	epoll    = optional(func(w *World) string { return w.Peer["epoll"] })
	postgres = optional(func(w *World) string { return w.Postgres })
	respDoor = optional(func(w *World) string {
		if w.Node[0].RESP == "" {
			return ""
		}
		return w.Node[0].GRPC
	})
)

const (
	draw      = "draw"
	sustained = "sustained"
)

// Cases returns all cases.
func Cases() []Case {
	const conns, pipe = 64, 16
	list := []Case{
		{Group: Single, Name: "an echo by epoll, one thread (floor)", Callers: conns, Servers: epoll,
			Open: each(func(w *World, _ int) (Caller, error) { return tcpCaller(w.Peer["epoll"], 1) })},
		{Group: Single, Name: "an echo over TCP, Go (floor)", Callers: conns, Servers: peer("tcp"),
			Open: each(func(w *World, _ int) (Caller, error) { return tcpCaller(w.Peer["tcp"], 1) })},
		{Group: Single, Name: "this, RESP", Ours: true, Mode: draw, Callers: conns, Servers: respDoor,
			Open: each(func(w *World, _ int) (Caller, error) { return respCaller(w.Node[0].RESP, 1, 1, "ID.NEXT") })},
		{Group: Single, Name: "Redis INCR", Callers: conns, Servers: redis,
			Open: each(func(w *World, _ int) (Caller, error) { return respCaller(w.Redis, 1, 1, "INCR", "id") })},
		{Group: Single, Name: "an empty handler, net/http", Callers: conns, Servers: peer("http"),
			Open: each(func(w *World, _ int) (Caller, error) { return httpCaller(w.Peer["http"], 1) })},
		{Group: Single, Name: "an empty handler, net/http, with our limits on time", Callers: conns, Servers: peer("http-limits"),
			Open: each(func(w *World, _ int) (Caller, error) { return httpCaller(w.Peer["http-limits"], 1) })},
		{Group: Single, Name: "this, HTTP", Ours: true, Mode: draw, Callers: conns, Servers: grpcNodes(1),
			Open: each(func(w *World, _ int) (Caller, error) { return httpCaller(w.Node[0].HTTP, 1) })},
		{Group: Single, Name: "an empty handler, grpc-go stream", Callers: conns, Servers: peer("grpc"),
			Open: each(func(w *World, _ int) (Caller, error) { return streamCaller(w.Peer["grpc"], 1, 1) })},
		{Group: Single, Name: "this, gRPC stream", Ours: true, Mode: draw, Callers: conns, Servers: grpcNodes(1),
			Open: each(func(w *World, _ int) (Caller, error) { return streamCaller(w.Node[0].GRPC, 1, 1) })},
		{Group: Single, Name: "an empty handler, grpc-go unary", Callers: conns, Servers: peer("grpc"),
			Open: each(func(w *World, _ int) (Caller, error) { return unaryCaller(w.Peer["grpc"], 1) })},
		{Group: Single, Name: "this, gRPC unary", Ours: true, Mode: draw, Callers: conns, Servers: grpcNodes(1),
			Open: each(func(w *World, _ int) (Caller, error) { return unaryCaller(w.Node[0].GRPC, 1) })},
		{Group: Single, Name: "PostgreSQL nextval", Callers: conns, Servers: postgres,
			Open: each(func(w *World, _ int) (Caller, error) {
				return pgCaller(w.Postgres, "", "select nextval('ids')")
			})},
		{Group: Single, Name: "etcd put, its revision", Callers: conns, Servers: func(w *World) []string { return []string{w.Etcd} },
			Open: openEtcd(etcdPut)},
		{Group: Single, Name: "etcd transaction, a counter each", Callers: conns, Servers: func(w *World) []string { return []string{w.Etcd} },
			Open: openEtcd(etcdOwnCounter)},
		{Group: Single, Name: "etcd transaction, one counter", Callers: conns, Servers: func(w *World) []string { return []string{w.Etcd} },
			Open: openEtcd(etcdSharedCounter)},

		{Group: Pipelined, Name: "an echo by epoll, one thread (floor)", Callers: conns, PerOp: pipe, Servers: epoll,
			Open: each(func(w *World, _ int) (Caller, error) { return tcpCaller(w.Peer["epoll"], pipe) })},
		{Group: Pipelined, Name: "an echo over TCP, Go (floor)", Callers: conns, PerOp: pipe, Servers: peer("tcp"),
			Open: each(func(w *World, _ int) (Caller, error) { return tcpCaller(w.Peer["tcp"], pipe) })},
		{Group: Pipelined, Name: "this, RESP", Ours: true, Mode: sustained, Callers: conns, PerOp: pipe, Servers: respDoor,
			Open: each(func(w *World, _ int) (Caller, error) { return respCaller(w.Node[0].RESP, pipe, 1, "ID.NEXT") })},
		{Group: Pipelined, Name: "Redis INCR", Callers: conns, PerOp: pipe, Servers: redis,
			Open: each(func(w *World, _ int) (Caller, error) { return respCaller(w.Redis, pipe, 1, "INCR", "id") })},
		{Group: Pipelined, Name: "an empty handler, grpc-go stream", Callers: conns, PerOp: pipe, Servers: peer("grpc"),
			Open: each(func(w *World, _ int) (Caller, error) { return streamCaller(w.Peer["grpc"], pipe, 1) })},
		{Group: Pipelined, Name: "this, gRPC stream", Ours: true, Mode: sustained, Callers: conns, PerOp: pipe, Servers: grpcNodes(1),
			Open: each(func(w *World, _ int) (Caller, error) { return streamCaller(w.Node[0].GRPC, pipe, 1) })},

		{Group: Blocks, Name: "this, blocks of 1,000, one node", Ours: true, Mode: sustained, Callers: conns, Warm: untilAhead, Servers: grpcNodes(1),
			Open: each(func(w *World, _ int) (Caller, error) { return unaryCaller(w.Node[0].GRPC, 1000) })},
		{Group: Blocks, Name: "this, blocks of 1,000 by stream, one node", Ours: true, Mode: sustained, Callers: conns, Warm: untilAhead, Servers: grpcNodes(1),
			Open: each(func(w *World, _ int) (Caller, error) { return streamCaller(w.Node[0].GRPC, 1, 1000) })},
		{Group: Blocks, Name: "this, blocks of 100,000, one node", Ours: true, Mode: sustained, Callers: blockCallers, Warm: untilAhead, Servers: grpcNodes(1),
			Open: each(func(w *World, _ int) (Caller, error) { return unaryCaller(w.Node[0].GRPC, 100_000) })},
		{Group: Blocks, Name: "this, blocks of 100,000, three nodes", Ours: true, Mode: sustained, Callers: Nodes * blockCallers, Warm: untilAhead, Servers: grpcNodes(Nodes),
			Open: each(func(w *World, i int) (Caller, error) { return unaryCaller(w.Node[i%Nodes].GRPC, 100_000) })},
		{Group: Blocks, Name: "Redis INCRBY 1,000", Callers: conns, Servers: redis,
			Open: each(func(w *World, _ int) (Caller, error) { return respCaller(w.Redis, 1, 1000, "INCRBY", "id", "1000") })},
		{Group: Blocks, Name: "PostgreSQL, 1,000 by one update", Callers: conns, Servers: postgres,
			Open: each(func(w *World, _ int) (Caller, error) {
				c, err := pgCaller(w.Postgres, "create table if not exists segment (top bigint); insert into segment select 0 where not exists (select from segment)",
					"update segment set top = top + 1000 returning top")
				one := c.Do
				c.Do = func() (int, error) { n, err := one(); return 1000 * n, err }
				return c, err
			})},
	}
	return append(list, sdkCases()...)
}

// blockCallers keep a node busy with blocks of 100,000, which it has in 3 ms
// each, and none of them waiting for so long that it is refused.
const blockCallers = 8

// untilAhead is when nodes that are asked for all they have are as far ahead of
// the clock as they may be, and have used up what they had saved.
const untilAhead = 1500 * time.Millisecond

// An etcdOp makes one ID of caller i.
type etcdOp func(ctx context.Context, c *clientv3.Client, i int) Op

func openEtcd(op etcdOp) func(context.Context, *World, int) ([]Caller, func(), error) {
	return func(ctx context.Context, w *World, n int) ([]Caller, func(), error) {
		// More connections than these do not make it faster.
		clients := make([]*clientv3.Client, 4)
		closeAll := func() {
			for _, c := range clients {
				if c != nil {
					_ = c.Close()
				}
			}
		}
		for i := range clients {
			c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + w.Etcd}, DialTimeout: 5 * time.Second})
			if err != nil {
				closeAll()
				return nil, nil, err
			}
			clients[i] = c
		}
		callers := make([]Caller, n)
		for i := range callers {
			callers[i] = Caller{Do: op(ctx, clients[i%len(clients)], i)}
		}
		return callers, closeAll, nil
	}
}

func etcdPut(ctx context.Context, c *clientv3.Client, i int) Op {
	key := fmt.Sprintf("bench/put/%d", i)
	return func() (int, error) {
		_, err := c.Put(ctx, key, "")
		return 1, err
	}
}

// counter raises a key's value in a transaction that compares its revision.
func counter(ctx context.Context, c *clientv3.Client, key string) Op {
	var revision int64
	var value int
	return func() (int, error) {
		for {
			res, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
				Then(clientv3.OpPut(key, fmt.Sprint(value+1))).Else(clientv3.OpGet(key)).Commit()
			if err != nil {
				return 0, err
			}
			if res.Succeeded {
				revision, value = res.Header.Revision, value+1
				return 1, nil
			}
			if kvs := res.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 {
				revision = kvs[0].ModRevision
				if _, err := fmt.Sscan(string(kvs[0].Value), &value); err != nil {
					return 0, err
				}
			} else {
				revision, value = 0, 0
			}
		}
	}
}

func etcdOwnCounter(ctx context.Context, c *clientv3.Client, i int) Op {
	return counter(ctx, c, fmt.Sprintf("bench/own/%d", i))
}

func etcdSharedCounter(ctx context.Context, c *clientv3.Client, _ int) Op {
	return counter(ctx, c, "bench/shared")
}
