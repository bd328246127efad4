package respserver

import "testing"

// Armed returns what epoll reports of each connection that a loop serves, by the name that its client gave.
func (s *Server) Armed() map[string]uint32 {
	s.mu.Lock()
	loops := s.loops
	s.mu.Unlock()
	armed := map[string]uint32{}
	for _, l := range loops {
		done := make(chan struct{})
		l.post(func() {
			defer close(done)
			for _, k := range l.socks {
				if k != nil {
					armed[k.name] = k.armed
				}
			}
		})
		<-done
	}
	return armed
}

// OnAccept has f called with each connection that a loop accepts, until the test ends.
func OnAccept(t testing.TB, f func(fd int)) {
	accepted = f
	t.Cleanup(func() { accepted = func(int) {} })
}

// Turn stops the one loop while send runs, and returns how often the loop then wrote to a connection in one
// look at all of them.
func (s *Server) Turn(name string, send func()) int {
	s.mu.Lock()
	l := s.loops[0]
	s.mu.Unlock()
	writes := func() (n uint64) {
		for _, k := range l.socks {
			if k != nil && k.name == name {
				n = k.progress.Load() / 2
			}
		}
		return n
	}
	before, after, sent := make(chan uint64), make(chan uint64), make(chan struct{})
	l.post(func() { before <- writes(); <-sent })
	was := <-before
	send()
	l.post(func() { after <- writes() })
	close(sent)
	return int(<-after - was)
}
