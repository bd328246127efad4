package services

import (
	"context"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
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

// reach opens a caller of the service at an address.
type reach func(addr string) (Caller, error)

func tcp(pipe int) reach {
	return func(addr string) (Caller, error) { return tcpCaller(addr, pipe) }
}

func web(addr string) (Caller, error) { return httpCaller(addr, 1) }

func resp(pipe, perAnswer int, command ...string) reach {
	return func(addr string) (Caller, error) { return respCaller(addr, pipe, perAnswer, command...) }
}

func unary(count int) reach {
	return func(addr string) (Caller, error) { return unaryCaller(addr, count) }
}

func stream(pipe, count int) reach {
	return func(addr string) (Caller, error) { return streamCaller(addr, pipe, count) }
}

// address is where a service of an Env is; "" where it is not.
type address func(*Env) string

func (a address) servers(e *Env) []string {
	if at := a(e); at != "" {
		return []string{at}
	}
	return nil
}

func peer(kind string) address { return func(e *Env) string { return e.Peer[kind] } }

func redis(e *Env) string    { return e.Redis }
func postgres(e *Env) string { return e.Postgres }
func etcd(e *Env) string     { return e.Etcd }

// Listeners of a node.
func onGRPC(n Node) string { return n.GRPC }
func onHTTP(n Node) string { return n.HTTP }
func onRESP(n Node) string { return n.RESP }

// theirs is a case of another service.
func theirs(group, name string, at address, r reach) Case {
	return Case{
		Group:   group,
		Name:    name,
		Callers: conns,
		PerOp:   perOp[group],
		Servers: at.servers,
		Open:    each(func(e *Env, _ int) (Caller, error) { return r(at(e)) }),
	}
}

// ours is a case of the first of our nodes.
func ours(group, name string, on func(Node) string, r reach) Case {
	c := theirs(group, "this, "+name, func(e *Env) string { return e.Node[0].GRPC }, nil)
	c.Ours, c.Mode = true, draw
	if group != Single {
		c.Mode = sustained
	}
	c.Open = each(func(e *Env, _ int) (Caller, error) { return r(on(e.Node[0])) })
	return c
}

// blocks is a case of large blocks from the first nodes.
func blocks(name string, nodes, callers int, r reach) Case {
	c := ours(Blocks, name, onGRPC, r)
	c.Callers, c.Warm, c.Servers = callers, untilAhead, grpcNodes(nodes)
	c.Open = each(func(e *Env, i int) (Caller, error) { return r(e.Node[i%nodes].GRPC) })
	return c
}

// inEtcd is a case of one ID in etcd.
func inEtcd(name string, op etcdOp) Case {
	c := theirs(Single, name, etcd, nil)
	c.Open = openEtcd(op)
	return c
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

const (
	draw      = "draw"
	sustained = "sustained"
)

const conns, pipe = 64, 16

// perOp is how many requests a caller of a group sends at once, where that is not one.
var perOp = map[string]int{Pipelined: pipe}

const constant = "a constant answer by epoll, one thread (floor)"

// Cases returns all cases.
func Cases() []Case {
	return slices.Concat([]Case{
		theirs(Single, constant, peer("epoll"), resp(1, 1, "ID.NEXT")),
		theirs(Single, "an echo over TCP, Go (floor)", peer("tcp"), tcp(1)),
		ours(Single, "RESP", onRESP, resp(1, 1, "ID.NEXT")),
		theirs(Single, "Redis INCR", redis, resp(1, 1, "INCR", "id")),
		theirs(Single, "an empty handler, net/http", peer("http"), web),
		theirs(Single, "an empty handler, net/http, with our limits on time", peer("http-limits"), web),
		ours(Single, "HTTP", onHTTP, web),
		theirs(Single, "an empty handler, grpc-go stream", peer("grpc"), stream(1, 1)),
		ours(Single, "gRPC stream", onGRPC, stream(1, 1)),
		theirs(Single, "an empty handler, grpc-go unary", peer("grpc"), unary(1)),
		ours(Single, "gRPC unary", onGRPC, unary(1)),
		theirs(Single, "PostgreSQL nextval", postgres, func(addr string) (Caller, error) {
			return pgCaller(addr, "", "select nextval('ids')")
		}),
		inEtcd("etcd put, its revision", etcdPut),
		inEtcd("etcd transaction, a counter each", etcdOwnCounter),
		inEtcd("etcd transaction, one counter", etcdSharedCounter),

		theirs(Pipelined, constant, peer("epoll"), resp(pipe, 1, "ID.NEXT")),
		theirs(Pipelined, "an echo over TCP, Go (floor)", peer("tcp"), tcp(pipe)),
		ours(Pipelined, "RESP", onRESP, resp(pipe, 1, "ID.NEXT")),
		theirs(Pipelined, "Redis INCR", redis, resp(pipe, 1, "INCR", "id")),
		theirs(Pipelined, "an empty handler, grpc-go stream", peer("grpc"), stream(pipe, 1)),
		ours(Pipelined, "gRPC stream", onGRPC, stream(pipe, 1)),

		blocks("blocks of 1,000, one node", 1, conns, unary(1000)),
		blocks("blocks of 1,000 by stream, one node", 1, conns, stream(1, 1000)),
		blocks("blocks of 100,000, one node", 1, blockCallers, unary(100_000)),
		blocks("blocks of 100,000, three nodes", Nodes, Nodes*blockCallers, unary(100_000)),
		theirs(Blocks, "Redis INCRBY 1,000", redis, resp(1, 1000, "INCRBY", "id", "1000")),
		theirs(Blocks, "PostgreSQL, 1,000 by one update", postgres, func(addr string) (Caller, error) {
			c, err := pgCaller(addr, "create table if not exists segment (top bigint); insert into "+
				"segment select 0 where not exists (select from segment)",
				"update segment set top = top + 1000 returning top")
			one := c.Do
			c.Do = func() (int, error) { n, err := one(); return 1000 * n, err }
			return c, err
		}),
	}, externalCases(), sdkCases())
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
