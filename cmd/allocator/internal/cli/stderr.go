package cli

import (
	"io"
	"log/slog"
	"sync"
	"time"
)

const (
	// maxUnread is how many bytes of stderr are kept while nobody reads them.
	maxUnread = 256 << 10
	// exitWait is how long the process waits for a reader of stderr before it exits.
	exitWait = time.Second
)

// DetachErr makes writes to Err return at once, whether anybody reads stderr or not: a node
// must neither stop issuing nor be kept from stopping by a log that nobody reads. What is
// written while maxUnread bytes are unread is dropped; Logger logs how much it was.
func (a *App) DetachErr() { a.Err = &detached{to: a.Err} }

// detached is a writer that does not wait for its reader. A goroutine writes, as long as
// there is something to write.
type detached struct {
	to io.Writer

	mu      sync.Mutex // guards the rest; not held while to is written
	unread  []byte
	idle    chan struct{} // closed when all is written; nil: it is
	dropped int           // lines, since the last report
	log     *slog.Logger  // writes to this; nil: none
}

// reportTo makes d log how many lines it dropped, once somebody reads again.
func (d *detached) reportTo(log *slog.Logger) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = log
}

// Write keeps a copy of p, or drops p. It never fails.
func (d *detached) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.unread)+len(p) > maxUnread {
		d.dropped++
		return len(p), nil
	}
	d.unread = append(d.unread, p...)
	if d.idle == nil {
		d.idle = make(chan struct{})
		go d.drain()
	}
	return len(p), nil
}

func (d *detached) drain() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for len(d.unread) > 0 {
		part, dropped, log := d.unread, d.dropped, d.log
		d.unread, d.dropped = nil, 0
		d.mu.Unlock()
		if dropped > 0 && log != nil {
			log.Error("log lines dropped: stderr was not read; check what collects the log", "lines", dropped)
		}
		_, _ = d.to.Write(part)
		d.mu.Lock()
	}
	close(d.idle)
	d.idle = nil
}

// flush waits until all is written, or for exitWait.
func (d *detached) flush() {
	d.mu.Lock()
	idle := d.idle
	d.mu.Unlock()
	if idle == nil {
		return
	}
	select {
	case <-idle:
	case <-time.After(exitWait):
	}
}
