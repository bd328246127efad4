package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/flakelease/allocator/internal/text"
)

// Progress shows how far a command is, on one line of stderr that is replaced, once it has
// taken progressAfter. Where stderr is no terminal it shows nothing. Its methods are safe
// for concurrent use.
type Progress struct {
	out   io.Writer // nil: nothing is shown
	ended chan struct{}
	shown sync.WaitGroup

	mu     sync.Mutex // guards the rest
	format string
	args   []any
}

const (
	progressAfter = 2 * time.Second
	progressEvery = 500 * time.Millisecond
	// progressWidth is below the width of a usual terminal, in characters: a line that
	// wraps would not be replaced.
	progressWidth = 110
)

// Progress begins to show progress. End must follow.
func (a *App) Progress() *Progress {
	f, ok := a.Err.(*os.File)
	if !ok || !Terminal(f) {
		return &Progress{}
	}
	return showProgress(f, progressAfter, progressEvery)
}

func showProgress(out io.Writer, after, every time.Duration) *Progress {
	p := &Progress{out: out, ended: make(chan struct{})}
	p.shown.Go(func() {
		timer := time.NewTimer(after)
		defer timer.Stop()
		for clear := ""; ; clear = "\r\x1b[K" {
			select {
			case <-p.ended:
				_, _ = io.WriteString(out, clear)
				return
			case <-timer.C:
			}
			timer.Reset(every)
			_, _ = io.WriteString(out, "\r\x1b[K"+p.line())
		}
	})
	return p
}

// Set sets what is shown from now on. The arguments are formatted whenever it is shown.
func (p *Progress) Set(format string, args ...any) {
	if p.out == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.format, p.args = format, args
}

func (p *Progress) line() string {
	p.mu.Lock()
	format, args := p.format, p.args
	p.mu.Unlock()
	line := []rune(text.Printable(fmt.Sprintf(format, args...)))
	return string(line[:min(len(line), progressWidth)])
}

// End removes the line. A second call does nothing.
func (p *Progress) End() {
	if p.out == nil {
		return
	}
	p.mu.Lock()
	select {
	case <-p.ended:
	default:
		close(p.ended)
	}
	p.mu.Unlock()
	p.shown.Wait()
}
