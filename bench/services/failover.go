package services

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	goredis "github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	pg "github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// How Failover asks for IDs.
const (
	failoverCallers  = 16                   // goroutines of one program, with one client
	failoverPace     = 2 * time.Millisecond // between two calls of each
	failoverPatience = 2 * time.Second      // the deadline of a call
	failoverBefore   = time.Second          // from the start of the calls to the kill
	failoverAfter    = 2 * time.Second      // from the first ID after the kill to the end
	failoverLimit    = time.Minute          // from the kill to the first ID
	// downAfter is after how long without an answer Sentinel, and the script beside PostgreSQL, act.
	downAfter = time.Second
)

// A replica set is a service of which one part can end while others take over.
type replicaSet struct {
	// next returns an ID, by the usual client of the service.
	next func(context.Context) (int64, error)
	// kill ends the part that answers now, at once.
	kill  func() error
	dense bool // IDs are consecutive numbers.
}

// outage is what the callers of a replica set noticed of one kill.
type outage struct {
	gap      time.Duration // the longest time without an ID
	failed   int           // calls
	repeated int           // IDs
	lost     int           // IDs below the greatest that nobody got; -1: they are not consecutive
}

// answer is an ID and when it came, counted from the first call.
type answer struct {
	at time.Duration
	id int64
}

// observe kills a part of a replica set under callers.
func observe(ctx context.Context, s replicaSet) (outage, error) {
	began := time.Now()
	ctx, stop := context.WithCancel(ctx)
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex // It guards the fields below.
		answers []answer
		failed  int
		latest  error
		killed  time.Duration // 0: not yet
		again   = make(chan struct{})
	)
	for range failoverCallers {
		wg.Go(func() {
			for ctx.Err() == nil {
				called := time.Since(began)
				call, cancel := context.WithTimeout(ctx, failoverPatience)
				id, err := s.next(call)
				cancel()
				mu.Lock()
				switch {
				case err == nil:
					answers = append(answers, answer{time.Since(began), id})
					if killed > 0 && called > killed && again != nil {
						close(again)
						again = nil
					}
				case ctx.Err() == nil:
					failed++
					latest = err
				}
				mu.Unlock()
				time.Sleep(failoverPace)
			}
		})
	}
	end := func(err error) (outage, error) {
		stop()
		wg.Wait()
		return outageOf(answers, killed, failed, s.dense), err
	}
	time.Sleep(failoverBefore)
	mu.Lock()
	before, err, comes := failed, latest, again
	mu.Unlock()
	if before > 0 {
		return end(fmt.Errorf("%d calls failed before the kill: %w", before, err))
	}
	mu.Lock()
	killed = time.Since(began)
	mu.Unlock()
	if err := s.kill(); err != nil {
		return end(err)
	}
	select {
	case <-comes:
	case <-time.After(failoverLimit):
		return end(fmt.Errorf("no ID came within %v of the kill: %w", failoverLimit, latest))
	case <-ctx.Done():
		return end(ctx.Err())
	}
	time.Sleep(failoverAfter)
	return end(nil)
}

// outageOf counts what answers show.
func outageOf(answers []answer, killed time.Duration, failed int, dense bool) outage {
	slices.SortFunc(answers, func(a, b answer) int { return int(a.at - b.at) })
	o := outage{failed: failed, lost: -1}
	last, times := killed, map[int64]int{}
	for _, a := range answers {
		times[a.id]++
		if a.at > last {
			o.gap, last = max(o.gap, a.at-last), a.at
		}
	}
	for _, n := range times {
		o.repeated += n - 1
	}
	if dense && len(times) > 0 {
		ids := slices.Sorted(maps.Keys(times))
		o.lost = int(ids[len(ids)-1]-ids[0]) + 1 - len(ids)
	}
	return o
}

// failovers are the services that Failover compares.
var failovers = []struct {
	name  string
	start func(*Env, context.Context) (replicaSet, error)
}{
	{"three allocator nodes, etcd inside: the node that answers and its member end", (*Env).allocators},
	{"etcd, three members, a transaction on one counter: the leader ends", (*Env).etcds},
	{"Redis `INCR`, a replica and three Sentinels: the primary ends", (*Env).redises},
	{"PostgreSQL `nextval`, a standby: the primary ends, a script promotes the standby", (*Env).postgreses},
}

// Failover kills a part of each service while callers use the service, in rounds, and writes a table. binary and self
// are as for Start.
func Failover(ctx context.Context, binary, self string, rounds int, out, notes io.Writer) error {
	got := make([][]outage, len(failovers))
	for round := range rounds {
		for at, f := range failovers {
			o, err := failover(ctx, binary, self, f.start)
			if errors.Is(err, errNotHere) {
				_, _ = fmt.Fprintf(notes, "not run: %s: %v\n", f.name, err)
				continue
			}
			if err != nil {
				return fmt.Errorf("services: %s: %w", f.name, err)
			}
			_, _ = fmt.Fprintf(notes, "round %d of %d: %s: %+v\n", round+1, rounds, f.name, o)
			got[at] = append(got[at], o)
		}
	}
	_, _ = fmt.Fprintf(out, `%d rounds, %d callers of one client, each with a call %v after the last: median, worst.

| | time without IDs | failed calls | IDs repeated | IDs lost |
|---|--:|--:|--:|--:|
`, rounds, failoverCallers, failoverPace)
	for at, f := range failovers {
		if len(got[at]) == 0 {
			continue
		}
		_, _ = fmt.Fprintf(out, "| %s ", f.name)
		for _, column := range columns {
			var list []float64
			for _, o := range got[at] {
				list = append(list, column.of(o))
			}
			cell := "–"
			if s := SpreadOf(list); s.Max >= 0 {
				cell = fmt.Sprintf("%s%s, %s%s", Count(s.Median), column.unit, Count(s.Max), column.unit)
			}
			_, _ = fmt.Fprintf(out, "| %s ", cell)
		}
		_, _ = fmt.Fprintln(out, "|")
	}
	return nil
}

// columns are the numbers of an outage in the table of Failover; one below 0 is unknown.
var columns = []struct {
	of   func(outage) float64
	unit string
}{
	{func(o outage) float64 { return o.gap.Seconds() * 1e3 }, " ms"},
	{func(o outage) float64 { return float64(o.failed) }, ""},
	{func(o outage) float64 { return float64(o.repeated) }, ""},
	{func(o outage) float64 { return float64(o.lost) }, ""},
}

// errNotHere means that a service is not installed.
var errNotHere = errors.New("it is not installed")

func failover(ctx context.Context, binary, self string,
	start func(*Env, context.Context) (replicaSet, error)) (outage, error) {
	e, err := newEnv(binary, self)
	if err != nil {
		return outage{}, err
	}
	defer e.Close()
	s, err := start(e, ctx)
	if err != nil {
		return outage{}, err
	}
	return observe(ctx, s)
}

// allocators starts three nodes on addresses of their own, each with a member of etcd inside.
func (e *Env) allocators(ctx context.Context) (replicaSet, error) {
	hosts := []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"}
	join := []string{"--etcd.join", strings.Join(hosts, ","), "--etcd.insecure", "--etcd.port-clients", freePair()}
	var nodes [Nodes]Node
	var targets []string
	inside := func(i int) string { return filepath.Join(e.dir, fmt.Sprintf("inside-%d", i)) }
	for i, host := range hosts {
		var args []string
		nodes[i], args = e.node(host, i, append(join, "--etcd.inside", inside(i), "--etcd.address", host)...)
		if err := e.spawn(nodes[i].GRPC, e.binary, args...); err != nil {
			return replicaSet{}, err
		}
		targets = append(targets, nodes[i].GRPC)
	}
	// A member outlives its node.
	member := func(i int) {
		text, _ := os.ReadFile(filepath.Join(inside(i), "etcd.lock"))
		if pid, _ := strconv.Atoi(strings.SplitN(string(text), " ", 2)[0]); pid > 1 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	e.ends = append(e.ends, func() { member(0); member(1); member(2) })
	if err := e.initialize(ctx, join...); err != nil {
		return replicaSet{}, err
	}
	for _, n := range nodes {
		if err := e.issues(ctx, n); err != nil {
			return replicaSet{}, err
		}
	}
	c, err := client.New(client.Options{Targets: targets})
	if err != nil {
		return replicaSet{}, err
	}
	e.ends = append(e.ends, func() { _ = c.Close() })
	var answers atomic.Pointer[string] // the name of the node that answered last
	return replicaSet{
		next: func(ctx context.Context) (int64, error) {
			b, err := c.Block(ctx, 1)
			if err == nil {
				answers.Store(&b.Node)
			}
			return int64(b.First), err
		},
		kill: func() error {
			i := int((*answers.Load())[len("node-")] - '1')
			e.kill(targets[i])
			member(i)
			return nil
		},
	}, nil
}

// freePair returns a port of all addresses of loopback that is free, and so is the next.
func freePair() string {
	for {
		_, text, _ := net.SplitHostPort(loopback.Address())
		port, _ := strconv.Atoi(text)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+1))
		if err == nil {
			_ = l.Close()
			return text
		}
	}
}

// etcds starts three members of etcd.
func (e *Env) etcds(ctx context.Context) (replicaSet, error) {
	peers := loopback.Addresses(3)
	var clients []string
	for i := range peers {
		addr := loopback.Address()
		// The first peer is this one's.
		list := slices.Concat([]string{addr, filepath.Join(e.dir, addr)}, peers[i:], peers[:i])
		if err := e.spawn(addr, e.self, "-serve", "etcd-member", "-addr", strings.Join(list, ",")); err != nil {
			return replicaSet{}, err
		}
		clients = append(clients, "http://"+addr)
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   clients,
		DialTimeout: 5 * time.Second,
		Logger:      zap.NewNop(),
	})
	if err != nil {
		return replicaSet{}, err
	}
	e.ends = append(e.ends, func() { _ = c.Close() })
	for _, at := range clients {
		err := e.until(ctx, strings.TrimPrefix(at, "http://"), "no leader", func() bool {
			s, err := c.Status(ctx, at)
			return err == nil && s.Leader != 0
		})
		if err != nil {
			return replicaSet{}, err
		}
	}
	// A call takes a caller of the counter, which knows its latest value.
	callers := sync.Pool{New: func() any { return counter(c, "bench/failover") }}
	return replicaSet{
		dense: true,
		next: func(ctx context.Context) (int64, error) {
			next := callers.Get().(func(context.Context) (int, error))
			defer callers.Put(next)
			id, err := next(ctx)
			return int64(id), err
		},
		kill: func() error {
			for _, at := range clients {
				s, err := c.Status(ctx, at)
				if err != nil {
					return err
				}
				if s.Leader == s.Header.MemberId {
					e.kill(strings.TrimPrefix(at, "http://"))
					return nil
				}
			}
			return errors.New("etcd has no leader")
		},
	}, nil
}

// redises starts a primary, a replica and three Sentinels.
func (e *Env) redises(ctx context.Context) (replicaSet, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return replicaSet{}, fmt.Errorf("%w (Debian: apt-get install redis-server)", errNotHere)
	}
	addrs := loopback.Addresses(2)
	_, primary, _ := net.SplitHostPort(addrs[0])
	_, replica, _ := net.SplitHostPort(addrs[1])
	common := []string{"--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", e.dir}
	if err := e.start(ctx, addrs[0], path, append(common, "--port", primary)...); err != nil {
		return replicaSet{}, err
	}
	follow := append(common, "--port", replica, "--replicaof", "127.0.0.1 "+primary)
	if err := e.start(ctx, addrs[1], path, follow...); err != nil {
		return replicaSet{}, err
	}
	sentinels := loopback.Addresses(3)
	for _, at := range sentinels {
		_, port, _ := net.SplitHostPort(at)
		file := filepath.Join(e.dir, "sentinel-"+port)
		text := fmt.Sprintf("bind 127.0.0.1\nport %s\ndir %s\nsentinel monitor ids 127.0.0.1 %s 2\n"+
			"sentinel down-after-milliseconds ids %d\n", port, e.dir, primary, downAfter.Milliseconds())
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return replicaSet{}, err
		}
		if err := e.start(ctx, at, path, file, "--sentinel"); err != nil {
			return replicaSet{}, err
		}
	}
	goredis.SetLogger(silent{})
	for _, at := range sentinels {
		s := goredis.NewSentinelClient(&goredis.Options{Addr: at})
		err := e.until(ctx, at, "a Sentinel lacks another one, or the replica", func() bool {
			m, err := s.Master(ctx, "ids").Result()
			return err == nil && m["num-other-sentinels"] == "2" && m["num-slaves"] == "1"
		})
		_ = s.Close()
		if err != nil {
			return replicaSet{}, err
		}
	}
	c := goredis.NewFailoverClient(&goredis.FailoverOptions{MasterName: "ids", SentinelAddrs: sentinels})
	e.ends = append(e.ends, func() { _ = c.Close() })
	err = e.until(ctx, addrs[1], "the replica does not follow", func() bool {
		s, err := c.Info(ctx, "replication").Result()
		return err == nil && strings.Contains(s, "state=online")
	})
	return replicaSet{
		dense: true,
		next:  func(ctx context.Context) (int64, error) { return c.Incr(ctx, "id").Result() },
		kill:  func() error { e.kill(addrs[0]); return nil },
	}, err
}

// silent drops what go-redis logs of the connections that end.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// postgreses starts a primary and a standby that follows without the primary's waiting for it, as by default.
func (e *Env) postgreses(ctx context.Context) (replicaSet, error) {
	primary, stop, err := pg.New("fsync=on")
	if errors.Is(err, pg.ErrMissing) {
		return replicaSet{}, fmt.Errorf("%w: %w", errNotHere, err)
	} else if err != nil {
		return replicaSet{}, err
	}
	e.ends = append(e.ends, func() { _ = stop() })
	standby, stopStandby, err := primary.NewStandby()
	if err != nil {
		return replicaSet{}, err
	}
	e.ends = append(e.ends, func() { _ = stopStandby() })
	c, err := sql.Open("pgx", fmt.Sprintf("postgres://test@/postgres?host=%s,%s&target_session_attrs=read-write",
		primary.Dir, standby.Dir))
	if err != nil {
		return replicaSet{}, err
	}
	c.SetMaxIdleConns(failoverCallers)
	e.ends = append(e.ends, func() { _ = c.Close() })
	if _, err := c.ExecContext(ctx, "create sequence ids"); err != nil {
		return replicaSet{}, err
	}
	second, err := sql.Open("pgx", standby.URL())
	if err != nil {
		return replicaSet{}, err
	}
	defer second.Close()
	err = e.until(ctx, standby.Dir, "the standby lacks the sequence", func() bool {
		_, err := second.ExecContext(ctx, "select last_value from ids")
		return err == nil
	})
	return replicaSet{
		dense: true,
		next: func(ctx context.Context) (id int64, err error) {
			err = c.QueryRowContext(ctx, "select nextval('ids')").Scan(&id)
			return id, err
		},
		kill: func() error {
			if err := primary.End(); err != nil {
				return err
			}
			time.Sleep(downAfter)
			return standby.Promote()
		},
	}, err
}
