package daemon

import (
	"context"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/feed"
)

const (
	// observeEvery is how often the feed observes what nothing reports, such as the end
	// of a window. The clock gate is evaluated as often.
	observeEvery = 250 * time.Millisecond
	// snapshotEvery is the time between two snapshots of streams, without events.
	snapshotEvery = time.Second
	// snapshotSoon is the same after an event.
	snapshotSoon = 250 * time.Millisecond
	// reportsEvery is how often other nodes are asked for their reports, for lookedFor
	// after somebody looked at them.
	reportsEvery = time.Second
	lookedFor    = 5 * time.Second
	// snapshotBytes is how much all snapshots to all streams may have in a second. With
	// more streams of a larger space they come less often.
	snapshotBytes = 8 << 20
)

// runFeed observes the node until ctx ends, and ends all streams of events then.
func (d *Daemon) runFeed(ctx context.Context) error {
	defer d.feed.End()
	tick := time.NewTicker(observeEvery)
	defer tick.Stop()
	var pace pace
	var asked clock.Mono // when the reports of nodes were; 0: not yet
	_, wanted := d.feed.Watching()
	for {
		_, changed := d.keeper.Watch()
		now := d.clock.Now().Mono
		happened := d.feed.Observe(now, d.state())
		streams, _ := d.feed.Watching()
		if asked == 0 || now.Sub(asked) >= reportsEvery {
			asked = now
			d.askReports(now)
		}
		if pace.due(now, streams, happened) {
			json := feed.JSON(d.console.Complete(d.reader.Snapshot(ctx)))
			d.feed.SetSnapshot(json)
			pace.made(now, len(json))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-wanted:
			pace.asked = true
		case <-tick.C:
		}
	}
}

// askReports asks other nodes for their reports if somebody looked lately.
func (d *Daemon) askReports(now clock.Mono) {
	looked := clock.Mono(d.looked.Load())
	if c := d.cluster.Load(); c != nil && looked != 0 && now.Sub(looked) < lookedFor {
		c.AskReports()
	}
}

// state returns what the core reports now.
func (d *Daemon) state() feed.State {
	k := d.keeper.Stats()
	s := feed.State{
		Node: d.node.Stats(), Refusing: d.node.Ready(), Clocks: d.watch.Report(),
		EtcdFails: k.Outage, Alarms: k.Alarms, Files: map[string]feed.Files{},
	}
	for name, f := range d.files() {
		s.Files[name] = feed.Files{Reloads: f.Reloads(), Failing: f.Failing()}
	}
	return s
}

// pace decides when a snapshot is made.
type pace struct {
	at    clock.Mono // when the latest was made
	size  int        // of it, in bytes
	asked bool       // a stream has begun since
	event bool       // something happened since
}

// due reports whether one is to be made now, for so many streams.
func (p *pace) due(now clock.Mono, streams int, happened bool) bool {
	p.event = p.event || happened
	if streams == 0 {
		return false
	}
	after := snapshotEvery
	if p.asked || p.event {
		after = snapshotSoon
	}
	after = max(after, time.Duration(float64(streams)*float64(p.size)/snapshotBytes*float64(time.Second)))
	return p.size == 0 || now.Sub(p.at) >= after
}

func (p *pace) made(now clock.Mono, size int) { *p = pace{at: now, size: size} }
