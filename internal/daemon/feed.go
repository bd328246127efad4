package daemon

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/status/feed"
	"github.com/flakelease/allocator/internal/status/trend"
)

const (
	// observeEvery is how often the feed observes what nobody reports: how many IDs were
	// issued, what peers answer, files that were read again, and calls to etcd that fail.
	observeEvery = time.Second
	// settle is the time in which what follows from one cause happens, such as a grant
	// and the status with it. It is observed together, so that the cause comes first.
	settle = 5 * time.Millisecond
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
	timer := time.NewTimer(observeEvery)
	defer timer.Stop()
	var snapshots pace
	var asked clock.Mono // when the reports of nodes were; 0: not yet
	_, wanted := d.feed.Watching()
	for {
		_, changed := d.node.Watch()
		now := d.clock.Now().Mono
		d.work.mu.Lock()
		d.work.meter.Add(now, d.counters)
		d.work.mu.Unlock()
		happened := d.observe()
		streams, _ := d.feed.Watching()
		if asked == 0 || now.Sub(asked) >= reportsEvery {
			asked = now
			if c := d.cluster.Load(); c != nil && d.lookedLately(now) {
				askAll(c)
			}
		}
		wait := snapshots.wait(now, streams, happened)
		if wait <= 0 {
			picture := d.console.Picture(d.reader.Snapshot(ctx))
			d.feed.SetSnapshot(picture)
			snapshots = pace{at: now, latest: picture}
			wait = snapshots.wait(now, streams, false)
		}
		timer.Reset(min(wait, observeEvery))
		select {
		case <-ctx.Done():
			d.observe() // The sid was given back.
			return nil
		case <-changed:
			time.Sleep(settle)
		case <-wanted:
			snapshots.asked = true
		case <-timer.C:
		}
	}
}

// keepEvents reads the events of earlier processes, and starts to write those of this one.
func (d *Daemon) keepEvents(l *lifecycle) {
	file := eventFile{path: d.cfg.EventsFile(), max: maxEventFile, log: d.log}
	if file.path == "" {
		return
	}
	loaded := make(chan []feed.Event, 1)
	go func() { loaded <- file.load(feed.MaxBytes) }()
	select {
	case events := <-loaded:
		d.feed.Restore(events)
	case <-time.After(stepTimeout):
		d.log.Warn("the disk is too slow: events of earlier processes are not shown", "file", file.path)
	}
	s, err := d.feed.Open(feed.From{New: true, Stays: true})
	if err != nil { // The feed has ended, and nobody has to know of its events.
		return
	}
	l.start("file of events", stepTimeout, func(ctx context.Context) error {
		ended := make(chan struct{})
		go func() { defer close(ended); file.run(ctx, s) }()
		<-ctx.Done()
		select {
		case <-ended:
		case <-time.After(stepTimeout): // A disk that does not answer must not keep the process.
		}
		return nil
	})
}

// logged are the levels at which events of this node are logged. The log has the others from who knows more: alarms
// and the phase of the lease from the keeper, reasons to refuse from the health service, and what an operator did.
var logged = map[feed.Kind]slog.Level{
	feed.SIDAcquired: slog.LevelInfo, feed.SIDReleased: slog.LevelInfo,
	feed.EtcdFailing: slog.LevelWarn, feed.EtcdAnswers: slog.LevelInfo,
	feed.ClockStep: slog.LevelWarn, feed.ClockFollowed: slog.LevelWarn, feed.ClockRefuted: slog.LevelWarn,
	feed.ClockReverted: slog.LevelInfo, feed.ClockBlocked: slog.LevelError,
	feed.ClockSuspend: slog.LevelWarn, feed.ClockStall: slog.LevelWarn,
	feed.Confirmed: slog.LevelInfo, feed.Unconfirmed: slog.LevelWarn,
	feed.GateShut: slog.LevelWarn, feed.GateOpened: slog.LevelInfo,
}

// observe adds what happened to the feed and to the log, and reports whether anything did.
func (d *Daemon) observe() bool {
	events := d.feed.Observe(d.state())
	for _, e := range events {
		level, told := logged[e.Kind]
		if _, ofPeer := e.Attributes["reported_by"]; !told || ofPeer {
			continue
		}
		attrs := []any{"event", string(e.Kind)}
		if e.SID >= 0 {
			attrs = append(attrs, "sid", e.SID)
		}
		for _, key := range slices.Sorted(maps.Keys(e.Attributes)) {
			attrs = append(attrs, key, e.Attributes[key])
		}
		d.log.Log(context.Background(), level, e.Message, attrs...)
	}
	return len(events) > 0
}

// work measures what the node did lately.
type work struct {
	mu    sync.Mutex // guards meter
	meter *trend.Meter
}

// counters returns what the node has counted since its start.
func (d *Daemon) counters() trend.Counters {
	n := d.node.Stats()
	return trend.Counters{Issued: n.Issued, Refused: n.Refused, Latency: d.latencies.Of(server.Issuing())}
}

// lately returns how requests and writes went lately, and how many IDs a second were issued.
func (d *Daemon) lately() (w status.Work, rate int64) {
	d.work.mu.Lock()
	w, rate = d.work.meter.Work(), d.work.meter.Rate()
	d.work.mu.Unlock()
	if write := d.keeper.Stats().Write; write.At != 0 {
		now := d.clock.Now()
		w.Write = max(write.Took.Microseconds(), 1)
		w.Written = int64(now.Wall - clock.MillisOf(now.Mono.Sub(write.At)))
	}
	return w, rate
}

// etcdMembers asks the members of etcd.
func (d *Daemon) etcdMembers(ctx context.Context) status.Etcd {
	var e status.Etcd
	var syncs map[string]time.Duration
	if len(d.cfg.Etcd.Endpoints) == 0 { // Members inside nodes show their metrics to nodes.
		syncs = inside.SyncTimes(ctx, d.cfg.Etcd)
	}
	var list []member.Member
	group, err := d.etcd.store.Group()
	asked := []member.Status{{Err: err}}
	if err == nil {
		var listed sync.WaitGroup
		listed.Go(func() { _, list, _ = group.List(ctx) }) // Without it, e.Voters are not known.
		asked = group.Members(ctx, d.clock)
		listed.Wait()
	}
	q := member.Answering(list, asked)
	e.Voters, e.VotersAnswer = q.Voters, q.Healthy
	for _, m := range asked {
		e.Endpoints++
		problem := strings.Join(m.Problems, "; ")
		if m.Err == nil {
			e.Answer++
		} else {
			problem = m.Err.Error()
		}
		if m.Leads {
			e.Leader = m.Endpoint
		}
		e.Members = append(e.Members, status.EtcdMember{
			Endpoint: m.Endpoint,
			Leads:    m.Leads,
			Learner:  m.Learner,
			Lag:      int64(m.Lag),
			Size:     m.Size,
			Quota:    m.Quota,
			SyncP99:  syncs[member.HostOf(m.Endpoint)].Microseconds(),
			Problem:  problem,
		})
	}
	if d.inside != nil {
		if at := d.inside.Health().Snapshot; !at.IsZero() {
			e.Snapshot = at.UnixMilli()
		}
	}
	return e
}

// samplePeers is how many other nodes are asked for their reports before each sample of the
// history, in turn. More than that are not all asked each time, so that a node of any cluster
// sends 6.4 packets a second for it, and half a packet where it shows no pages.
const samplePeers = 32

// sampleAlone is how often a node without pages takes a sample while nobody looks: it needs them only for
// since when others are in their states.
const sampleAlone = time.Minute

// sampleWait is how long a sample waits for their answers.
const sampleWait = 500 * time.Millisecond

// runSamples samples the cluster until ctx ends: the reader takes from it since when nodes are in their
// states, and the pages their history.
func (d *Daemon) runSamples(ctx context.Context) error {
	ticker := time.NewTicker(trend.Every)
	defer ticker.Stop()
	var last clock.Mono // when the latest sample was taken
	for {
		now := d.clock.Now().Mono
		if d.cfg.ServesConsole() || d.host.Break != nil { // Somebody can see the pages.
			d.console.Add(d.sample(ctx))
		} else if last == 0 || d.lookedLately(now) || now.Sub(last) >= sampleAlone {
			d.sample(ctx)
			last = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// sample returns the nodes. A report counts until the turn comes to its node again.
func (d *Daemon) sample(ctx context.Context) status.Cluster {
	maxAge := trend.Every
	if c := d.cluster.Load(); c != nil {
		c.AskReports(samplePeers)
		maxAge *= time.Duration(1 + len(c.Reports())/samplePeers)
		select {
		case <-ctx.Done():
		case <-time.After(sampleWait):
		}
	}
	return d.reader.Glance(maxAge)
}

// state returns what the core reports now.
func (d *Daemon) state() feed.State {
	k := d.keeper.Stats()
	s := feed.State{
		Node: d.node.Stats(), Refusing: d.node.Ready(), Clocks: d.watch.Report(),
		EtcdFails: k.Outage.Error != "", EtcdSince: k.Outage.Since, EtcdLast: k.Outage.Last, EtcdError: k.Outage.Error,
		Alarms: k.Alarms, Files: d.readFiles(),
	}
	if d.inside != nil {
		s.Backup = d.inside.Health().SnapshotFails
	}
	return s
}

// pace decides when a snapshot is made.
type pace struct {
	at     clock.Mono              // when the latest was made
	latest interface{ Size() int } // nil: none was made
	asked  bool                    // a stream has begun since
	event  bool                    // something happened since
}

// wait returns the time until one is to be made for so many streams, 0 or less if that is
// now. Without streams none is.
func (p *pace) wait(now clock.Mono, streams int, happened bool) time.Duration {
	p.event = p.event || happened
	switch {
	case streams == 0:
		return math.MaxInt64
	case p.latest == nil:
		return 0
	}
	after := snapshotEvery
	if p.asked || p.event {
		after = snapshotSoon
	}
	after = max(after, time.Duration(float64(streams)*float64(p.latest.Size())/snapshotBytes*float64(time.Second)))
	return after - now.Sub(p.at)
}
