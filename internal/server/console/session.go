package console

import (
	"crypto/rand"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
)

const (
	sessionFor = 12 * time.Hour
	// maxSessions is how many there are at a time, of all callers, and maxOwn of one caller.
	// The oldest one ends for a new one.
	maxSessions = 256
	maxOwn      = 16
)

// session is a browser that has shown a token. It keeps the caller and not the token.
type session struct {
	key    string
	caller access.Caller
	began  clock.Mono
}

// sessions are those of all browsers. They end with the process.
type sessions struct {
	mu   sync.Mutex // guards list
	list []session  // The oldest is first.
}

// begin returns the key of a new session. A key is random, so it is of use at this node alone,
// and only until the session ends: browsers send cookies to every port of a host.
func (s *sessions) begin(caller access.Caller, now clock.Mono) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	own, oldest := 0, -1
	for i, one := range s.list {
		if one.caller.Name() == caller.Name() {
			if own++; oldest < 0 {
				oldest = i
			}
		}
	}
	switch {
	case own >= maxOwn:
		s.list = append(s.list[:oldest], s.list[oldest+1:]...)
	case len(s.list) >= maxSessions:
		s.list = s.list[1:]
	}
	key := rand.Text()
	s.list = append(s.list, session{key, caller, now})
	return key
}

// caller returns whose session a key is of, if there is one.
func (s *sessions) caller(key string, now clock.Mono) (access.Caller, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(now)
	for _, one := range s.list {
		if one.key == key {
			return one.caller, true
		}
	}
	return access.Caller{}, false
}

// end ends a session, if there is one.
func (s *sessions) end(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, one := range s.list {
		if one.key == key {
			s.list = append(s.list[:i], s.list[i+1:]...)
			return
		}
	}
}

// expire ends the sessions that are too old. s.mu is held.
func (s *sessions) expire(now clock.Mono) {
	n := 0
	for n < len(s.list) && now.Sub(s.list[n].began) >= sessionFor {
		n++
	}
	s.list = s.list[n:]
}

// cookieName returns the name of the cookie of a node. Nodes on other ports of the same host
// have other sessions.
func (c *Console) cookieName() string {
	if c.cfg.Node == nil {
		return cookie
	}
	id, _, _ := strings.Cut(string(c.cfg.Node.Stats().Instance), "-")
	return cookie + "_" + id
}
