package maelstrom

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/keeper"
	"github.com/flakelease/allocator/internal/node"
)

// Config is what a node is told besides what Maelstrom tells it.
type Config struct {
	// Window is how far ahead of the clock a ceiling is reserved. The pace of
	// everything else follows from it, in the proportions of the defaults of
	// package config. At least MinWindow.
	Window  time.Duration
	Version string
	Logger  *slog.Logger
	Clock   *clock.System // nil: the machine's
}

// MinWindow is the shortest window: a tenth of it must be enough for a renewal.
const MinWindow = time.Second

// Validate returns an error that says which field breaks which rule.
func (c Config) Validate() error {
	if c.Window < MinWindow || c.Window > time.Hour {
		return fmt.Errorf("maelstrom: window: %v is not within %v and %v", c.Window, MinWindow, time.Hour)
	}
	return nil
}

const (
	// initWithin is for how long the answer to init may wait for a first window,
	// so that no request is refused while the cluster is whole. Maelstrom itself
	// waits for 10 s. After it init is answered all the same, and requests are
	// refused until there is a window.
	initWithin = 5 * time.Second
	// stopWithin is for how long a node that ends tries to give its sid back. At
	// the end of stdin, where no try can succeed, it is what ending takes.
	stopWithin = 3 * time.Second
	// mostRequests bounds the requests that are being answered at a time.
	mostRequests = 1024
	// watchEvery is the pause between two looks at lin-kv for changes.
	watchEvery = time.Second
	// spaceKey is where the space lies in lin-kv.
	spaceKey = "allocator"
)

// session is one node from its start to the end of its streams. Run's goroutine
// owns it.
type session struct {
	cfg   Config
	wire  *wire
	clock *clock.System

	life     context.Context // of all that the session starts
	tasks    errgroup.Group  // what Run waits for
	requests errgroup.Group  // of these, the requests under way
	ended    chan error      // the session is to end, and why; has room for every sender

	id         string // "" before init
	node       *node.Node
	keeping    context.Context // of the keeper; its end asks for the sid to be given back
	stopKeeper context.CancelFunc
	kept       chan struct{} // closed once the keeper has ended
	begun      chan struct{} // closed at the first window
}

// Run serves the protocol on in and out until in ends or ctx does, and returns
// nil. When ctx ends it gives the sid back, for which it reads on. It returns an
// error when a stream fails, or when the node cannot go on.
//
// The goroutine that reads from in ends with in, which may be after Run.
func Run(ctx context.Context, cfg Config, in io.Reader, out io.Writer) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	if cfg.Clock == nil {
		cfg.Clock = clock.NewSystem()
	}
	s := &session{
		cfg: cfg, wire: newWire(), clock: cfg.Clock, life: life, ended: make(chan error, 4),
		kept: make(chan struct{}), begun: make(chan struct{}),
	}
	s.requests.SetLimit(mostRequests)
	s.keeping, s.stopKeeper = context.WithCancel(life)
	s.tasks.Go(func() error { s.ended <- s.wire.write(out); return nil })
	s.tasks.Go(func() error {
		// There are no peers to ask about a clock that was set.
		return s.clock.Run(life, func() clock.Witness { return clock.Witness{Says: clock.SaysAlone} }, s.tellStep)
	})
	lines := make(chan []byte)
	go func() {
		s.ended <- readLines(in, func(line []byte) error {
			select {
			case lines <- line:
				return nil
			case <-s.wire.over:
				return errOver
			}
		}, func() { cfg.Logger.Error("a line of stdin was skipped: it is too long", "most", maxLine) })
	}()

	err := s.serve(lines, ctx.Done())
	_ = s.requests.Wait() // they wait for lead at most, and are answered
	s.wire.close()
	s.stopKeeper()
	if s.id != "" {
		<-s.kept
	}
	end()
	_ = s.tasks.Wait()
	return err
}

// serve handles lines until the session is to end, and returns why.
func (s *session) serve(lines <-chan []byte, stopping <-chan struct{}) error {
	for {
		select {
		case line := <-lines:
			s.handle(line)
		case err := <-s.ended:
			return err
		case <-stopping:
			if s.id == "" {
				return nil
			}
			stopping = nil
			s.node.Drain()
			s.stopKeeper() // answers of lin-kv are handed on meanwhile
			s.tasks.Go(func() error { <-s.kept; s.ended <- nil; return nil })
		}
	}
}

// handle carries out one line of stdin.
func (s *session) handle(line []byte) {
	m, err := ParseMessage(line)
	switch {
	case err != nil:
		s.cfg.Logger.Error("a line of stdin was not understood", "error", err, "line", fmt.Sprintf("%.100q", line))
		s.refuse(m, &Error{Code: MalformedRequest, Text: err.Error()})
	case m.InReplyTo != nil:
		s.wire.deliver(m)
	case m.Type == "init":
		s.init(m)
	case m.Type == "generate":
		s.generate(m)
	case m.Type == "error": // nobody answers an error
	default:
		s.refuse(m, &Error{Code: NotSupported, Text: fmt.Sprintf("this node answers init and generate, not %.40q", m.Type)})
	}
}

// reply answers m with body. A message without a msg_id or a sender asks for no
// answer, and an answer is not answered.
func (s *session) reply(m Message, body map[string]any) {
	src := s.id
	if src == "" {
		src = m.Dest // who we are, as far as the sender knows
	}
	if src == "" || m.Src == "" || m.MsgID == nil || m.InReplyTo != nil {
		return
	}
	body["in_reply_to"] = *m.MsgID
	if err := s.wire.send(s.life, src, m.Src, body); err != nil {
		s.cfg.Logger.Debug("not answered", "error", err)
	}
}

func (s *session) refuse(m Message, e *Error) {
	body := map[string]any{"type": "error", "code": e.Code, "text": e.Text}
	if e.Reason != "" {
		body["reason"], body["retry_after_ms"] = e.Reason, e.RetryAfterMs
	}
	s.reply(m, body)
}

// init starts the node that m names, and answers once it has a window.
func (s *session) init(m Message) {
	var body struct {
		NodeID string `json:"node_id"`
	}
	switch err := json.Unmarshal(m.Body, &body); {
	case err != nil || body.NodeID == "":
		s.cfg.Logger.Error("init names no node_id", "error", err)
		s.refuse(m, &Error{Code: MalformedRequest, Text: "init names no node_id"})
		return
	case s.id == "":
		s.id = body.NodeID
		s.wire.setNode(s.id)
		s.start()
	case s.id != body.NodeID:
		s.refuse(m, &Error{Code: PreconditionFailed, Text: fmt.Sprintf("this node is %q already", s.id)})
		return
	}
	s.tasks.Go(func() error {
		timer := time.NewTimer(initWithin)
		defer timer.Stop()
		select {
		case <-s.begun:
		case <-timer.C:
			s.cfg.Logger.Warn("init is answered though there is no window yet", "after", initWithin)
		case <-s.life.Done():
		}
		s.reply(m, map[string]any{"type": "init_ok"})
		return nil
	})
}

// start begins to lease a sid.
func (s *session) start() {
	c := config.Default()
	instance := lease.Instance(uuid.NewString()) // random, never the node's ID: see lease.Instance
	s.node = node.New(node.Config{
		Name: s.id, Instance: instance, Gen: c.Gen(), MaxWait: c.Issue.MaxWait, MaxSkew: c.Issue.MaxSkew,
	}, s.clock, gen.Random())
	w := s.cfg.Window
	ttl := max(time.Second, (w / 2).Truncate(time.Second))
	store := NewStore(linKV{s.wire}, spaceKey, s.clock, watchEvery)
	k := keeper.New(keeper.Config{
		Machine: lease.Config{
			Registration: lease.Registration{Instance: instance, Node: s.id, Version: s.cfg.Version},
			Format:       c.Format(),
			Window:       w, ExtendEvery: w / 6,
			TTL: ttl, KeepAliveEvery: min(w/10, ttl/3),
			ReloadEvery: w, RetryAfter: min(250*time.Millisecond, w/20),
			MaxSkew: c.Issue.MaxSkew, MaxLead: c.Issue.MaxLead,
			Nonce:  rand.Text,
			Jitter: func(most time.Duration) time.Duration { return mathrand.N(max(most, 1)) },
		},
		Store: store, Generator: &firstBegin{Node: s.node, begun: s.begun}, Clock: s.clock, Logger: s.cfg.Logger,
		CallTimeout: max(w/15, 100*time.Millisecond), StopTimeout: stopWithin,
	})
	s.tasks.Go(func() error {
		defer close(s.kept)
		if !s.initSpace(store, c) {
			return nil
		}
		if err := k.Run(s.keeping); err != nil {
			s.ended <- fmt.Errorf("lease: %w", err)
		}
		return nil
	})
}

// initSpace makes the space, or finds it made by another node, and tries until
// one of both has happened. It reports whether it has.
//
// The first node does what an operator does in production. No space that was in
// use is made anew: it then has a config, or records that Init refuses.
func (s *session) initSpace(store *Store, c config.Config) bool {
	as := lease.Space{Layout: c.Layout, Epoch: c.Epoch, Pool: uuid.NewString()}
	for {
		ctx, cancel := context.WithTimeout(s.keeping, c.Lease.CallTimeout)
		created, _, err := store.Init(ctx, as, s.clock.Now().Wall)
		cancel()
		if err == nil {
			s.cfg.Logger.Info("space", "created", created)
			return true
		}
		if s.keeping.Err() != nil {
			return false
		}
		s.cfg.Logger.Warn("the space cannot be initialised yet", "error", err)
		select {
		case <-s.keeping.Done():
			return false
		case <-time.After(c.Lease.CallTimeout / 4):
		}
	}
}

// firstBegin is the node, and tells of its first window.
type firstBegin struct {
	*node.Node
	begun chan struct{}
	once  sync.Once
}

// Begin passes g on.
func (f *firstBegin) Begin(g lease.Grant) {
	f.Node.Begin(g)
	f.once.Do(func() { close(f.begun) })
}

// generate answers with a new ID, or with a definite error: a refusal has used
// nothing up (I7).
func (s *session) generate(m Message) {
	switch {
	case s.id == "":
		s.refuse(m, &Error{Code: TemporarilyUnavailable, Text: "init comes first"})
		return
	case m.MsgID == nil:
		s.cfg.Logger.Error("a generate has no msg_id and cannot be answered", "src", m.Src)
		return
	}
	if !s.requests.TryGo(func() error { s.issue(m); return nil }) {
		s.refuse(m, &Error{Code: TemporarilyUnavailable, Text: fmt.Sprintf("over %d requests at a time", mostRequests)})
	}
}

func (s *session) issue(m Message) {
	b, err := s.node.Next(s.life, 1, 0)
	var r *node.Refusal
	switch {
	case err == nil:
		// A string: JSON readers that keep numbers as doubles would make two IDs one.
		s.reply(m, map[string]any{"type": "generate_ok", "id": b.First.String()})
	case errors.As(err, &r):
		s.refuse(m, &Error{
			Code: TemporarilyUnavailable, Text: r.Message,
			Reason: string(r.Reason), RetryAfterMs: r.RetryAfter.Milliseconds(),
		})
	default:
		s.refuse(m, &Error{Code: Crash, Text: err.Error()})
	}
}

// tellStep logs what happened to the machine's clock.
func (s *session) tellStep(e clock.AnchorEvent) {
	s.cfg.Logger.Warn("clock", "event", e.Kind.String(), "step", e.Step, "jump", e.Jump, "lasted", e.Lasted)
}
