package history

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// Danger is how often a claim could have broken in a run: something happened that makes
// duplicates in systems without the rule that prevents them here. A run without danger passes
// every check, and shows little.
type Danger struct {
	// Zombies counts answers of processes whose lease had ended before the call began: the sid was free, or another
	// process held it.
	Zombies int64 `json:"zombies"`
	// Late counts extensions that etcd confirmed when the window before them had run out.
	Late int64 `json:"late"`
	// Shared counts windows that began while another process had a window of that sid that was
	// not over.
	Shared int64 `json:"shared"`
	// WrongClock counts answers of processes whose wall clock was wrong.
	WrongClock int64 `json:"wrong_clock"`
}

// Add adds what another run came to.
func (d *Danger) Add(o Danger) {
	d.Zombies += o.Zombies
	d.Late += o.Late
	d.Shared += o.Shared
	d.WrongClock += o.WrongClock
}

// A DangerRow is one danger in words, with the claims that it threatens.
type DangerRow struct {
	Claims, What string
	Count        int64
}

// Rows returns each danger in words.
func (d Danger) Rows() []DangerRow {
	return []DangerRow{
		{"I1, I3", "a process answered after its lease had ended", d.Zombies},
		{"I3", "an extension was confirmed after the window had run out", d.Late},
		{"I1, I4", "two processes held windows of one sid that were not over", d.Shared},
		{"I1, I5", "a process answered while its wall clock was wrong", d.WrongClock},
	}
}

// String returns all of them in a line.
func (d Danger) String() string {
	var out []string
	for _, r := range d.Rows() {
		out = append(out, fmt.Sprintf("%s: %d", r.What, r.Count))
	}
	return strings.Join(out, "; ")
}

// Danger counts the dangers of a record whose grants and issues have the true time. A clock
// is wrong if it is further than off from the truth.
func (h *History) Danger(off time.Duration) (d Danger) {
	grants := map[flake.SID][]Grant{}
	for _, g := range h.Grants {
		grants[g.SID] = append(grants[g.SID], g)
	}
	for _, all := range grants {
		slices.SortStableFunc(all, func(a, b Grant) int { return cmp.Compare(a.At, b.At) })
		last := map[string]Grant{} // the highest of each process
		for _, g := range all {
			own, before := last[g.Process]
			if before && g.Ceil <= own.Ceil {
				continue // It was read again.
			}
			// What was acquired anew begins at the present time.
			if extended := g.Base == own.Base || g.Base == own.Ceil; before && extended && g.True > own.Ceil {
				d.Late++
			}
			for process, other := range last {
				// A window that begins below the other's ceiling follows one that was given back.
				if !before && process != g.Process && g.Base >= other.Ceil && other.Ceil > g.True {
					d.Shared++
					break
				}
			}
			last[g.Process] = g
		}
	}
	for _, i := range h.Issues {
		all := grants[h.Format.SID(i.First)]
		n, _ := slices.BinarySearchFunc(all, i.Begin, func(g Grant, at clock.Mono) int { return cmp.Compare(g.At, at) })
		if n > 0 && all[n-1].Process != i.Process {
			d.Zombies++
		}
		if i.Off.Abs() > off {
			d.WrongClock++
		}
	}
	return d
}

// Dangers counts the dangers of a run op by op. It is no Checker: nothing is wrong about a
// danger that was survived.
type Dangers struct {
	calls
	faults
	format  flake.Format
	startMs int64
	counts  Danger
	windows map[int64]Window // the latest record of each sid
	holders map[int64]tenancy
}

// tenancy is who holds a sid, and since when.
type tenancy struct {
	run string // "" if nobody does
	at  clock.Mono
}

// NewDangers returns a count.
func NewDangers() *Dangers {
	return &Dangers{format: flake.Default, windows: map[int64]Window{}, holders: map[int64]tenancy{}}
}

// Add takes an op. After a fault that tampers with etcd's data nothing is known of who holds
// what.
func (d *Dangers) Add(op *Op) {
	if op.Setup != nil {
		d.format, d.startMs = op.Setup.Format(), op.Setup.StartMs
	}
	d.faults.take(op)
	if op.Fault != nil && op.Fault.Class == ClassData {
		clear(d.windows)
		clear(d.holders)
	}
	if h := op.Holder; h != nil {
		d.holders[h.SID] = tenancy{run: op.Run, at: op.Time}
		if !h.Deleted && op.Run == "" { // It is not known whose it is.
			delete(d.holders, h.SID)
		}
	}
	if op.Window != nil {
		d.window(op)
	}
	a, done := d.calls.take(op)
	if !done || op.Type != OK || op.Node == "" {
		return
	}
	h, known := d.holders[int64(d.format.SID(op.Block.First))]
	if known && op.Run != "" && h.run != op.Run && h.at < a.at {
		d.counts.Zombies++
	}
	wrong := false
	d.during(a.at, op.Time, func(i *injection) {
		aimed := i.fault.Class == ClassClock && len(i.fault.Targets) > 0 && i.targets(op.Node)
		wrong = wrong || aimed && i.fired && i.at <= a.at && (i.stopped < 0 || i.stopped >= op.Time)
	})
	if wrong {
		d.counts.WrongClock++
	}
}

func (d *Dangers) window(op *Op) {
	w := *op.Window
	if w.Deleted || w.Unreadable {
		delete(d.windows, w.SID)
		return
	}
	now := d.startMs + int64(op.Time/1e6)
	last, known := d.windows[w.SID]
	d.windows[w.SID] = w
	switch {
	case !known || w.Released || last.Released:
	case w.Term == last.Term && w.Instance == last.Instance:
		if w.Ceil > last.Ceil && now > last.Ceil {
			d.counts.Late++
		}
	case w.Instance != last.Instance && last.Ceil > now:
		d.counts.Shared++
	}
}

// Count returns what was counted.
func (d *Dangers) Count() Danger { return d.counts }
