package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/chaos/history"
)

// Act is what somebody does in a run.
type Act struct {
	At   time.Duration // when, by true time; a run under way does it at once, and notes when that was
	Kind ActKind
	Host string        // whom it befalls; empty where it befalls etcd
	For  time.Duration // for how long, or by how much
}

// ActKind is a kind of acts.
type ActKind string

// The acts.
const (
	Kill    ActKind = "kill"    // the process ends, and its supervisor starts the next one after For
	Stop    ActKind = "stop"    // the process is asked to end, gives its sid back, and is started again
	Pause   ActKind = "pause"   // the process stops for a while
	Step    ActKind = "step"    // its wall clock is set, For later or earlier
	Drift   ActKind = "drift"   // its wall clock gains For in each second
	Fix     ActKind = "fix"     // its wall clock is set right
	Cut     ActKind = "cut"     // it is cut off from etcd
	Replay  ActKind = "replay"  // answers of etcd to it are lost, and what it asked is carried out once more, later
	Gossip  ActKind = "gossip"  // it is cut off from the others
	Away    ActKind = "etcd"    // etcd has no leader
	Restore ActKind = "restore" // etcd is restored from the backup of half a minute ago
	Recover ActKind = "recover" // an operator begins a new era
)

// longest bounds how long an act lasts, and by how much a clock is set.
const longest = 30 * 24 * time.Hour

// acts says for each kind what it needs.
var acts = map[ActKind]struct{ host, amount, negative bool }{
	Kill:    {true, true, false},
	Pause:   {true, true, false},
	Step:    {true, true, true},
	Drift:   {true, true, true},
	Fix:     {true, false, false},
	Stop:    {true, false, false},
	Cut:     {true, true, false},
	Replay:  {true, true, false},
	Gossip:  {true, true, false},
	Away:    {false, true, false},
	Restore: {},
	Recover: {},
}

// String returns a as ParseActs reads it: kind:time:host:amount.
func (a Act) String() string {
	amount := ""
	if acts[a.Kind].amount {
		amount = a.For.String()
	}
	return fmt.Sprintf("%s:%v:%s:%s", a.Kind, a.At, a.Host, amount)
}

// ParseActs reads acts that are separated by semicolons, as String writes them.
func ParseActs(s string) (list []Act, err error) {
	for text := range strings.SplitSeq(s, ";") {
		if text == "" {
			continue
		}
		part := strings.Split(text, ":")
		if len(part) != 4 {
			return nil, fmt.Errorf("act %q: want kind:time:host:amount, as in kill:12s:n1:10s", text)
		}
		a := Act{Kind: ActKind(part[0]), Host: part[2]}
		if a.At, err = time.ParseDuration(part[1]); err != nil || a.At < 0 {
			return nil, fmt.Errorf("act %q: its time must be a duration of at least 0, as in 12.5s", text)
		}
		if part[3] != "" {
			if a.For, err = time.ParseDuration(part[3]); err != nil {
				return nil, fmt.Errorf("act %q: its amount must be a duration, as in 10s", text)
			}
		}
		if err := a.check(); err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	if !slices.IsSortedFunc(list, func(a, b Act) int { return cmp.Compare(a.At, b.At) }) {
		return nil, fmt.Errorf("acts %q: they must be in the order of their times", s)
	}
	return list, nil
}

// check returns what is wrong about a, whatever the run.
func (a Act) check() error {
	needs, ok := acts[a.Kind]
	switch {
	case !ok:
		return fmt.Errorf("act %q: there is no such act", a)
	case needs.host != (a.Host != ""):
		return fmt.Errorf("act %q: each act befalls a node, but for %s, %s and %s, which befall etcd",
			a, Away, Restore, Recover)
	case needs.amount == (a.For == 0) || a.For.Abs() > longest || a.For < 0 && !needs.negative:
		return fmt.Errorf("act %q: its amount is missing, or out of range", a)
	}
	return nil
}

// Act has something done in the run, now.
func (l *Live) Act(a Act) error {
	if err := a.check(); err != nil {
		return err
	}
	sim := l.sim
	h := sim.hostOf(a.Host)
	switch p := (*process)(nil); {
	case l.over:
		return fmt.Errorf("act %q: the run is over", a)
	case a.Host != "" && h == nil:
		return fmt.Errorf("act %q: there is no such node", a)
	case h != nil:
		if p = h.process; slices.Contains([]ActKind{Kill, Stop, Pause}, a.Kind) && (p == nil || p.gone) {
			return fmt.Errorf("act %q: it does not run", a)
		}
	case a.Kind == Restore && sim.backups[0].data == nil:
		return fmt.Errorf("act %q: there is no backup yet", a)
	}
	a.At = max(l.shown, sim.now) + 1 // after all that has happened
	l.acts, sim.acts = insert(l.acts, a), insert(sim.acts, a)
	l.Step()
	return nil
}

// insert returns list with a among those that are still to come.
func insert(list []Act, a Act) []Act {
	i, _ := slices.BinarySearchFunc(list, a, func(x, a Act) int { return cmp.Compare(x.At, a.At) })
	return slices.Insert(slices.Clone(list), i, a)
}

// actNow does the next act.
func (sim *simulation) actNow() {
	a := sim.acts[0]
	sim.acts = sim.acts[1:]
	sim.now = max(sim.now, a.At)
	text := strings.TrimSpace(fmt.Sprint(a.Kind, " ", a.Host))
	sim.note(nil, "ACT "+text+" %d us", int64(a.For)/1000)
	sim.see(nil, Happening{Kind: "act", What: text})
	if h := sim.hostOf(a.Host); h != nil {
		sim.actOn(h, a)
	} else {
		sim.actOnEtcd(a)
	}
	sim.look()
}

func (sim *simulation) actOn(h *host, a Act) {
	until := sim.now + a.For
	switch p := h.process; a.Kind {
	case Kill:
		if p != nil && !p.gone {
			p.die("is killed")
			sim.in(a.For, func() { sim.start(h) })
		}
	case Stop:
		h.stop()
	case Pause:
		if p != nil && !p.gone {
			p.pause(a.For)
		}
	case Step, Drift, Fix:
		if h.at > sim.now {
			return // suspended: nobody sets its clocks
		}
		wall, drift := h.read(sim.now).Wall, h.drift
		sim.unsound(h)
		h.settle(sim.now)
		h.wrong = sim.now
		h.sets++
		switch a.Kind {
		case Step:
			h.reading.Wall += int64(a.For)
		case Drift:
			h.drift = int64(a.For) / 1000
		default:
			sim.fixClock(h)
			return
		}
		sim.seeClock(h, wall, drift, "")
	case Cut:
		h.noRequests, h.noReplies = until, until
	case Replay:
		h.noReplies, h.again = until, until
	case Gossip:
		h.alone = until
	}
}

// unsound notes that a host's clocks are not to be relied on any more.
func (sim *simulation) unsound(h *host) {
	if h.sound {
		h.sound = false
		sim.plan.faulty++
	}
}

func (sim *simulation) actOnEtcd(a Act) {
	e := sim.etcd
	switch a.Kind {
	case Away:
		e.leaderless(a.For)
	case Restore:
		if b := sim.backups[0]; b.data != nil {
			sim.note(nil, "TAMPER: etcd is restored from a backup of %d us", int64(b.at)/1000)
			// What is recorded of a repaired space ends here, and what holders may give back is forgotten.
			sim.judgeHistory(&sim.after)
			sim.after, sim.terms.of = history.History{Format: sim.plan.format}, nil
			sim.stage = tampered
			sim.marks.rewind()
			e.change(b.data)
		}
	case Recover:
		config, _ := e.mem.Raw("config")
		if err := sim.repair(config); err != nil {
			sim.note(nil, "the repair is refused: "+err.Error())
		}
		sim.knownBy = math.MaxInt64 // A node may be cut off, or paused.
	}
}

// backup is a backup of etcd: data restores it.
type backup struct {
	at   time.Duration
	data func()
}

// backupEvery is how often a calm run makes a backup. The one before the last is restored.
const backupEvery = 15 * time.Second

// planBackups makes a backup now and then.
func (sim *simulation) planBackups() {
	sim.in(backupEvery, func() {
		s := sim.etcd.mem.Snapshot()
		sim.backups = [2]backup{sim.backups[1], {sim.now, func() { sim.etcd.mem.Restore(s) }}}
		sim.planBackups()
	})
}

// noisy reports whether faults happen.
func (sim *simulation) noisy() bool { return sim.stage == trouble || sim.plan.mode == Calm }
