// Package player plays the simulation for a page: it steps a run, and tells in JSON what the
// page draws. It runs in the browser, and in tests.
//
// The page is chaos/sim itself, compiled to WebAssembly, since an animation would show what its
// author believes. A run is a function of its seed and of what a visitor did, so a link repeats
// it to the last event, and "back" plays it again from the start. A rule is left out by a
// planted bug that is compiled in, one program for each: a switch in the core would be a way to
// turn the rule off in production. Programs are scripts in base64, since a page that is a file
// may load nothing else.
package player

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/sim"
	"github.com/flakelease/allocator/internal/clock"
)

// Bounds of what a player keeps for the next view, and of a run. What is beyond is forgotten,
// the oldest first. maxHappened is what five nodes do in ten minutes, which a page shows.
const (
	maxHappened = 40_000
	maxMessages = 200
	maxLines    = 400
	maxNodes    = 9
	maxActs     = 1000
	maxMinutes  = 24 * 60
)

// Options is what a run is begun with. The zero value is a calm run of four nodes.
type Options struct {
	Seed  string   `json:"seed"` // a number, as text since JavaScript has not all of 64 bits; empty: 1
	Mode  sim.Mode `json:"mode"` // empty: calm
	Nodes int      `json:"nodes"`
	SIDs  int      `json:"sids"`
	Acts  string   `json:"acts"`  // as sim.ParseActs reads them
	Until int      `json:"until"` // plays up to this event at once
	// Minutes are those of faults in a seed of the campaigns, as -minutes says there; 0: as drawn.
	Minutes float64 `json:"minutes"`
}

// View is what the page draws. Times are milliseconds since the start of the run.
type View struct {
	Now        float64     `json:"now"`
	Event      int         `json:"event"`
	Over       bool        `json:"over"`
	Seed       string      `json:"seed"`
	Mode       sim.Mode    `json:"mode"`
	Acts       string      `json:"acts"`
	Hash       string      `json:"hash"`
	Error      string      `json:"error"` // The last call failed with it.
	IDs        int         `json:"ids"`
	Duplicates int         `json:"duplicates"`
	Disorder   int         `json:"disorder"`
	Refused    int         `json:"refused"`
	Twin       *twin       `json:"twin"` // the first duplicate
	Violations []violation `json:"violations"`
	Etcd       etcd        `json:"etcd"`
	Nodes      []node      `json:"nodes"`
	Happened   []happening `json:"happened"` // since the last view
	Log        []string    `json:"log"`      // since the last view
}

type twin struct {
	ID string `json:"id"`
	A  issuer `json:"a"`
	B  issuer `json:"b"`
}

type issuer struct {
	Process string  `json:"process"`
	SID     int     `json:"sid"`
	At      float64 `json:"at"`
}

type violation struct {
	Claim  string  `json:"claim"`
	Detail string  `json:"detail"`
	At     float64 `json:"at"`
}

type etcd struct {
	Away     bool    `json:"away"`
	Revision int64   `json:"revision"`
	Era      int64   `json:"era"`
	Mark     float64 `json:"mark"`
}

type node struct {
	Name      string   `json:"name"`
	Process   string   `json:"process"`
	Up        bool     `json:"up"`
	Paused    bool     `json:"paused"`
	Cut       bool     `json:"cut"`
	Replay    bool     `json:"replay"`
	GossipCut bool     `json:"gossipCut"`
	Phase     string   `json:"phase"`
	Problem   string   `json:"problem"`
	Serving   bool     `json:"serving"`
	Reason    string   `json:"reason"`
	SID       int      `json:"sid"`
	Term      int64    `json:"term"`
	Base      float64  `json:"base"`
	Ceil      float64  `json:"ceil"`
	Held      bool     `json:"held"`
	Gate      string   `json:"gate"`
	Off       float64  `json:"off"`
	Wall      float64  `json:"wall"`
	Error     *float64 `json:"error"` // null: unknown
}

type happening struct {
	At      float64 `json:"t"`
	Kind    string  `json:"k"`
	Node    int     `json:"n"`
	Process string  `json:"p,omitempty"`
	SID     int     `json:"sid"`
	Count   int     `json:"c,omitempty"`
	ID      string  `json:"id,omitempty"`
	Term    int64   `json:"term,omitempty"`
	Base    float64 `json:"base"`
	Ceil    float64 `json:"ceil"`
	To      int     `json:"to"`
	Until   float64 `json:"until,omitempty"`
	Lost    bool    `json:"lost,omitempty"`
	By      float64 `json:"by"`
	What    string  `json:"what,omitempty"`
}

// Player plays one run at a time. It is not safe for concurrent use.
type Player struct {
	live     *sim.Live
	seed     uint64
	options  sim.Options
	happened []happening // but for messages
	messages []happening
	lines    lines
}

// Begin begins a run, and ends the one before.
func (p *Player) Begin(o Options) View {
	seed, err := uint64(1), error(nil)
	if o.Seed != "" {
		seed, err = strconv.ParseUint(o.Seed, 10, 64)
	}
	if err != nil {
		return p.failed(fmt.Errorf("seed %q is no number from 0 to 2^64-1", o.Seed))
	}
	acts, err := sim.ParseActs(o.Acts)
	if err != nil {
		return p.failed(err)
	}
	switch {
	case o.Nodes < 0 || o.Nodes > maxNodes || o.SIDs < 0 || o.SIDs > 32:
		return p.failed(fmt.Errorf("a run has up to %d nodes and 32 sids", maxNodes))
	case len(acts) > maxActs:
		return p.failed(fmt.Errorf("a run has up to %d acts", maxActs))
	case !(o.Minutes >= 0 && o.Minutes <= maxMinutes):
		return p.failed(fmt.Errorf("a run has up to %d minutes of faults", maxMinutes))
	}
	if o.Mode == "" {
		o.Mode = sim.Calm
	}
	if !o.Mode.Known() {
		return p.failed(fmt.Errorf("mode %q is none of %v and %s", string(o.Mode), sim.Modes, sim.Calm))
	}
	p.seed, p.options = seed, sim.Options{
		Mode: o.Mode, Nodes: o.Nodes, SIDs: o.SIDs, Acts: acts, Trace: &p.lines,
		Virtual: time.Duration(o.Minutes * float64(time.Minute)),
	}
	return p.again(acts, o.Until)
}

// again begins the run again, and plays it up to an event.
func (p *Player) again(acts []sim.Act, until int) View {
	if p.live != nil {
		p.live.Close()
	}
	p.happened, p.messages, p.lines = nil, nil, lines{}
	p.options.Acts = acts
	p.live = sim.Begin(p.seed, p.options, p.see)
	for p.live.Events() < until && p.live.Step() {
	}
	now := millis(p.live.View().Now) // Only what still travels is to be seen.
	p.messages = slices.DeleteFunc(p.messages, func(m happening) bool { return m.Until <= now })
	return p.View()
}

// Back plays the run again up to an event of those that happened.
func (p *Player) Back(event int) View {
	if p.live == nil {
		return p.failed(errNone)
	}
	return p.again(p.live.Acts(), event)
}

var errNone = fmt.Errorf("no run was begun")

// Advance lets ms milliseconds pass, and stops early after so many events.
func (p *Player) Advance(ms float64, events int) View {
	if p.live == nil {
		return p.failed(errNone)
	}
	const most = float64(24 * time.Hour / time.Millisecond)
	p.live.Advance(time.Duration(math.Round(min(max(ms, 0), most)*float64(time.Millisecond))), events)
	return p.View()
}

// Step lets one event happen.
func (p *Player) Step() View {
	if p.live == nil {
		return p.failed(errNone)
	}
	p.live.Step()
	return p.View()
}

// Act does something in the run: kind:host:amount.
func (p *Player) Act(what string) View {
	if p.live == nil {
		return p.failed(errNone)
	}
	kind, rest, ok := strings.Cut(what, ":")
	if !ok {
		return p.failed(fmt.Errorf("act %q: want kind:host:amount, as in kill:n1:10s", what))
	}
	list, err := sim.ParseActs(kind + ":0s:" + rest)
	if err == nil && len(p.live.Acts()) >= maxActs {
		err = fmt.Errorf("a run has up to %d acts", maxActs)
	}
	if err == nil && len(list) != 1 {
		err = fmt.Errorf("act %q: want one act", what)
	}
	if err == nil {
		err = p.live.Act(list[0])
	}
	if err != nil {
		return p.failed(err)
	}
	return p.View()
}

// failed is the view with an error.
func (p *Player) failed(err error) View {
	v := View{Violations: []violation{}, Nodes: []node{}, Happened: []happening{}, Log: []string{}}
	if p.live != nil {
		v = p.View()
	}
	v.Error = err.Error()
	return v
}

func (p *Player) see(h sim.Happening) {
	kind := h.Kind
	if kind == "message" {
		kind = "msg"
	}
	e := happening{
		At: millis(h.At), Kind: kind, Node: h.Node, Process: h.Process, SID: int(h.SID), Count: h.Count, Term: h.Term,
		To: h.To, Until: millis(h.Until), Lost: h.Lost, By: millis(h.By), What: h.What,
		Base: since(h.Base), Ceil: since(h.Ceil),
	}
	if h.Count > 0 {
		e.ID = h.First.String()
	}
	if h.Kind == "message" {
		p.messages = kept(p.messages, e, maxMessages)
	} else {
		p.happened = kept(p.happened, e, maxHappened)
	}
}

// kept returns list with e, and with at least most of the latest before it.
func kept[T any](list []T, e T, most int) []T {
	if len(list) >= 2*most {
		list = append(list[:0], list[most:]...)
	}
	return append(list, e)
}

// latest returns up to most of the latest of list, and never nil.
func latest[T any](list []T, most int) []T {
	return append([]T{}, list[max(0, len(list)-most):]...)
}

// View returns what the page draws, with all that happened since the last view.
func (p *Player) View() View {
	v := p.live.View()
	out := View{
		Now: millis(v.Now), Event: v.Events, Over: v.Over, Seed: strconv.FormatUint(p.seed, 10), Mode: v.Mode,
		Hash: fmt.Sprintf("%016x", v.Hash), IDs: v.IDs, Duplicates: v.Duplicates, Disorder: v.Disorder,
		Refused: v.Refused, Violations: []violation{}, Nodes: []node{},
		Etcd:     etcd{v.Away, v.Revision, v.Era, since(v.Mark)},
		Happened: append(latest(p.happened, maxHappened), latest(p.messages, maxMessages)...), Log: p.lines.take(),
	}
	p.happened, p.messages = nil, nil
	out.Acts = actsText(p.live.Acts())
	if t := v.Twin; t != nil {
		out.Twin = &twin{t.ID.String(), issuerOf(t.A), issuerOf(t.B)}
	}
	for _, x := range v.Violations {
		out.Violations = append(out.Violations, violation{x.Claim, x.Detail, millis(x.At)})
	}
	for _, n := range v.Nodes {
		out.Nodes = append(out.Nodes, node{
			Name: n.Name, Process: n.Process, Up: n.Up, Paused: n.Paused,
			Cut: n.Cut, Replay: n.Replay, GossipCut: n.GossipCut,
			Phase: n.Phase.String(), Problem: n.Problem, Serving: n.Up && !n.Paused && n.Held && n.Reason == "",
			Reason: n.Reason, SID: int(n.Grant.SID), Term: n.Grant.Term, Base: since(n.Grant.Base),
			Ceil: since(n.Grant.Ceil), Held: n.Held, Gate: n.Gate.String(), Off: millis(n.Off), Wall: millis(n.Wall),
			Error: uncertainty(n.Error),
		})
	}
	return out
}

func issuerOf(i sim.Issuer) issuer { return issuer{i.Process, int(i.SID), millis(i.At)} }

func millis(d time.Duration) float64 { return float64(d) / 1e6 }

// since returns a Unix time as one since the start, and 0 for none.
func since(ms clock.Millis) float64 {
	if ms == 0 {
		return 0
	}
	return millis(sim.Since(ms))
}

// uncertainty returns nil for the greatest duration.
func uncertainty(d time.Duration) *float64 {
	if d > time.Hour {
		return nil
	}
	ms := millis(d)
	return &ms
}

// lines keeps the latest lines of a trace.
type lines struct {
	list []string
	part []byte
}

func (l *lines) Write(b []byte) (int, error) {
	l.part = append(l.part, b...)
	for {
		line, rest, ok := bytes.Cut(l.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.list = kept(l.list, string(line), maxLines)
		l.part = append(l.part[:0], rest...)
	}
}

func (l *lines) take() []string {
	list := latest(l.list, maxLines)
	l.list = nil
	return list
}

// JSON returns v for the page.
func JSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // no view has what JSON lacks
	}
	return string(b)
}
