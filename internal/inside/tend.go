package inside

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// Health is how the member and its cluster are, as the node saw them last.
type Health struct {
	Up       bool // The member of this node answers.
	Quorum   member.Quorum
	Size     int64
	Snapshot time.Time // when the latest was written; zero: never
	Copied   time.Time // when the latest that was copied elsewhere was written; zero: none was
	Free     int64     // bytes on its disk; -1: not known
	// SnapshotFails is why no snapshot is written or copied; "": the last one was.
	SnapshotFails string
}

// Health returns it. It may be called at any time.
func (i *Inside) Health() Health {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.health
}

// tend looks after a member until it ends or ctx does. Calls to it that run then end too.
func (i *Inside) tend(ctx context.Context, c *child) {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel()
	i.alone = false
	healthy := make(chan member.Status, 1)
	beside.Go(func() {
		for s := range healthy { // A snapshot takes minutes, and one runs at a time.
			i.forget()
			i.snapshotIfDue(ctx, i.client(), s)
		}
	})
	beside.Go(func() {
		defer close(healthy)
		i.watch(ctx, c, healthy)
	})
	select {
	case <-ctx.Done():
	case <-c.ended:
	}
}

// forget deletes old copies of the data.
func (i *Inside) forget() {
	gone, err := i.Dir.forget(time.Now())
	for _, one := range gone {
		i.cfg.Log.Info("old copy of the data of etcd inside deleted", "path", one.Path, "bytes", one.Size)
	}
	if err != nil {
		i.say(slog.LevelError, "old copies of the data of etcd inside cannot be deleted", err.Error())
	}
}

// watch looks at a member until ctx ends, hands out its status while it is healthy, and stops one that hangs.
func (i *Inside) watch(ctx context.Context, c *child, healthy chan<- member.Status) {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	soon := time.NewTicker(tendEvery / 10) // until it has answered once
	defer soon.Stop()
	quiet := i.quiet(c, time.Now())
	for {
		s, err := i.look(ctx)
		if err == nil {
			soon.Stop()
			select {
			case healthy <- s:
			default:
			}
		}
		if ctx.Err() != nil {
			return
		}
		switch quiet.step(time.Now(), s.Err, s.Err != nil && i.hangs(ctx)) {
		case sayQuiet:
			i.cfg.Log.Warn("etcd inside does not answer: once it has started, it is restarted if it hangs for a "+
				"minute, and waits if the members have no majority; \"allocator etcd status\" shows them",
				"error", s.Err)
		case sayAnswers:
			i.cfg.Log.Info("etcd inside answers again")
		case stopHanging:
			i.cfg.Log.Error("etcd inside hangs: stopping it", "process", c.pid, "error", s.Err)
			c.stop(i.cfg.Log)
		}
		select {
		case <-ctx.Done():
			return
		case <-soon.C:
		case <-tick.C:
		}
	}
}

// silence is the time for which a member has not answered.
type silence struct {
	known bool      // It has answered since it started.
	since time.Time // zero: it answers
	said  bool
	hangs time.Time // It hangs since then; zero: it does not.
}

// What to do about a silence.
type quietStep int

const (
	sayQuiet quietStep = iota + 1
	sayAnswers
	stopHanging
)

const (
	quietAfter = 10 * time.Second
	hangsAfter = time.Minute
)

// startsWithin is more than a member needs to read its log.
const startsWithin = 10 * time.Minute

// quiet returns the silence of a member at the beginning. One that another process started long ago has
// answered since: a node that starts beside a member that hangs restarts it.
func (i *Inside) quiet(c *child, now time.Time) silence {
	run, err := os.Stat(i.Dir.run()) // written before the member is started
	return silence{known: c.cmd == nil && err == nil && now.Sub(run.ModTime()) >= startsWithin}
}

// step returns what to do about an answer at a time, or its failure. hangs says that its process takes
// connections, and sends nothing. One that has never answered may read its log, and is
// not stopped.
func (s *silence) step(now time.Time, failure error, hangs bool) quietStep {
	if failure == nil {
		said := s.said
		*s = silence{known: true}
		if said {
			return sayAnswers
		}
		return 0
	}
	if s.since.IsZero() {
		s.since = now
	}
	if !hangs || !s.known {
		s.hangs = time.Time{}
	} else if s.hangs.IsZero() {
		s.hangs = now
	}
	switch {
	case !s.hangs.IsZero() && now.Sub(s.hangs) >= hangsAfter:
		s.hangs = time.Time{}
		return stopHanging
	case !s.said && now.Sub(s.since) >= quietAfter:
		s.said = true
		return sayQuiet
	}
	return 0
}

// hangs reports whether the process takes a connection at its own address and sends nothing. No name is
// resolved for that: a silent resolver would have every node stop a healthy member. Without a majority, while
// it defragments, and with a certificate that has ended, a member sends something. One that has begun a TLS
// handshake runs: etcd resolves the names in the caller's certificate next, and may wait for the resolver.
func (i *Inside) hangs(ctx context.Context) bool {
	conf, err := i.TLS()
	if err != nil {
		return false
	}
	to := net.Dialer{Timeout: meet.Timeout}
	c, err := to.DialContext(ctx, "tcp", net.JoinHostPort(i.Etcd.IP, strconv.Itoa(i.cfg.Etcd.Inside.PeerPort)))
	if err != nil {
		return false
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	_ = c.SetDeadline(time.Now().Add(meet.Timeout))
	if conf != nil {
		conf.ServerName = i.Own.Host
		err = tls.Client(c, conf).Handshake()
	} else if _, err = fmt.Fprintf(c, "GET %s HTTP/1.0\r\n\r\n", membersPath); err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	return errors.Is(err, os.ErrDeadlineExceeded)
}

// look notes who the members are, and promotes this one. It returns the status of the member, and why it,
// or a majority, did not answer.
func (i *Inside) look(ctx context.Context) (member.Status, error) {
	s, list, all, err := i.Look(ctx)
	i.saw(s, all)
	if err == nil {
		i.answered(ctx, s, list)
	}
	return s, err
}

// answered settles what the member said, and logs it.
func (i *Inside) answered(ctx context.Context, s member.Status, list []member.Member) {
	before, changed, err := i.Settle(ctx, s, list)
	if alone := len(list) == 1; before != nil && alone != i.alone {
		if i.alone = alone; alone {
			i.cfg.Log.Warn("etcd inside has one member: the disk of this machine has the only copy of its data; join " +
				"two more with etcd.join, or keep its snapshots elsewhere")
		}
	}
	if changed && (len(list) != len(before.Members) || before.Cluster == 0) {
		i.cfg.Log.Info("etcd inside answers", "cluster", fmt.Sprintf("%x", s.Cluster), "member", i.Own.Host, "members",
			len(list), "learner", s.Learner)
	}
	switch {
	case err == nil && s.Learner:
		i.cfg.Log.Info("etcd inside has caught up and votes now", "member", i.Own.Host)
	case err == nil:
	case errors.Is(err, ErrDir):
		i.say(slog.LevelError, "etcd inside cannot note who its member is", err.Error())
	case errors.Is(err, etcdstore.ErrNotReady):
		i.say(slog.LevelInfo, "etcd inside waits", "it catches up with the other members")
	case s.Learner:
		i.say(slog.LevelError, "etcd inside cannot become a voting member", err.Error())
	default:
		i.say(slog.LevelError, "etcd inside cannot tell the members its address", err.Error())
	}
}

// saw keeps what Health returns.
func (i *Inside) saw(s member.Status, all []member.Status) {
	snapshots, _ := i.Dir.Snapshots().List(time.Now())
	h := Health{Up: s.Err == nil, Quorum: member.QuorumOf(all), Size: s.Size, Free: i.Dir.Free(),
		Copied: i.Dir.Copied().At}
	i.mu.Lock() // after the last call to a disk, which may be stuck
	defer i.mu.Unlock()
	h.SnapshotFails = i.health.SnapshotFails
	if len(all) == 0 { // Nobody says who they are; those that were still vote.
		h.Quorum = i.health.Quorum
		h.Quorum.Healthy = 0
	}
	if len(snapshots) > 0 {
		h.Snapshot = snapshots[0].At
	}
	i.health = h
}
