// Package top is the command top: the cluster on a terminal, as one node sees it, again
// each second.
package top

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/internal/feed"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/text"
)

// every is the time between two views.
const every = time.Second

// Command returns "allocator top".
func Command(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the cluster: windows, clocks, rates, refusals",
		Long: `Top shows the cluster as one node sees it, again each second. A value that is older than 5 s
is not shown. The second line says whether all is well, or what is wrong most.

WINDOW is relative to the longest one. CLOCK and OFFSET are as in "allocator status".
STATE is serving, standby, the reason why the node refuses, silent if it does not answer by
gossip any more, or unknown if it never did.

Keys: arrows scroll, q quits. --once needs no terminal.`,
		Example: `  allocator top --addr 10.0.0.5:9000
  allocator top --once --format json`,
		Args: cobra.NoArgs,
	}
	once := cmd.Flags().Bool("once", false, "print one view and end")
	format := cli.FormatFlag(cmd)
	connect := remote.NodesFlags(a, cmd, remote.DefaultAddr)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		terminal := a.OutTerminal()
		switch {
		case format.Value == "json" && !*once:
			return cli.UsageError("--format json needs --once")
		case terminal == nil && !*once:
			return cli.UsageError("stdout is no terminal: give --once")
		}
		nodes, err := connect()
		if err != nil {
			return err
		}
		defer nodes.Close()
		l := &looker{nodes: nodes, events: []feed.Event{}}
		if *once {
			return printOnce(cmd.Context(), a.Out, l, format.Value == "json")
		}
		if _, err := l.look(cmd.Context()); err != nil { // an error is for the shell
			return err
		}
		p := tea.NewProgram(model{ctx: cmd.Context(), looker: l}, tea.WithContext(cmd.Context()), tea.WithInput(a.In),
			tea.WithOutput(terminal), tea.WithoutSignalHandler(), tea.WithoutCatchPanics())
		_, err = p.Run()
		if cmd.Context().Err() != nil {
			return cli.ErrInterrupted
		}
		return err
	}
	return cmd
}

// printOnce prints one view: the second, since nodes are asked for their reports by the first.
func printOnce(ctx context.Context, out io.Writer, l *looker, asJSON bool) error {
	if _, err := l.look(ctx); err != nil {
		return err
	}
	select {
	case <-time.After(every + every/4):
	case <-ctx.Done():
		return cli.ErrInterrupted
	}
	v, err := l.look(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		return cli.PrintLine(out, v)
	}
	_, err = fmt.Fprintln(out, strings.Join(v.lines(0, 0), "\n"))
	return err
}

// looker asks nodes.
type looker struct {
	nodes  *remote.Nodes
	events []feed.Event // the latest
	after  string       // ID of the last event
}

// eventsShown is how many events a view has.
const eventsShown = 8

// look returns the view of now.
func (l *looker) look(ctx context.Context) (v view, err error) {
	var c status.Cluster
	err = l.nodes.Ask(ctx, func(ctx context.Context, conn *grpc.ClientConn) (err error) {
		if c, err = status.Ask(ctx, conn); err == nil {
			l.follow(ctx, pb.NewAdminServiceClient(conn))
		}
		return err
	})
	if err != nil {
		return view{}, err
	}
	return newView(c, l.events), nil
}

// follow reads what happened since it was last called. A node without events has none.
func (l *looker) follow(ctx context.Context, admin pb.AdminServiceClient) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { l.events = slices.Clone(l.events[max(len(l.events)-eventsShown, 0):]) }()
	stream, err := admin.WatchEvents(ctx, &pb.WatchEventsRequest{After: l.after})
	for err == nil {
		var m *pb.WatchEventsResponse
		m, err = stream.Recv()
		switch {
		case err != nil:
		case m.GetMissed() != nil:
			l.events = []feed.Event{} // those before are of another node
		case m.GetEvent() == nil:
			return
		default:
			l.events = append(l.events, eventOf(m.GetEvent()))
			l.after = m.GetEvent().GetId()
		}
	}
}

// model is the screen.
type model struct {
	ctx           context.Context
	looker        *looker
	view          view
	shown         bool // view is set
	err           error
	failing       time.Duration // for how long
	skip          int           // rows of nodes above the screen
	width, height int
}

// looked is what look returned.
type looked struct {
	view view
	err  error
	took time.Duration
}

type again struct{}

func (m model) look() tea.Msg {
	began := time.Now()
	v, err := m.looker.look(m.ctx)
	return looked{v, err, time.Since(began)}
}

// Init begins to look.
func (m model) Init() tea.Cmd { return m.look }

// Update takes what happened.
func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "esc", "ctrl+c":
			return m, tea.Quit
		case "up", "k":
			m.skip = max(m.skip-1, 0)
		case "down", "j":
			m.skip = max(min(m.skip+1, len(m.view.Nodes)-1), 0)
		}
	case looked:
		if m.err = msg.err; m.err == nil {
			m.view, m.shown, m.failing = msg.view, true, 0
		} else {
			m.failing += msg.took + every
		}
		return m, tea.Tick(every, func(time.Time) tea.Msg { return again{} })
	case again:
		return m, m.look
	}
	return m, nil
}

// View returns the screen.
func (m model) View() tea.View {
	v := tea.NewView(m.screen())
	v.AltScreen, v.WindowTitle = true, "allocator top"
	return v
}

// screen returns the text of the screen, cut to its size.
func (m model) screen() string {
	var lines []string
	if m.err != nil {
		first, _, _ := strings.Cut(m.err.Error(), "\n")
		lines = append(lines, fmt.Sprintf("NO ANSWER for %v, below is what was before: %s",
			m.failing.Round(time.Second), text.Printable(first)), "")
	}
	if m.shown {
		room := 0
		if m.height > 0 { // all but nodes comes first
			rest := len(m.view.lines(0, 0)) - len(m.view.Nodes)
			room = max(m.height-rest-len(lines)-1, 3)
		}
		lines = append(lines, m.view.lines(m.skip, room)...)
	}
	if m.height > 0 {
		lines = lines[:min(len(lines), m.height)]
	}
	if m.width > 0 {
		for i, l := range lines {
			if runes := []rune(l); len(runes) > m.width {
				lines[i] = string(runes[:m.width-1]) + "…"
			}
		}
	}
	return strings.Join(lines, "\n")
}
