package fence

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/chaos/real/rigtest"
	"github.com/flakelease/allocator/chaos/tier"
)

// TestFollow: "allocator watermark --follow" shows the watermark move, names the node that holds it back
// while that is stopped with SIGSTOP, and shows it go on once the node's window has passed and after SIGCONT.
func TestFollow(t *testing.T) {
	tier.Check(t, "three nodes and three etcd members")
	c := start(t, rig.Brisk)
	f := c.follow()
	first := f.until("the watermark", func(mark) bool { return true })
	f.until("the watermark moves", func(m mark) bool { return m.at.After(first.at) })

	n := c.Nodes[0]
	fatal.If(t, n.Pause())
	stopped := time.Now()
	f.until(n.Name+" holds it back", func(m mark) bool { return m.says(blocks, n.Name) })
	// Its floor is from before it was stopped.
	f.until("it goes on without "+n.Name, func(m mark) bool {
		return m.at.After(stopped) && m.says("conditional", n.Name)
	})
	fatal.If(t, n.Resume())
	fatal.If(t, rig.Until(t.Context(), 2*time.Minute, n.Name+" issues again", n.Ready))
	issues := time.Now()
	f.until("it goes on with all nodes", func(m mark) bool { return m.at.After(issues) && !m.says(blocks, "") })
}

// blocks is in the lines that say who holds the watermark back, whatever the reason is.
const blocks = ", since "

// mark is what is printed of a watermark: its time, and the lines below.
type mark struct {
	at    time.Time
	notes []string
}

// says reports whether a line below the time has both texts.
func (m mark) says(what, who string) bool {
	for _, line := range m.notes {
		if strings.Contains(line, what) && strings.Contains(line, who) {
			return true
		}
	}
	return false
}

// follower reads what "allocator watermark --follow" prints.
type follower struct {
	*testing.T
	marks chan mark
	last  mark
}

// follow starts the command for all nodes.
func (c *cluster) follow() *follower {
	ctx, stop := context.WithCancel(context.WithoutCancel(c.Context()))
	cmd := exec.CommandContext(ctx, c.Allocator, "watermark", "--follow", "--addr", strings.Join(rigtest.Addresses(c.Rig), ","))
	out, err := cmd.StdoutPipe()
	fatal.If(c, err)
	fatal.If(c, cmd.Start())
	f := &follower{T: c.T, marks: make(chan mark, 1000)}
	go f.read(out)
	c.Cleanup(func() {
		stop()
		for range f.marks {
		}
		_ = cmd.Wait()
	})
	return f
}

// read passes on each watermark with its notes, once the next one is printed.
func (f *follower) read(out io.Reader) {
	defer close(f.marks)
	var m mark
	for in := bufio.NewScanner(out); in.Scan(); {
		line := in.Text()
		if strings.HasPrefix(line, " ") {
			m.notes = append(m.notes, line)
			continue
		}
		text, _, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			f.Errorf("it printed %q", line)
			return
		}
		if !m.at.IsZero() {
			f.marks <- m
		}
		m = mark{at: at}
	}
}

// until returns the first watermark from now on that is as asked for. None is below the one before.
func (f *follower) until(what string, is func(mark) bool) mark {
	f.Helper()
	began, late := time.Now(), time.After(2*time.Minute)
	for {
		select {
		case m, open := <-f.marks:
			switch {
			case !open:
				f.Fatalf("%s: the command ended", what)
			case m.at.Before(f.last.at):
				f.Fatalf("the watermark fell from %v to %v", f.last.at, m.at)
			}
			if f.last = m; is(m) {
				f.Logf("%s after %v: %v %q", what, time.Since(began).Round(time.Millisecond), m.at, m.notes)
				return m
			}
		case <-late:
			f.Fatalf("%s: not within 2 minutes; the last is %v %q", what, f.last.at, f.last.notes)
		}
	}
}
