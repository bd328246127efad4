package rig

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/real/clockhook"
	"github.com/flakelease/allocator/chaos/real/operator"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/dev/loopback"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/member"
)

// Timing is the configured times of nodes.
type Timing struct {
	Window, TTL time.Duration
	Watermark   time.Duration // watermark.interval; 0: the default
	ExtendEvery time.Duration // at most a sixth of Window, and Watermark
	CallTimeout time.Duration // as nodes derive it from Window
	// Election is how much longer an election may take than with etcd's own settings.
	Election time.Duration
}

// Timings. Brisk lets faults that must outlast a window or a lease fit into a
// minute: its lead in hand, 4.5 s to 5 s, is still three times etcd's usual
// change of leader.
var (
	Brisk = Timing{
		Window:      5 * time.Second,
		Watermark:   500 * time.Millisecond,
		ExtendEvery: 500 * time.Millisecond,
		CallTimeout: time.Second,
		TTL:         3 * time.Second,
	}
	// BriskInside is for members inside nodes, whose elections wait twice as long.
	BriskInside = Timing{
		Window:      10 * time.Second,
		Watermark:   time.Second,
		ExtendEvery: time.Second,
		CallTimeout: 2 * time.Second,
		TTL:         3 * time.Second,
		Election:    2 * time.Second,
	}
	Default = Timing{
		Window:      30 * time.Second,
		ExtendEvery: 5 * time.Second,
		CallTimeout: 2 * time.Second,
		TTL:         15 * time.Second,
	}
	// DefaultInside is Default for members inside nodes.
	DefaultInside = Timing{
		Window:      Default.Window,
		ExtendEvery: Default.ExtendEvery,
		CallTimeout: Default.CallTimeout,
		TTL:         Default.TTL,
		Election:    BriskInside.Election,
	}
)

// MaxSkew and MaxLead are the nodes' defaults for how far apart clocks may stand
// and how far ahead of its clock a node may issue.
const (
	MaxSkew = 250 * time.Millisecond
	MaxLead = 250 * time.Millisecond
)

// Names in etcd.
const (
	Root  = "allocator"
	Space = "chaos"
)

// Members is how many etcd processes there are.
const Members = 3

// Config is the input of New.
type Config struct {
	Dir       string // logs and data
	Nodes     int
	Etcd      string // path of the etcd server
	Allocator string // path of the allocator
	Inside    bool   // The members are those that nodes run inside: "allocator etcd run", and not Etcd.
	Embedded  string // path of the program that embeds one; the last node is such a program; "": none is
	Format    flake.Format
	Timing    Timing
	Clocks    bool // start nodes behind the clock hook
	Network   bool // put every process in a network of its own
	Seed      uint64
	Limit     int64         // largest size of the history, in bytes
	Retention time.Duration // age at which etcd's history is compacted; 0: never
}

// Rig is the cluster under test. It is safe for concurrent use.
type Rig struct {
	Config
	Etcds   []*Process
	Nodes   []*Node
	Op      *operator.Operator
	History *history.Writer
	Net     *Network // nil on loopback
	Cannot  []string // faults that this machine does not allow, and why

	began   time.Time
	file    *os.File
	ids     atomic.Int64
	leader  atomic.Int32
	stop    context.CancelFunc
	spare   *Node
	keyFile string
	// insides are what members inside nodes run with, and restores how etcd's own program would run,
	// of which restores take names and URLs.
	insides  []member.Run
	restores [][]string
	all      sync.WaitGroup
	grants   grants

	mu     sync.Mutex // guards all below
	token  string     // token of etcd's cluster
	copies int        // restores of etcd so far
	shared *http.Transport
}

// Node is an allocator process and where it is reached.
type Node struct {
	*Process
	HTTP, GRPC, RESP, Admin, Gossip string // host:port; an embedded node has no GRPC and no RESP
	rig                             *Rig
	sample                          atomic.Pointer[Sample]
	instances                       instances
}

// New makes a rig and starts nothing but the network.
func New(cfg Config) (r *Rig, err error) {
	r = &Rig{Config: cfg, began: time.Now(), token: "chaos-0"}
	r.leader.Store(-1)
	if err := os.MkdirAll(filepath.Join(cfg.Dir, "logs"), 0o755); err != nil {
		return nil, err
	}
	if r.file, err = os.Create(filepath.Join(cfg.Dir, "history.jsonl")); err != nil {
		return nil, err
	}
	r.History = history.NewWriter(r.file, history.WriterConfig{
		Now:   r.Now,
		Limit: cfg.Limit,
		Each: func(op *history.Op) {
			if op.F == history.FAllocate && op.Type == history.OK {
				r.ids.Add(op.Block.Count)
			}
		},
	})
	if err := r.places(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Now returns the time since the rig was made: the clock of its history.
func (r *Rig) Now() clock.Mono { return clock.Mono(time.Since(r.began)) }

// StartWall returns the wall clock at the time 0 of the history, in Unix ms.
func (r *Rig) StartWall() int64 { return r.began.UnixMilli() }

// IDs returns how many IDs clients were given.
func (r *Rig) IDs() int64 { return r.ids.Load() }

// places puts every process somewhere, on ports that are free there.
func (r *Rig) places() error {
	place := func(string) (Place, error) { return Loopback{}, nil }
	at := func(Place, int) string { return loopback.Address() }
	if r.Network {
		network, err := newNetwork(r.Seed)
		if err != nil {
			r.Cannot = append(r.Cannot, "networks: "+err.Error())
			r.Network = false
		} else {
			r.Net, place = network, network.add
			at = func(p Place, usual int) string { return net.JoinHostPort(p.IP(), strconv.Itoa(usual)) }
		}
	}
	if r.Clocks {
		if err := clockhook.Supported(); err != nil {
			r.Cannot = append(r.Cannot, "clocks: "+err.Error())
			r.Clocks = false
		}
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	r.keyFile = filepath.Join(r.Dir, "gossip.key")
	if err := os.WriteFile(r.keyFile, []byte(base64.StdEncoding.EncodeToString(key)+"\n"), 0o600); err != nil {
		return err
	}
	var urls, peers []string
	for i := range Members {
		name := fmt.Sprintf("e%d", i+1)
		p, err := place(name)
		if err != nil {
			return err
		}
		client, peer := at(p, clientPort), at(p, peerPort)
		urls, peers = append(urls, "http://"+client), append(peers, name+"=http://"+peer)
		r.Etcds = append(r.Etcds, &Process{
			Name:   name,
			Place:  p,
			Path:   r.Etcd,
			Dir:    filepath.Join(r.Dir, "logs"),
			Hooked: r.Clocks,
			Args: []string{"--name", name, "--listen-client-urls", "http://" + client,
				"--advertise-client-urls", "http://" + client,
				"--listen-peer-urls", "http://" + peer, "--initial-advertise-peer-urls", "http://" + peer,
				"--log-level", "warn"},
		})
		if r.Inside {
			r.insides = append(r.insides, member.Run{
				Name:   name,
				Client: "http://" + client,
				Peer:   "http://" + peer,
				IP:     p.IP(),
				Quota:  2 << 30,
			})
		}
		if r.Retention > 0 {
			p := r.Etcds[i]
			p.Args = append(p.Args, "--auto-compaction-mode", "periodic",
				"--auto-compaction-retention", r.Retention.String())
		}
	}
	for i, p := range r.Etcds {
		p.Args = append(p.Args, "--initial-cluster", strings.Join(peers, ","))
		if r.Inside {
			r.insides[i].Initial = strings.Join(peers, ",")
			r.restores = append(r.restores, p.Args)
			p.Path, p.Args = r.Allocator, []string{"etcd", "run"}
		}
	}
	for i := range r.Config.Nodes {
		n, err := r.newNode(fmt.Sprintf("n%d", i+1), urls, place, at)
		if err != nil {
			return err
		}
		r.Nodes = append(r.Nodes, n)
	}
	if n := r.EmbeddedNode(); n != nil {
		n.embed(r, urls)
	}
	var err error
	if r.spare, err = r.newNode("extra", urls, place, at); err != nil {
		return err
	}
	var dial operator.Dialer
	if r.Net != nil {
		dial = r.Net.Dial
	}
	r.Op, err = operator.New(urls, Root, Space, dial)
	return err
}

func (r *Rig) newNode(name string, urls []string, place func(string) (Place, error),
	at func(Place, int) string) (*Node, error) {
	p, err := place(name)
	if err != nil {
		return nil, err
	}
	n := &Node{rig: r}
	for _, a := range []struct {
		addr  *string
		usual int
	}{{&n.HTTP, 8080}, {&n.GRPC, 9000}, {&n.RESP, 6380}, {&n.Admin, 7947}, {&n.Gossip, gossipPort}} {
		*a.addr = at(p, a.usual)
	}
	t := r.Timing
	n.Process = &Process{
		Name:   name,
		Place:  p,
		Path:   r.Allocator,
		Dir:    filepath.Join(r.Dir, "logs"),
		Hooked: r.Clocks,
		Args: append([]string{"serve",
			"--node.name", name, "--root", Root, "--space", Space, "--etcd.endpoints", strings.Join(urls, ","),
			"--listen.http", n.HTTP, "--listen.grpc", n.GRPC, "--listen.resp", n.RESP, "--listen.admin", n.Admin,
			"--listen.gossip", n.Gossip,
			"--listen.insecure=true", "--gossip.key-file", r.keyFile, "--log.format", "json",
			"--layout", r.Format.String()}, t.flags()...),
	}
	return n, nil
}

// embed makes n a program that embeds an allocator, with the settings of a server.
func (n *Node) embed(r *Rig, urls []string) {
	args := []string{"--node.name", n.Name, "--space", Space, "--etcd.endpoints", strings.Join(urls, ","),
		"--listen.http", n.HTTP, "--listen.admin", n.Admin, "--listen.gossip", n.Gossip}
	settings := append([]string{"--root", Root, "--gossip.key-file", r.keyFile, "--layout", r.Format.String()},
		r.Timing.flags()...)
	for i := 0; i < len(settings); i += 2 {
		args = append(args, "--set", strings.TrimPrefix(settings[i], "--")+"="+settings[i+1])
	}
	n.Path, n.Args, n.GRPC, n.RESP = r.Embedded, args, "", ""
}

// Servers returns the nodes that are servers.
func (r *Rig) Servers() []*Node {
	if r.Embedded == "" {
		return r.Nodes
	}
	return r.Nodes[:len(r.Nodes)-1]
}

// EmbeddedNode returns the node that is a program with an allocator of its own; nil: none is.
func (r *Rig) EmbeddedNode() *Node {
	if r.Embedded == "" {
		return nil
	}
	return r.Nodes[len(r.Nodes)-1]
}

func (t Timing) flags() []string {
	flags := []string{"--lease.window", t.Window.String(), "--lease.ttl", t.TTL.String()}
	if t.Watermark > 0 {
		flags = append(flags, "--watermark.interval", t.Watermark.String())
	}
	return flags
}

// MaxCount returns the most IDs that a node gives in one block.
func (r *Rig) MaxCount() int {
	return gen.Config{Layout: r.Format.Layout, MaxLead: clock.MillisOf(MaxLead)}.MaxBlock()
}

// Names of the nodes.
func (r *Rig) Names() (out []string) {
	for _, n := range r.Nodes {
		out = append(out, n.Name)
	}
	return out
}

// MayAnswer returns a function that names, once an answer has come, the process
// that gave it. It is to be called before the question is sent.
//
// A process is gone before the next of its node is started, and that needs longer
// than 30 ms to issue its first ID.
func (n *Node) MayAnswer() func() string {
	n.Process.mu.Lock()
	before, alive := n.Process.run, n.Process.running()
	n.Process.mu.Unlock()
	return func() string {
		n.Process.mu.Lock()
		defer n.Process.mu.Unlock()
		run := n.Process.run
		if alive && run == before+1 && time.Since(n.Process.began) < 30*time.Millisecond {
			run = before
		}
		return fmt.Sprintf("%s#%d", n.Name, run)
	}
}

// Endpoints returns etcd's client URLs.
func (r *Rig) Endpoints() string {
	for i, a := range r.Nodes[0].Args {
		if a == "--etcd.endpoints" {
			return r.Nodes[0].Args[i+1]
		}
	}
	return ""
}

// Spare returns a node that is not started, for faults that need one more.
func (r *Rig) Spare() *Node { return r.spare }

// most is how long the rig waits for one event. It is no claim about speed.
const most = 2 * time.Minute

// Start starts etcd, makes the space, starts the nodes, and returns when all of
// them issue.
func (r *Rig) Start(ctx context.Context) error {
	for _, p := range r.Etcds {
		if err := p.Start(r.memberArgs(p.Name, "new")...); err != nil {
			return err
		}
	}
	init := []string{"init", "--fresh", "--layout", r.Format.String(), "--root", Root, "--space", Space,
		"--etcd.endpoints", r.Endpoints()}
	if err := until(ctx, most, "etcd answers", func(ctx context.Context) error {
		_, err := r.Allocate(ctx, init...)
		return err
	}); err != nil {
		p := r.Etcds[0]
		return fmt.Errorf("%w\n%s", err, tail(p.Output(p.Run())))
	}
	for _, n := range r.Nodes {
		if err := n.Start(); err != nil {
			return err
		}
	}
	inner, stop := context.WithCancel(context.WithoutCancel(ctx))
	r.stop = stop
	r.all.Go(func() { r.observe(inner) })
	r.all.Go(func() { r.watchRecords(inner) })
	for _, n := range r.Nodes {
		if err := until(ctx, most, n.Name+" issues", n.Ready); err != nil {
			return fmt.Errorf("%w\n%s", err, tail(n.Output(n.Run())))
		}
	}
	return nil
}

func (r *Rig) dataDir(member string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	dir := filepath.Join(r.Dir, "etcd", strconv.Itoa(r.copies), member)
	if r.Inside {
		return filepath.Join(dir, "etcd")
	}
	return dir
}

func (r *Rig) memberArgs(member, state string) []string {
	dir := r.dataDir(member)
	_ = os.MkdirAll(filepath.Dir(dir), 0o755)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, run := range r.insides {
		if run.Name == member {
			run.Token, run.Existing = r.token, state == "existing"
			d := inside.Dir(filepath.Dir(dir))
			_ = d.Prepare(run) // without it the member does not start, and says so
			return []string{string(d)}
		}
	}
	return []string{"--data-dir", dir, "--initial-cluster-state", state, "--initial-cluster-token", r.token}
}

// StartMember starts an etcd member again on its data.
func (r *Rig) StartMember(i int) error {
	p := r.Etcds[i]
	return p.Start(r.memberArgs(p.Name, "existing")...)
}

// Allocate runs the allocator's command line in the harness's own place, and
// returns what it printed.
func (r *Rig) Allocate(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, r.Allocator, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := r.home().Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.String(), fmt.Errorf("allocator %s: %w: %s", args[0], err, tail(out.String()))
	}
	return out.String(), nil
}

func (r *Rig) home() Place {
	if r.Net != nil {
		return r.Net.home
	}
	return Loopback{}
}

// Ready returns nil if the node would issue now.
func (n *Node) Ready(ctx context.Context) error {
	body, err := n.get(ctx, "/readyz")
	if err != nil {
		return fmt.Errorf("%s: %w: %s", n.Name, err, bytes.TrimSpace(body))
	}
	return nil
}

// Ask asks the node for an ID over HTTP, and returns the status and the body.
func (n *Node) Ask(ctx context.Context) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+n.HTTP+"/v1/ids", nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := n.rig.http().Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return resp.StatusCode, string(bytes.TrimSpace(text)), err
}

// get asks the node's admin port.
func (n *Node) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.Admin+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := n.rig.http().Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return body, err
}

// Dial opens a connection to a process of the rig.
func (r *Rig) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	if r.Net != nil {
		return r.Net.Dial(ctx, network, addr)
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

func (r *Rig) http() *http.Client {
	return &http.Client{Timeout: 2 * time.Second, Transport: r.transport()}
}

// transport is shared, or every scrape would leave a connection behind.
func (r *Rig) transport() *http.Transport {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.shared == nil {
		r.shared = &http.Transport{DialContext: r.Dial, MaxIdleConnsPerHost: 2, IdleConnTimeout: 5 * time.Second}
	}
	return r.shared
}

// Close ends every process, and writes what is left of the history.
func (r *Rig) Close() error {
	if r.stop != nil {
		r.stop()
		r.all.Wait()
	}
	var errs []error
	for _, n := range r.Nodes {
		errs = append(errs, n.Kill())
	}
	if r.spare != nil {
		errs = append(errs, r.spare.Kill())
	}
	for _, p := range r.Etcds {
		errs = append(errs, p.Kill())
	}
	if r.Op != nil {
		_ = r.Op.Close() // returns only that it was closed
	}
	if r.Net != nil {
		errs = append(errs, r.Net.Close())
	}
	if r.History != nil {
		errs = append(errs, r.History.Flush(), r.file.Close())
	}
	return errors.Join(errs...)
}

// ErrBroken is in an error that says what the product did and must never do. No other try helps.
var ErrBroken = errors.New("it must not")

// until tries until it works, it is ErrBroken, ctx ends or the time is over.
func until(ctx context.Context, within time.Duration, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil || errors.Is(err, ErrBroken) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %v: %w", what, within, err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Until tries until it works, it is ErrBroken, ctx ends or the time is over.
func Until(ctx context.Context, within time.Duration, what string, try func(context.Context) error) error {
	return until(ctx, within, what, try)
}

func tail(s string) string { return s[max(0, len(s)-2000):] }
