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
	writing sync.Mutex // held while a line is written, which may last; guards out, show and shown
	out     io.Writer  // nil: nothing is shown
	show    *time.Timer
	shown   bool

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
	// replaced goes to the beginning of a line, and clears it.
	replaced = "\r\x1b[K"
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
	p := &Progress{out: out}
	p.writing.Lock()
	defer p.writing.Unlock()
	p.show = time.AfterFunc(after, func() {
		p.writing.Lock()
		defer p.writing.Unlock()
		if p.out == nil {
			return
		}
		p.mu.Lock()
		format, args := p.format, p.args
		p.mu.Unlock()
		line := []rune(text.Printable(fmt.Sprintf(format, args...)))
		_, _ = io.WriteString(p.out, replaced+string(line[:min(len(line), progressWidth)]))
		p.shown = true
		p.show.Reset(every)
	})
	return p
}

// Set sets what is shown from now on. The arguments are formatted whenever it is shown.
func (p *Progress) Set(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.format, p.args = format, args
}

// End removes the line. A second call does nothing.
func (p *Progress) End() {
	p.writing.Lock()
	defer p.writing.Unlock()
	if p.shown {
		_, _ = io.WriteString(p.out, replaced)
	}
	p.out, p.shown = nil, false
}
