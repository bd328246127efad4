package virtual

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/etcdsim"
	"github.com/flakelease/allocator/chaos/gossiptest"
	"github.com/flakelease/allocator/chaos/tier"
)

var (
	runs  = flag.Int("runs", 0, "how many runs with random faults; 0: as many as the tier has time for")
	first = flag.Uint64("first", 0, "the seed of the first run; 0: 1")
)

// faultRun injects random faults, several at a time. The same seed gives the same
// faults at the same times; only the order of goroutines differs.
type faultRun struct {
	*env
	r       *rand.Rand
	live    []*member // a node that crashes is replaced by one of its name
	repairs []repair  // of the faults in progress
	log     []string
}

type repair struct {
	at time.Duration
	do func()
}

// until schedules the repair of a fault that begins now.
func (s *faultRun) until(longest time.Duration, what string, repaired func()) {
	d := time.Duration(1 + s.r.Int64N(int64(longest)))
	s.logf("%s for %v", what, d.Round(time.Millisecond))
	s.repairs = append(s.repairs, repair{s.now() + d, repaired})
}

func (s *faultRun) logf(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%v %s", s.now().Round(time.Millisecond), fmt.Sprintf(format, args...)))
}

// repairAll ends the faults that are due, or all.
func (s *faultRun) repairAll(all bool) {
	var left []repair
	for _, m := range s.repairs {
		if all || m.at <= s.now() {
			m.do()
		} else {
			left = append(left, m)
		}
	}
	s.repairs = left
}

// inject begins one more fault.
func (s *faultRun) inject() {
	i := s.r.IntN(len(s.live))
	m := s.live[i]
	switch s.r.IntN(14) {
	case 0:
		s.net.Cut(m.host, etcdHost)
		s.until(time.Minute, m.name+" and etcd partitioned", func() { s.net.Heal(m.host, etcdHost) })
	case 1:
		s.net.Stall(m.host, etcdHost)
		s.until(time.Minute, m.name+": requests to etcd lost", func() { s.net.Flow(m.host, etcdHost) })
	case 2:
		s.net.Stall(etcdHost, m.host)
		s.until(time.Minute, m.name+": replies of etcd lost", func() { s.net.Flow(etcdHost, m.host) })
	case 3:
		s.logf("%s loses its connections", m.name)
		s.net.Break(m.host, etcdHost)
	case 4:
		s.etcd.LoseLeader()
		s.until(20*time.Second, "no leader", s.etcd.ElectLeader)
	case 5:
		s.etcd.Stop()
		// Start fails if the end of another fault has started it: that is fine.
		s.until(45*time.Second, "etcd stopped", func() { _ = s.etcd.Start() })
	case 6:
		dice := rand.New(rand.NewPCG(s.r.Uint64(), 1))
		share := dice.Float64() / 2
		s.etcd.SetFault(func(c etcdsim.Call) etcdsim.Fault {
			if c.Host == "admin" || dice.Float64() > share {
				return etcdsim.None
			}
			return etcdsim.Faults[dice.IntN(len(etcdsim.Faults))]
		})
		s.until(30*time.Second, fmt.Sprintf("a share of %.2f of calls fail", share), func() { s.etcd.SetFault(nil) })
	case 7, 8:
		pause := time.Duration(s.r.Int64N(int64(20 * time.Second)))
		if s.r.IntN(2) == 0 {
			pause = 0
		}
		s.logf("%s crashes, and starts after %v", m.name, pause.Round(time.Millisecond))
		m.kill()
		off := m.clocks.Stepped()
		if pause > 0 {
			time.Sleep(pause)
		}
		s.live[i] = s.start(options{name: m.name, off: off})
	case 9:
		s.logf("%s is restarted", m.name)
		m.end() // its client goes on requesting, and it takes the time it needs
		s.live[i] = s.start(options{name: m.name, off: m.clocks.Stepped()})
	case 10:
		d := time.Duration(s.r.Int64N(int64(20*time.Second))) - 10*time.Second
		m.clocks.Step(d)
		place := i
		s.until(90*time.Second, fmt.Sprintf("the clock of %s is %v off", m.name, d), func() {
			if now := s.live[place]; now.clocks.Stepped() != 0 {
				now.clocks.Step(-now.clocks.Stepped())
			}
		})
	case 11:
		s.gossip.SetLink(gossiptest.Link{Latency: 5 * time.Millisecond, Jitter: 50 * time.Millisecond, Loss: 0.3})
		s.until(time.Minute, "gossip loses a third", func() {
			s.gossip.SetLink(gossiptest.Link{Latency: time.Millisecond, Jitter: 2 * time.Millisecond})
		})
	case 12:
		s.editEtcd(func(ctx context.Context) error {
			all, err := s.admin.Leases(ctx)
			if err != nil || len(all.Leases) == 0 {
				return err
			}
			id := all.Leases[s.r.IntN(len(all.Leases))].ID
			s.logf("lease %x is revoked", id)
			_, err = s.admin.Revoke(ctx, id)
			return err
		})
	case 13:
		s.editEtcd(func(ctx context.Context) error {
			sid := s.r.IntN(8)
			s.logf("the holder of sid %d is deleted", sid)
			_, err := s.admin.Delete(ctx, fmt.Sprintf("/allocator/default/holder/%d", sid))
			return err
		})
	}
}

// editEtcd changes something in etcd, if it is reachable.
func (s *faultRun) editEtcd(f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := f(ctx); err != nil {
		s.logf("(%v)", err)
	}
}

// TestRandomFaults: whatever faults coincide, no ID is issued twice; and when all are
// repaired, every node issues again.
func TestRandomFaults(t *testing.T) {
	many := *runs
	if many == 0 {
		many = tier.Of(t, "seeds", 1, 4, 40)
	}
	if tier.Raced {
		many = 1
	}
	for n := range uint64(many) {
		seed := max(*first, 1) + n
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			run(t, func(e *env) {
				s := &faultRun{env: e, r: random(seed), live: append([]*member(nil), e.startAll(4)...)}
				defer func() {
					if t.Failed() {
						for _, line := range s.log {
							t.Log(line)
						}
					}
				}()
				for began := e.now(); e.now() < began+5*time.Minute; {
					time.Sleep(time.Duration(s.r.Int64N(int64(8 * time.Second))))
					s.repairAll(false)
					s.inject()
				}
				s.repairAll(true)
				s.logf("all is repaired")
				for _, m := range s.live {
					m.untilReady(2 * time.Minute)
				}
				served, refused := 0, 0
				for _, m := range e.nodes {
					for reason, n := range m.reasons(span{0, e.now()}) {
						if reason == "" {
							served += n
						} else {
							refused += n
						}
					}
				}
				if marks := len(e.hist.Marks); marks < 3 {
					t.Errorf("seed %d: %d watermarks: too few to mean anything", seed, marks)
				}
				if served < 1000 || refused < 50 {
					t.Errorf("%d requests were served and %d refused: too few to test anything", served, refused)
				}
				t.Logf("%d served, %d not, %d IDs, %d events, %d processes", served, refused, e.ids(), len(s.log), len(e.nodes))
			})
		})
	}
}
