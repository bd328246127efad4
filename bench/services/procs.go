package services

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	pg "github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// Nodes is how many nodes of ours run.
const Nodes = 3

// Env holds all servers, each a process of its own on loopback.
type Env struct {
	Node     [Nodes]Node
	Redis    string // address; "": not installed
	Postgres string // address; "": not installed
	pgServer *pg.Server
	Etcd     string // address of the one member that our nodes use, too
	Peer     map[string]string
	TCP      Redis
	Socket   Redis
	Versions map[string]string // programs that no go.mod has, to their versions
	// RedisBenchmark is the path of the program, "" if it is not installed.
	RedisBenchmark string
	Missing        []string // cases that are not measured, each with the reason

	binary, self string // as of Start
	layout       string // The space has this layout; "": the default.
	dir          string
	procs        map[string]*proc.Process // address to process
	ends         []func()                 // Close calls these, the last one first.
}

// newEnv returns an Env without servers.
func newEnv(binary, self string) (*Env, error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err == nil && binary != "" {
		binary, err = filepath.Abs(binary) // Processes run in dir.
	}
	return &Env{
		Peer:     map[string]string{},
		Versions: map[string]string{},
		binary:   binary,
		self:     self,
		dir:      dir,
		procs:    map[string]*proc.Process{},
	}, err
}

// Node is where one of our nodes answers.
type Node struct {
	GRPC, HTTP, RESP string // RESP "": no such listener
}

// Redis holds what answers the Redis protocol on one kind of socket, by address; "": nothing does.
type Redis struct {
	Epoll  string // the minimum that a server can do
	Server string // Redis
	Node   string // ours, whose gRPC address is the next one
	GRPC   string
}

// unixPrefix begins the address of a Unix socket.
const unixPrefix = "unix:"

// connect connects to a server.
func connect(addr string) (net.Conn, error) {
	if path, ok := strings.CutPrefix(addr, unixPrefix); ok {
		return net.Dial("unix", path)
	}
	return net.Dial("tcp", addr)
}

// startTimeout is how long a server may take until it answers.
const startTimeout = 60 * time.Second

// Start starts all servers. binary is allocator's; self runs a server that does
// nothing for `-serve KIND -addr ADDR`.
func Start(ctx context.Context, binary, self string) (e *Env, err error) {
	if e, err = newEnv(binary, self); err != nil {
		return e, err
	}
	defer func() {
		if err != nil {
			e.Close()
		}
	}()
	peers := map[string]string{"tcp": "", "http": "", "http-limits": "", "grpc": ""}
	if runtime.GOOS == "linux" {
		e.Socket.Epoll = unixPrefix + filepath.Join(e.dir, "epoll.sock")
		peers["epoll"], peers["epoll-unix"] = "", e.Socket.Epoll
	}
	for name, addr := range peers {
		if addr == "" {
			addr = loopback.Address()
		}
		kind := strings.TrimSuffix(name, "-unix")
		if err := e.start(ctx, addr, self, "-serve", kind, "-addr", addr); err != nil {
			return e, err
		}
		e.Peer[name] = addr
	}
	e.TCP.Epoll = e.Peer["epoll"]
	if err := e.startNodes(ctx); err != nil {
		return e, err
	}
	e.startRedis(ctx)
	e.startPostgres(ctx)
	e.findTools()
	return e, nil
}

func (e *Env) startNodes(ctx context.Context) error {
	if err := e.startEtcd(ctx); err != nil {
		return err
	}
	for i := range e.Node {
		resp := loopback.Address()
		if i == Nodes-1 {
			resp = unixPrefix + filepath.Join(e.dir, "node.sock")
		}
		if err := e.startNode(ctx, i, resp); err != nil {
			return err
		}
	}
	e.TCP.Node, e.TCP.GRPC = e.Node[0].RESP, e.Node[0].GRPC
	e.Socket.Node, e.Socket.GRPC = e.Node[Nodes-1].RESP, e.Node[Nodes-1].GRPC
	return nil
}

// startEtcd starts an etcd of one member, and makes a space in it.
func (e *Env) startEtcd(ctx context.Context) error {
	e.Etcd = loopback.Address()
	if err := e.start(ctx, e.Etcd, e.self, "-serve", "etcd", "-addr", e.Etcd); err != nil {
		return err
	}
	return e.initialize(ctx, e.endpoint()...)
}

// endpoint returns the flags that name the etcd of one member and the layout of its space.
func (e *Env) endpoint() []string {
	flags := []string{"--etcd.endpoints", "http://" + e.Etcd}
	if e.layout != "" {
		flags = append(flags, "--layout", e.layout)
	}
	return flags
}

// initialize makes a space in the etcd that flags name.
func (e *Env) initialize(ctx context.Context, flags ...string) error {
	out, err := exec.CommandContext(ctx, e.binary, append([]string{"init", "--fresh"}, flags...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("allocator init: %w: %s", err, out)
	}
	return nil
}

// node returns where node i listens, each time on other ports of a host, and the arguments that it starts with.
func (e *Env) node(host string, i int, etcd ...string) (n Node, args []string) {
	at := func() string { return strings.Replace(loopback.Address(), "127.0.0.1", host, 1) }
	n = Node{GRPC: at(), HTTP: at()}
	return n, append([]string{
		"serve", "--node.name", fmt.Sprintf("node-%d", i+1), "--log.level", "warn", "--listen.grpc", n.GRPC,
		"--listen.http", n.HTTP, "--listen.admin", at(), "--listen.gossip", at(),
	}, etcd...)
}

// issues waits until a node answers a request for an ID with one.
func (e *Env) issues(ctx context.Context, n Node) error {
	return e.until(ctx, n.GRPC, "no ID", func() bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.HTTP+"/v1/ids", nil)
		if err != nil {
			return false
		}
		req.Close = true
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}

// until waits until something holds of the server at addr, or until that server has ended. what is so meanwhile.
func (e *Env) until(ctx context.Context, addr, what string, holds func() bool) error {
	p := cmp.Or(e.procs[addr], &proc.Process{})
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for !holds() {
		select {
		case <-p.Ended:
			return fmt.Errorf("services: %s at %s: it ended:\n%s", what, addr, &p.Err)
		case <-ctx.Done():
			return fmt.Errorf("services: %s at %s: %w", what, addr, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func (e *Env) startRedis(ctx context.Context) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		e.Missing = append(e.Missing, "Redis: redis-server is not installed (Debian: apt-get install redis-server)")
		return
	}
	addr, socket := loopback.Address(), filepath.Join(e.dir, "redis.sock")
	_, port, _ := net.SplitHostPort(addr)
	err = e.start(ctx, addr, path, "--bind", "127.0.0.1", "--port", port, "--unixsocket", socket, "--save", "",
		"--appendonly", "no", "--dir", e.dir)
	if err != nil {
		e.Missing = append(e.Missing, fmt.Sprintf("Redis: %v", err))
		return
	}
	e.TCP.Server, e.Socket.Server = addr, unixPrefix+socket
	e.Redis, e.Versions["Redis"] = addr, versionOf(ctx, path, "v=")
}

func (e *Env) startPostgres(ctx context.Context) {
	addr := loopback.Address()
	_, port, _ := net.SplitHostPort(addr)
	s, stop, err := pg.New("listen_addresses=127.0.0.1", "port="+port, "max_connections=120", "fsync=on")
	if err != nil {
		e.Missing = append(e.Missing, fmt.Sprintf("PostgreSQL: %v", err))
		return
	}
	e.ends = append(e.ends, func() { _ = stop() })
	c, err := pgCaller(addr, "create sequence ids", "select 1")
	if err != nil {
		e.Missing = append(e.Missing, fmt.Sprintf("PostgreSQL: %v", err))
		return
	}
	c.Close()
	e.pgServer, e.Postgres = s, addr
	e.Versions["PostgreSQL"] = versionOf(ctx, filepath.Join(s.Bin, "postgres"), "(PostgreSQL)")
}

// versionOf returns the word after mark in the output of `path --version`.
func versionOf(ctx context.Context, path, mark string) string {
	out, _ := exec.CommandContext(ctx, path, "--version").Output()
	_, after, ok := strings.Cut(string(out), mark)
	if f := strings.Fields(after); ok && len(f) > 0 {
		return f[0]
	}
	return "?"
}

// start runs a server and waits until addr takes connections.
func (e *Env) start(ctx context.Context, addr string, path string, args ...string) error {
	if err := e.spawn(addr, path, args...); err != nil {
		return err
	}
	return e.until(ctx, addr, "no connection", func() bool {
		c, err := connect(addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// spawn runs a server.
func (e *Env) spawn(addr string, path string, args ...string) error {
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Dir = io.Discard, e.dir
	cmd.WaitDelay = time.Second // A member of etcd inside a node has its stderr too.
	p, err := proc.Start(cmd)
	if err == nil {
		e.procs[addr] = p
	}
	return err
}

// kill ends the server at addr at once.
func (e *Env) kill(addr string) { _ = e.procs[addr].Signal(syscall.SIGKILL) }

// stop signals the server at addr and waits until it has ended.
func (e *Env) stop(addr string, how syscall.Signal) {
	_ = e.procs[addr].Signal(how)
	<-e.procs[addr].Ended
}

// CPU returns the processor time that the servers at these addresses have used;
// 0 where that is unknown.
func (e *Env) CPU(addrs ...string) time.Duration {
	var sum time.Duration
	for _, addr := range addrs {
		if p := e.procs[addr]; p != nil {
			sum += cpuOf(p.Cmd.Process.Pid)
		}
		if addr == e.Postgres && e.pgServer != nil {
			pids, _ := e.pgServer.Processes()
			for _, pid := range pids {
				sum += cpuOf(pid)
			}
		}
	}
	return sum
}

// cpuOf adds up the time that the threads of a process have run.
func cpuOf(pid int) (sum time.Duration) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, path := range threads {
		b, err := os.ReadFile(path) // fails if the thread has just ended
		if f := strings.Fields(string(b)); err == nil && len(f) > 0 {
			ns, _ := strconv.ParseInt(f[0], 10, 64)
			sum += time.Duration(ns)
		}
	}
	return sum
}

// Close ends all servers and removes what they wrote.
func (e *Env) Close() {
	for _, p := range e.procs {
		_ = p.Signal(syscall.SIGTERM)
	}
	for _, p := range e.procs {
		_ = p.Stop(10 * time.Second)
	}
	for _, end := range slices.Backward(e.ends) {
		end()
	}
	if e.dir != "" {
		_ = os.RemoveAll(e.dir)
	}
}
