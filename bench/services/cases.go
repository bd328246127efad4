package services

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/client/v3"
)

// A Case is one way to get IDs from another process.
type Case struct {
	Group   string // cases of a group do the same work
	Name    string
	Ours    bool
	Mode    string // steps within a millisecond: draw, or sustained (+1 ahead of the clock)
	Callers int
	PerOp   int           // requests sent together; 0 is 1
	Every   int           // one Op in so many is timed; 0 is 1
	Warm    time.Duration // shortest warm-up

	// Servers returns the addresses whose processor time counts, none if e cannot
	// run the case.
	Servers func(e *Env) []string
	// Open returns the callers, and what closes all they share.
	Open func(ctx context.Context, e *Env, callers int) ([]Caller, func(), error)
	Load Load // instead of Open: the client is another program
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

// A Goal bounds a case by another case of the run, or by a number.
type Goal struct {
	Case    string
	Peer    string  // "" for a number
	AtLeast float64 // IDs a second: ours divided by the peer's, or the number
	P99     float64 // Our 99th percentile is at most so many times the peer's; 0: any.
	CPU     float64 // The processor time of a request is at most so many times the peer's; 0: this is a goal of IDs.
}

// LayoutCap is how many IDs a second one sid of the default layout has: 15 bits
// of entropy a millisecond.
const LayoutCap = 32_768_000

// Goals are the goals of the project.
var Goals = slices.Concat(redisGoals(), []Goal{
	{Case: Single + ": this, RESP", Peer: Single + ": Redis INCR", AtLeast: 1.1},
	{Case: Single + ": this, HTTP", Peer: Single + ": an empty handler, net/http", AtLeast: 0.97, P99: 1.5},
	{Case: Single + ": this, HTTP", Peer: Single + ": an empty handler, net/http", CPU: 1},
	{Case: Single + ": this, gRPC unary", Peer: Single + ": an empty handler, grpc-go unary", AtLeast: 0.97, P99: 1.5},
	{Case: Single + ": this, gRPC stream", Peer: Single + ": an empty handler, grpc-go stream", AtLeast: 0.92},
	{Case: Single + ": this, gRPC stream", Peer: Single + ": an empty handler, grpc-go stream", CPU: 1},
	{Case: Pipelined + ": this, gRPC stream", Peer: Single + ": this, gRPC unary", AtLeast: 8},
	{Case: Pipelined + ": this, gRPC stream", Peer: Pipelined + ": an empty handler, grpc-go stream", AtLeast: 0.92},
	{Case: Pipelined + ": this, RESP", Peer: Pipelined + ": Redis INCR", AtLeast: 1.4},
	{Case: SDK + ": this, coalesced, 64", Peer: Single + ": Redis INCR", AtLeast: 4, P99: 1},
	{Case: SDK + ": this, coalesced, 1,000", AtLeast: 1_300_000},
	{Case: SDK + ": this, prefetched, 1", AtLeast: 20_000_000},
	{Case: Blocks + ": this, blocks of 1,000, one node", AtLeast: 20_000_000},
	{Case: Blocks + ": this, blocks of 100,000, three nodes", AtLeast: 3 * 0.95 * LayoutCap},
})

// redisGoals are those beside Redis, by its own client. The processor time of a request is at most
// 0.9 times that of Redis, and 0.6 times where 16 are sent at once.
func redisGoals() (list []Goal) {
	for _, g := range []struct {
		group     string
		rate, cpu float64
	}{
		{RedisBenchmark, 0.95, 0.9}, {RedisBenchmarkPipelined, 1.1, 0.6},
		{RedisSocket, 0.95, 0.9}, {RedisSocketPipelined, 1.1, 0.6},
	} {
		ours, theirs := g.group+": this, RESP", g.group+": Redis INCR"
		list = append(list, Goal{Case: ours, Peer: theirs, AtLeast: g.rate, P99: 1},
			Goal{Case: ours, Peer: theirs, CPU: g.cpu})
	}
	return list
}

// each makes one caller after the other.
func each(open func(e *Env, i int) (Caller, error)) func(context.Context, *Env, int) ([]Caller, func(), error) {
	return func(_ context.Context, e *Env, n int) ([]Caller, func(), error) {
		callers := make([]Caller, 0, n)
		closeAll := func() {
			for _, c := range callers {
				if c.Close != nil {
					c.Close()
				}
			}
		}
		for i := range n {
			c, err := open(e, i)
			if err != nil {
				closeAll()
				return nil, nil, err
			}
			callers = append(callers, c)
		}
		return callers, closeAll, nil
	}
}

func peer(kind string) func(*Env) []string {
	return func(e *Env) []string { return []string{e.Peer[kind]} }
}

// grpcNodes are the first n nodes, by the address they are known by.
func grpcNodes(n int) func(*Env) []string {
	return func(e *Env) (addrs []string) {
		for _, node := range e.Node[:n] {
			addrs = append(addrs, node.GRPC)
		}
		return addrs
	}
}

func optional(addr func(*Env) string) func(*Env) []string {
	return func(e *Env) []string {
		if a := addr(e); a != "" {
			return []string{a}
		}
		return nil
	}
}

var (
	redis    = optional(func(e *Env) string { return e.Redis })
	epoll    = optional(func(e *Env) string { return e.Peer["epoll"] })
	postgres = optional(func(e *Env) string { return e.Postgres })
)

const (
	draw      = "draw"
	sustained = "sustained"
)

// Cases returns all cases.
func Cases() []Case {
	const conns, pipe = 64, 16
	list := []Case{
		{
			Group:   Single,
			Name:    "a constant answer by epoll, one thread (floor)",
			Callers: conns,
			Servers: epoll,
			Open:    each(func(e *Env, _ int) (Caller, error) { return respCaller(e.Peer["epoll"], 1, 1, "ID.NEXT") }),
		},
		{
			Group:   Single,
			Name:    "an echo over TCP, Go (floor)",
			Callers: conns,
			Servers: peer("tcp"),
			Open:    each(func(e *Env, _ int) (Caller, error) { return tcpCaller(e.Peer["tcp"], 1) }),
		},
		{
			Group:   Single,
			Name:    "this, RESP",
			Ours:    true,
			Mode:    draw,
			Callers: conns,
			Servers: grpcNodes(1),
			Open:    each(func(e *Env, _ int) (Caller, error) { return respCaller(e.Node[0].RESP, 1, 1, "ID.NEXT") }),
		},
		{
			Group:   Single,
			Name:    "Redis INCR",
			Callers: conns,
			Servers: redis,
			Open:    each(func(e *Env, _ int) (Caller, error) { return respCaller(e.Redis, 1, 1, "INCR", "id") }),
		},
		{
			Group:   Single,
			Name:    "an empty handler, net/http",
			Callers: conns,
			Servers: peer("http"),
			Open:    each(func(e *Env, _ int) (Caller, error) { return httpCaller(e.Peer["http"], 1) }),
		},
		{
			Group:   Single,
			Name:    "an empty handler, net/http, with our limits on time",
			Callers: conns,
			Servers: peer("http-limits"),
			Open:    each(func(e *Env, _ int) (Caller, error) { return httpCaller(e.Peer["http-limits"], 1) }),
		},
		{
			Group:   Single,
			Name:    "this, HTTP",
			Ours:    true,
			Mode:    draw,
			Callers: conns,
			Servers: grpcNodes(1),
			Open:    each(func(e *Env, _ int) (Caller, error) { return httpCaller(e.Node[0].HTTP, 1) }),
		},
		{
			Group:   Single,
			Name:    "an empty handler, grpc-go stream",
			Callers: conns,
			Servers: peer("grpc"),
			Open:    each(func(e *Env, _ int) (Caller, error) { return streamCaller(e.Peer["grpc"], 1, 1) }),
		},
		{
			Group:   Single,
			Name:    "this, gRPC stream",
			Ours:    true,
			Mode:    draw,
			Callers: conns,
			Servers: grpcNodes(1),
			Open:    each(func(e *Env, _ int) (Caller, error) { return streamCaller(e.Node[0].GRPC, 1, 1) }),
		},
		{
			Group:   Single,
			Name:    "an empty handler, grpc-go unary",
			Callers: conns,
			Servers: peer("grpc"),
			Open:    each(func(e *Env, _ int) (Caller, error) { return unaryCaller(e.Peer["grpc"], 1) }),
		},
		{
			Group:   Single,
			Name:    "this, gRPC unary",
			Ours:    true,
			Mode:    draw,
			Callers: conns,
			Servers: grpcNodes(1),
			Open:    each(func(e *Env, _ int) (Caller, error) { return unaryCaller(e.Node[0].GRPC, 1) }),
		},
		{
			Group:   Single,
			Name:    "PostgreSQL nextval",
			Callers: conns,
			Servers: postgres,
			Open: each(func(e *Env, _ int) (Caller, error) {
				return pgCaller(e.Postgres, "", "select nextval('ids')")
			}),
		},
		{
			Group:   Single,
			Name:    "etcd put, its revision",
			Callers: conns,
			Servers: func(e *Env) []string { return []string{e.Etcd} },
			Open:    openEtcd(etcdPut),
		},
		{
			Group:   Single,
			Name:    "etcd transaction, a counter each",
			Callers: conns,
			Servers: func(e *Env) []string { return []string{e.Etcd} },
			Open:    openEtcd(etcdOwnCounter),
		},
		{
			Group:   Single,
			Name:    "etcd transaction, one counter",
			Callers: conns,
			Servers: func(e *Env) []string { return []string{e.Etcd} },
			Open:    openEtcd(etcdSharedCounter),
		},

		{
			Group:   Pipelined,
			Name:    "a constant answer by epoll, one thread (floor)",
			Callers: conns,
			PerOp:   pipe,
			Servers: epoll,
			Open: each(func(e *Env, _ int) (Caller, error) {
				return respCaller(e.Peer["epoll"], pipe, 1, "ID.NEXT")
			}),
		},
		{
			Group:   Pipelined,
			Name:    "an echo over TCP, Go (floor)",
			Callers: conns,
			PerOp:   pipe,
			Servers: peer("tcp"),
			Open:    each(func(e *Env, _ int) (Caller, error) { return tcpCaller(e.Peer["tcp"], pipe) }),
		},
		{
			Group:   Pipelined,
			Name:    "this, RESP",
			Ours:    true,
			Mode:    sustained,
			Callers: conns,
			PerOp:   pipe,
			Servers: grpcNodes(1),
			Open: each(func(e *Env, _ int) (Caller, error) {
				return respCaller(e.Node[0].RESP, pipe, 1, "ID.NEXT")
			}),
		},
		{
			Group:   Pipelined,
			Name:    "Redis INCR",
			Callers: conns,
			PerOp:   pipe,
			Servers: redis,
			Open:    each(func(e *Env, _ int) (Caller, error) { return respCaller(e.Redis, pipe, 1, "INCR", "id") }),
		},
		{
			Group:   Pipelined,
			Name:    "an empty handler, grpc-go stream",
			Callers: conns,
			PerOp:   pipe,
			Servers: peer("grpc"),
			Open:    each(func(e *Env, _ int) (Caller, error) { return streamCaller(e.Peer["grpc"], pipe, 1) }),
		},
		{
			Group:   Pipelined,
			Name:    "this, gRPC stream",
			Ours:    true,
			Mode:    sustained,
			Callers: conns,
			PerOp:   pipe,
			Servers: grpcNodes(1),
			Open:    each(func(e *Env, _ int) (Caller, error) { return streamCaller(e.Node[0].GRPC, pipe, 1) }),
		},

		{
			Group:   Blocks,
			Name:    "this, blocks of 1,000, one node",
			Ours:    true,
			Mode:    sustained,
			Callers: conns,
			Warm:    untilAhead,
			Servers: grpcNodes(1),
			Open:    each(func(e *Env, _ int) (Caller, error) { return unaryCaller(e.Node[0].GRPC, 1000) }),
		},
		{
			Group:   Blocks,
			Name:    "this, blocks of 1,000 by stream, one node",
			Ours:    true,
			Mode:    sustained,
			Callers: conns,
			Warm:    untilAhead,
			Servers: grpcNodes(1),
			Open:    each(func(e *Env, _ int) (Caller, error) { return streamCaller(e.Node[0].GRPC, 1, 1000) }),
		},
		{
			Group:   Blocks,
			Name:    "this, blocks of 100,000, one node",
			Ours:    true,
			Mode:    sustained,
			Callers: blockCallers,
			Warm:    untilAhead,
			Servers: grpcNodes(1),
			Open:    each(func(e *Env, _ int) (Caller, error) { return unaryCaller(e.Node[0].GRPC, 100_000) }),
		},
		{
			Group:   Blocks,
			Name:    "this, blocks of 100,000, three nodes",
			Ours:    true,
			Mode:    sustained,
			Callers: Nodes * blockCallers,
			Warm:    untilAhead,
			Servers: grpcNodes(Nodes),
			Open:    each(func(e *Env, i int) (Caller, error) { return unaryCaller(e.Node[i%Nodes].GRPC, 100_000) }),
		},
		{
			Group:   Blocks,
			Name:    "Redis INCRBY 1,000",
			Callers: conns,
			Servers: redis,
			Open: each(func(e *Env, _ int) (Caller, error) {
				return respCaller(e.Redis, 1, 1000, "INCRBY", "id", "1000")
			}),
		},
		{
			Group:   Blocks,
			Name:    "PostgreSQL, 1,000 by one update",
			Callers: conns,
			Servers: postgres,
			Open: each(func(e *Env, _ int) (Caller, error) {
				c, err := pgCaller(e.Postgres, "create table if not exists segment (top bigint); insert into "+
					"segment select 0 where not exists (select from segment)",
					"update segment set top = top + 1000 returning top")
				one := c.Do
				c.Do = func() (int, error) { n, err := one(); return 1000 * n, err }
				return c, err
			}),
		},
	}
	return append(append(list, externalCases()...), sdkCases()...)
}

// blockCallers keep a node busy with blocks of 100,000, which take it 3 ms each.
// With more of them requests would wait until they are refused.
const blockCallers = 8

// untilAhead is the time after which saturated nodes are as far ahead of the clock
// as max-lead allows.
const untilAhead = 1500 * time.Millisecond

// An etcdOp makes one ID of caller i.
type etcdOp func(ctx context.Context, c *clientv3.Client, i int) Op

func openEtcd(op etcdOp) func(context.Context, *Env, int) ([]Caller, func(), error) {
	return func(ctx context.Context, e *Env, n int) ([]Caller, func(), error) {
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
			c, err := clientv3.New(clientv3.Config{
				Endpoints:   []string{"http://" + e.Etcd},
				DialTimeout: 5 * time.Second,
			})
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

// counter returns what raises a key's value in a transaction that compares its revision, and returns it.
func counter(c *clientv3.Client, key string) func(context.Context) (value int, err error) {
	var revision int64
	var value int
	return func(ctx context.Context) (int, error) {
		for {
			res, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).
				Then(clientv3.OpPut(key, fmt.Sprint(value+1))).Else(clientv3.OpGet(key)).Commit()
			if err != nil {
				return 0, err
			}
			if res.Succeeded {
				revision, value = res.Header.Revision, value+1
				return value, nil
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
	return onceOf(ctx, counter(c, fmt.Sprintf("bench/own/%d", i)))
}

func etcdSharedCounter(ctx context.Context, c *clientv3.Client, _ int) Op {
	return onceOf(ctx, counter(c, "bench/shared"))
}

func onceOf(ctx context.Context, next func(context.Context) (int, error)) Op {
	return func() (int, error) {
		_, err := next(ctx)
		return 1, err
	}
}
