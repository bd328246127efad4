package inside

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
	"github.com/flakelease/allocator/internal/text"
)

// Config is what Inside needs; all of it.
type Config struct {
	Etcd config.Etcd
	Node string // node.name
	// Program is this program, which runs the member too.
	Program   string
	Dial      etcdstore.Config
	Log       *slog.Logger
	LogFormat string // text or json: the member logs as the node does
	// Restored gets who prepared the data that the member starts from, if it has room.
	Restored chan<- lease.Act
}

// Inside runs and tends the member of this node.
type Inside struct {
	Site
	cfg   Config
	alone bool // It was logged of this start that there is one member.
	// snapshotAfter is when a snapshot, or its copy, may be tried again after one that failed.
	snapshotAfter time.Time

	mu     sync.Mutex // guards what follows
	health Health
	said   text.Said // why it waits, or ended
}

// New checks everything that can be checked without the other members, and writes nothing.
//
// It returns ErrDir, or an error that names the setting; ErrPasses or certs.ErrTime if that may be right
// later.
func New(ctx context.Context, cfg Config) (*Inside, error) {
	in := cfg.Etcd.Inside
	if cfg.Program == "" {
		return nil, errors.New("etcd.inside: only \"allocator serve\" runs an etcd inside: set etcd.endpoints or " +
			"etcd.join")
	}
	host, ip, err := OwnAddress(ctx, in)
	if err != nil {
		return nil, err
	}
	if err := checkTLS(cfg.Etcd.TLS, host, time.Now()); err != nil {
		return nil, err
	}
	i := &Inside{Site: siteOf(cfg, host, ip), cfg: cfg, health: Health{Free: -1}}
	return i, i.Dir.Check()
}

// siteOf returns the member of a node at host in etcd.join, which listens at ip.
func siteOf(cfg Config, host, ip string) Site {
	e := cfg.Etcd
	join := slices.Sorted(slices.Values(e.Inside.Join))
	if len(join) == 0 {
		join = []string{host}
	}
	return Site{
		Dir:    Dir(e.Inside.Dir),
		Own:    member.Own{Host: host, Node: cfg.Node, Process: rand.Text(), Join: join, Peer: e.PeerURL(host)},
		Etcd:   member.Run{IP: ip, Quota: e.Inside.Quota, TLS: member.TLS(e.TLS), Log: cfg.LogFormat},
		Peer:   e.PeerURL,
		Client: e.ClientURL,
		TLS:    func() (*tls.Config, error) { return tlsOf(e.TLS) },
		Root:   func() (etcdstore.Config, error) { return cfg.Dial, nil },
	}
}

const (
	// askEvery is the pause between questions to the other members.
	askEvery = 500 * time.Millisecond
	// tendEvery is how often the member is looked after.
	tendEvery = 5 * time.Second
	// restartAfter is the pause before a member that ended is started again.
	restartAfter    = time.Second
	maxRestartAfter = 30 * time.Second
)

// Run runs the member until ctx ends, and stops it then. If this process ends otherwise, the
// member goes on, and the next Run takes it over.
//
// It returns ErrDir for a directory that cannot be written or that another node has.
func (i *Inside) Run(ctx context.Context) error {
	if err := os.MkdirAll(string(i.Dir), 0o700); err != nil {
		return i.Dir.unfit("cannot be made: %v", err)
	}
	release, err := i.Dir.lock()
	if err != nil {
		return err
	}
	defer release()
	for pause := restartAfter; ; pause = min(2*pause, maxRestartAfter) {
		c, err := i.up(ctx)
		for errors.Is(err, errPrepared) && ctx.Err() == nil { // A failure to take it over is another error.
			c, err = i.up(ctx)
		}
		if ctx.Err() != nil {
			if c != nil {
				c.stop(i.cfg.Log)
			}
			return nil
		}
		if err != nil {
			i.say(slog.LevelError, "etcd inside is not started", err.Error())
		} else {
			began := time.Now()
			i.tend(ctx, c)
			if ctx.Err() != nil {
				c.stop(i.cfg.Log)
				return nil
			}
			if time.Since(began) > 10*pause {
				pause = restartAfter
			}
			i.saw(member.Status{Err: errors.New("it ended")}, nil)
			i.say(slog.LevelError, "etcd inside ended; restarting it", c.result())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// say logs why the member waits or ended, each kind of reason once a minute.
func (i *Inside) say(level slog.Level, message, why string) {
	i.mu.Lock()
	log := i.said.New(why, time.Now())
	i.mu.Unlock()
	if log {
		i.cfg.Log.Log(context.Background(), level, message, "because", why)
	}
}

// up returns a member that runs: one that did already, or a new one once it is clear how to
// start it.
func (i *Inside) up(ctx context.Context) (*child, error) {
	data, err := i.Dir.Own()
	if err != nil {
		return nil, err
	}
	if pid := i.Dir.runs(); pid == unnamed {
		return nil, i.Dir.heldUnnamed()
	} else if pid != 0 {
		c := adopt(i.Dir, pid)
		run, _ := i.Dir.running() // What cannot be read differs from every one.
		if data != nil && !i.Dir.prepared() && run == i.Runs(*data) {
			i.cfg.Log.Info("etcd inside runs already: taken over", "process", pid)
			return c, nil
		}
		i.cfg.Log.Warn("etcd inside runs with other settings or data: restarting it", "process", pid)
		c.stop(i.cfg.Log)
	}
	if i.Dir.prepared() {
		taken, err := i.Dir.takeRestored(time.Now())
		if err != nil {
			return nil, fmt.Errorf("take over the restored data: %w", err)
		}
		if taken {
			i.cfg.Log.Warn("etcd inside starts from a restored snapshot: nodes refuse until " +
				"\"allocator admin recover\"")
		}
		if data, err = i.Dir.Own(); err != nil {
			return nil, err
		}
		if taken && data != nil && data.Act.By != "" {
			select {
			case i.cfg.Restored <- data.Act:
			default:
			}
		}
	}
	if data, err = i.decide(ctx, data); err != nil || ctx.Err() != nil {
		return nil, err
	}
	if data.Version != etcdstore.ServerVersion() {
		free, err := freeBytes(string(i.Dir))
		if err == nil {
			err = i.Dir.beforeUpgrade(etcdstore.ServerVersion(), time.Now(), free)
		}
		if err != nil {
			return nil, fmt.Errorf("snapshot before the upgrade of etcd from %s: %w", data.Version, err)
		}
		data.Version = etcdstore.ServerVersion()
	}
	// The marker first: it says of every file that comes later whose it is.
	if err := i.Dir.Note(data); err != nil {
		return nil, err
	}
	if err := i.Dir.Prepare(i.Runs(*data)); err != nil {
		return nil, i.Dir.unfit("cannot be written: %v", err)
	}
	return i.start()
}

// errPrepared says that a restore was prepared while the member waited.
var errPrepared = errors.New("a restored snapshot is to be taken over")

// decide asks the other members until it is clear how to start.
//
// It returns errPrepared if a restore was prepared meanwhile: up takes it over.
func (i *Inside) decide(ctx context.Context, data *member.Data) (*member.Data, error) {
	own, err := i.Owner(data)
	if err != nil {
		return nil, err
	}
	s := &starting{Inside: i, own: own, data: data}
	defer s.close()
	step, data, err := i.Start(ctx, own, data, s, askEvery)
	switch {
	case ctx.Err() != nil:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return i.Take(step, data)
}

// starting carries out the steps of a start.
type starting struct {
	*Inside
	own   member.Own
	data  *member.Data // as the directory held it
	meets *http.Server // It answers other members while this one waits; nil: it has not waited.
	// intends: the directory says durably that the member begins the cluster. A file that was just replaced may be
	// read before it is durable.
	intends atomic.Bool
}

func (s *starting) close() {
	if s.meets != nil {
		_ = s.meets.Close()
	}
}

// Ask asks the other addresses of the list.
func (s *starting) Ask(ctx context.Context) (member.Heard, error) {
	heard := s.ask(ctx, s.own)
	if s.Dir.prepared() {
		return nil, errPrepared
	}
	return heard, nil
}

// Write writes what the directory says.
func (s *starting) Write(step member.Step) error {
	err := s.Site.Write(step)
	if err == nil && step.Action == member.Intend {
		s.intends.Store(true)
	}
	return err
}

// Say logs why the member waits. From then on it answers the others, unless it is to start from data that it has.
func (s *starting) Say(step member.Step) {
	switch {
	case step.Action != member.Wait:
		return
	case step.Err != nil:
		s.say(slog.LevelError, "etcd inside is not started", step.Why)
	default:
		s.say(slog.LevelInfo, "etcd inside waits", step.Why)
	}
	if s.meets == nil && (s.data == nil || s.own.Token != "") {
		var err error
		if s.meets, err = s.meet(s.own, &s.intends); err != nil {
			s.say(slog.LevelError, "etcd inside cannot listen", err.Error())
		}
	}
}
