package daemon

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/status"
)

// gossip is a cluster of one peer, whose latest report came at a time.
type gossip struct {
	began time.Time
	delay time.Duration // from a question to the answer
	lose  int           // questions that are lost
	asked int
	mu    sync.Mutex
	said  status.Self
	at    time.Time
	sent  bool
}

func (g *gossip) Now() clock.Reading { return clock.Reading{Mono: clock.Mono(time.Since(g.began))} }

func (g *gossip) AskReports(int) {
	g.asked++
	if g.asked > g.lose {
		time.AfterFunc(g.delay, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.said.Highest, g.at, g.sent = 2, time.Now(), true
		})
	}
}

func (g *gossip) Reports() map[string]cluster.PeerReport {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := cluster.PeerReport{Peer: agreement.Peer{Node: "b"}, Age: time.Since(g.at)}
	if g.sent {
		r.Said = g.said.Say()
	}
	return map[string]cluster.PeerReport{"b-1": r}
}

// TestAnswersFollowTheQuestion: a report that came before the question is no answer to it,
// however short ago: the peer may have been granted more since.
func TestAnswersFollowTheQuestion(t *testing.T) {
	for name, tc := range map[string]struct {
		delay    time.Duration
		lose     int
		answered bool
	}{
		"answers at once":        {time.Millisecond, 0, true},
		"the question is lost":   {time.Millisecond, 1, true},
		"two questions are lost": {time.Millisecond, 2, true},
		"answers too late":       {answerWithin + time.Second, 0, false},
		"every question is lost": {time.Millisecond, 1000, false},
		"answers at the end":     {answerWithin - 100*time.Millisecond, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &gossip{began: time.Now(), said: status.Self{Highest: 1}, sent: true, delay: tc.delay, lose: tc.lose}
				time.Sleep(time.Minute)
				g.at = time.Now()
				got := askPeers(t.Context(), g, g)
				n := got["b-1"]
				if len(got) != 1 || n.Name != "b" || n.Answered != tc.answered || n.Answered && n.Highest != 2 || !n.Answered && n.Highest != 0 {
					t.Errorf("after %d questions: %+v", g.asked, n)
				}
				if tc.lose > 2 && g.asked != 3 {
					t.Errorf("asked %d times, want at once, after %v and after twice that", g.asked, answerAgain)
				}
				if took := time.Since(g.at); tc.delay == time.Millisecond && tc.lose == 0 && took > 2*answerPause {
					t.Errorf("took %v after all had answered", took)
				}
				if took := time.Since(g.at); took > answerWithin {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}
