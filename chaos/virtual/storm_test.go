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
)

var (
	storms = flag.Int("storms", 0, "how many storms to go through; 0: 4, or 1 with -race")
	first  = flag.Uint64("first", 0, "the number of the first storm; 0: 1")
)

// storm is a span of troubles, several at a time, drawn by a number. The same
// number draws the same troubles at the same times; what the scheduler makes of
// them differs.
type storm struct {
	*world
	r     *rand.Rand
	live  []*member // by place; a node that crashes is replaced by one of its name
	mends []mend    // what ends the troubles under way
	log   []string
}

type mend struct {
	at time.Duration
	do func()
}

// for a while, from now on, something is wrong.
func (s *storm) until(most time.Duration, what string, mended func()) {
	d := time.Duration(1 + s.r.Int64N(int64(most)))
	s.say("%s for %v", what, d.Round(time.Millisecond))
	s.mends = append(s.mends, mend{s.now() + d, mended})
}

func (s *storm) say(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf("%v %s", s.now().Round(time.Millisecond), fmt.Sprintf(format, args...)))
}

// mendAll ends what is due, or everything.
func (s *storm) mendAll(all bool) {
	var left []mend
	for _, m := range s.mends {
		if all || m.at <= s.now() {
			m.do()
		} else {
			left = append(left, m)
		}
	}
	s.mends = left
}

// trouble begins one more.
func (s *storm) trouble() {
	i := s.r.IntN(len(s.live))
	m := s.live[i]
	switch s.r.IntN(14) {
	case 0:
		s.net.Cut(m.host, etcdHost)
		s.until(time.Minute, m.name+" and etcd cut", func() { s.net.Heal(m.host, etcdHost) })
	case 1:
		s.net.Stall(m.host, etcdHost)
		s.until(time.Minute, m.name+" not heard by etcd", func() { s.net.Flow(m.host, etcdHost) })
	case 2:
		s.net.Stall(etcdHost, m.host)
		s.until(time.Minute, m.name+" does not hear etcd", func() { s.net.Flow(etcdHost, m.host) })
	case 3:
		s.say("%s loses its connections", m.name)
		s.net.Break(m.host, etcdHost)
	case 4:
		s.etcd.LoseLeader()
		s.until(20*time.Second, "no leader", s.etcd.ElectLeader)
	case 5:
		s.etcd.Stop()
		// Start says so if another trouble's end has started it: that is as well.
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
		s.say("%s crashes, and starts after %v", m.name, pause.Round(time.Millisecond))
		m.kill()
		off := m.clocks.off()
		if pause > 0 {
			time.Sleep(pause)
		}
		s.live[i] = s.start(options{name: m.name, off: off})
	case 9:
		s.say("%s is restarted", m.name)
		m.end() // its client goes on asking, and it takes the time it needs
		s.live[i] = s.start(options{name: m.name, off: m.clocks.off()})
	case 10:
		d := time.Duration(s.r.Int64N(int64(20*time.Second))) - 10*time.Second
		m.clocks.Step(d)
		place := i
		s.until(90*time.Second, fmt.Sprintf("the clock of %s is %v off", m.name, d), func() {
			if now := s.live[place]; now.clocks.off() != 0 {
				now.clocks.Step(-now.clocks.off())
			}
		})
	case 11:
		s.gossip.SetLink(gossiptest.Link{Latency: 5 * time.Millisecond, Jitter: 50 * time.Millisecond, Loss: 0.3})
		s.until(time.Minute, "gossip loses a third", func() {
			s.gossip.SetLink(gossiptest.Link{Latency: time.Millisecond, Jitter: 2 * time.Millisecond})
		})
	case 12:
		s.behind(func(ctx context.Context) error {
			all, err := s.admin.Leases(ctx)
			if err != nil || len(all.Leases) == 0 {
				return err
			}
			id := all.Leases[s.r.IntN(len(all.Leases))].ID
			s.say("lease %x is revoked", id)
			_, err = s.admin.Revoke(ctx, id)
			return err
		})
	case 13:
		s.behind(func(ctx context.Context) error {
			sid := s.r.IntN(8)
			s.say("the holder of sid %d is deleted", sid)
			_, err := s.admin.Delete(ctx, fmt.Sprintf("/allocator/default/holder/%d", sid))
			return err
		})
	}
}

// behind changes something in etcd behind the nodes' backs, if etcd is there.
func (s *storm) behind(f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := f(ctx); err != nil {
		s.say("(%v)", err)
	}
}

// off returns by how much the wall clock is wrong.
func (m *machine) off() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.step
}

// TestStorms: whatever comes together, no ID comes twice; and when it is over,
// everybody serves again.
func TestStorms(t *testing.T) {
	many := *storms
	if many == 0 {
		many = map[bool]int{false: 4, true: 1}[raced]
	}
	for n := range uint64(many) {
		seed := max(*first, 1) + n
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			tell(t, func(w *world) {
				s := &storm{world: w, r: dice(seed), live: append([]*member(nil), w.startAll(4)...)}
				defer func() {
					if t.Failed() {
						for _, line := range s.log {
							t.Log(line)
						}
					}
				}()
				for began := w.now(); w.now() < began+5*time.Minute; {
					time.Sleep(time.Duration(s.r.Int64N(int64(8 * time.Second))))
					s.mendAll(false)
					s.trouble()
				}
				s.mendAll(true)
				s.say("all is mended")
				for _, m := range s.live {
					m.untilReady(2 * time.Minute)
				}
				served, refused := 0, 0
				for _, m := range w.nodes {
					for reason, n := range m.reasons(during{0, w.now()}) {
						if reason == "" {
							served += n
						} else {
							refused += n
						}
					}
				}
				if served < 1000 || refused < 50 {
					t.Errorf("%d requests were served and %d refused: no storm, or nothing else", served, refused)
				}
				t.Logf("%d served, %d not, %d IDs, %d troubles, %d lives", served, refused, w.ids(), len(s.log), len(w.nodes))
			})
		})
	}
}
