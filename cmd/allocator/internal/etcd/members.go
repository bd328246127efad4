package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// statusCommand returns "allocator etcd status".
func statusCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the members of etcd, their quorum, and the last snapshot",
		Long: `Status asks each member for its leader, lag, database, disk and alarms. It exits with 1 if a
member does not answer or has an alarm, and with 3 if there is no quorum. With --etcd.inside it shows the
snapshots of this machine.`,
		Example: "  allocator etcd status --config /etc/allocator/allocator.yaml",
		Args:    cobra.NoArgs,
	}
	c := newCall(a, cmd, false)
	cmd.RunE = c.with(func(ctx context.Context, s config.Config, g *etcdstore.Group, _ []string) error {
		return c.showStatus(s, c.look(ctx, s, g, leaderTimeout), inside.SyncTimes(ctx, s.Etcd))
	})
	return cmd
}

// line is a member as "etcd status" prints it.
type line struct {
	Name    string   `json:"name"`
	ID      string   `json:"id,omitempty"`
	State   string   `json:"state"` // leader, follower, learner, or why it does not answer
	Version string   `json:"version,omitempty"`
	Lag     uint64   `json:"lag"`
	Size    int64    `json:"database_bytes"`
	Quota   int64    `json:"quota_bytes"`
	SyncP99 float64  `json:"disk_sync_p99_ms,omitempty"`
	Alarms  []string `json:"alarms,omitempty"`
}

func lineOf(m member.Status, syncs map[string]time.Duration) line {
	l := line{Name: m.Label(), Version: m.Version, Lag: m.Lag, Size: m.Size, Quota: m.Quota, Alarms: m.Alarms}
	if m.ID != 0 {
		l.ID = fmt.Sprintf("%x", m.ID)
	}
	switch {
	case m.Err != nil:
		l.State = m.Err.Error()
	case m.Learner:
		l.State = "learner"
	case m.Leads:
		l.State = "leader"
	default:
		l.State = "follower"
	}
	for _, url := range m.Clients {
		l.SyncP99 = float64(syncs[member.HostOf(url)].Microseconds()) / 1000
	}
	return l
}

func (c *call) showStatus(s config.Config, in seen, syncs map[string]time.Duration) error {
	q := member.QuorumOf(in.list)
	well := true
	var lines []line
	for _, m := range in.list {
		l := lineOf(m, syncs)
		well = well && m.Err == nil && len(m.Alarms) == 0
		lines = append(lines, l)
	}
	var snapshots []meet.Snapshot
	var copies []inside.Copy
	if s.Etcd.Inside.Dir != "" {
		copies = inside.Dir(s.Etcd.Inside.Dir).Copies()
		var err error
		if snapshots, err = inside.Dir(s.Etcd.Inside.Dir).Snapshots().List(time.Now()); err != nil {
			return cli.Exit(cli.ExitInvalid, err)
		}
	}
	if c.format.Value == "json" {
		if err := cli.PrintLine(c.a.Out, struct {
			Cluster   string          `json:"cluster"`
			Quorum    string          `json:"quorum"`
			Members   []line          `json:"members"`
			Snapshots []meet.Snapshot `json:"snapshots,omitempty"`
			Copies    []inside.Copy   `json:"copies,omitempty"`
		}{fmt.Sprintf("%x", in.cluster), q.String(), lines, snapshots, copies}); err != nil {
			return err
		}
		return verdict(s, in, q, well)
	}
	t := tabwriter.NewWriter(c.a.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MEMBER\tSTATE\tVERSION\tLAG\tDATABASE\tQUOTA\tDISK SYNC P99\tALARMS")
	for _, l := range lines {
		sync := "-"
		if l.SyncP99 > 0 {
			sync = fmt.Sprintf("%.1f ms", l.SyncP99)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", l.Name, l.State, cli.OrDash(l.Version), l.Lag, mebi(l.Size),
			mebi(l.Quota), sync, cli.OrDash(strings.Join(l.Alarms, ",")))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(c.a.Out, q)
	if s.Etcd.Inside.Dir != "" && len(snapshots) == 0 {
		fmt.Fprintln(c.a.Out, "there is no snapshot on this machine")
	} else if len(snapshots) > 0 {
		fmt.Fprintf(c.a.Out, "%d snapshots on this machine, the latest %s: %s\n", len(snapshots),
			cli.Relative(snapshots[0].At, time.Now()), snapshots[0].Path)
	}
	for _, one := range copies {
		fmt.Fprintf(c.a.Out, "older data is kept in %s: %s\n", one.Path, mebi(one.Size))
	}
	return verdict(s, in, q, well)
}

func verdict(s config.Config, in seen, q member.Quorum, well bool) error {
	switch {
	case in.problem != nil:
		return cli.Exit(cli.ExitUnavailable, fmt.Errorf("no majority of %s answers: %w: start the others, or restore "+
			"a snapshot", strings.Join(s.Etcd.Addresses(), ", "), in.problem))
	case !well || !q.Holds():
		return cli.ErrInvalid
	}
	return nil
}

func mebi(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20))
}

// defragmentCommand returns "allocator etcd defragment".
func defragmentCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "defragment",
		Short: "Make the databases of the members smaller, and end the alarm of a full quota",
		Long: `Defragment gives the free space in the databases back to the disk: one member after the other, the
leader last, and only while all of them answer. A member answers nobody meanwhile.

If the quota of a member is full (alarm NOSPACE), etcd refuses every write.
Defragment then compacts first, and ends the alarm when there is room again.`,
		Example: "  allocator etcd defragment --config /etc/allocator/allocator.yaml --dry-run",
		Args:    cobra.NoArgs,
	}
	c := newCall(a, cmd, true)
	cmd.RunE = c.with(func(ctx context.Context, s config.Config, g *etcdstore.Group, _ []string) error {
		_, list, err := g.List(ctx)
		if err != nil {
			return unavailable(s, err)
		}
		ask := func(ctx context.Context) []member.Status { return g.Status(ctx, list) }
		d, refused := meet.PlanDefragmentation(ctx, g, ask, 0)
		p := planDefragment(d, refused)
		agreed, err := c.run(p, refused)
		if err != nil || !agreed {
			return err
		}
		// The person may have taken a while. The rest takes as long as the databases are large.
		if d, err = meet.PlanDefragmentation(cmd.Context(), g, ask, 0); err != nil {
			return refusal(err)
		}
		err = d.Run(cmd.Context(), a.Out)
		c.record(p.Title) // A full etcd refused it before.
		if err != nil {
			return cli.Exit(cli.ExitUnavailable, err)
		}
		return nil
	})
	return cmd
}

func planDefragment(d meet.Defragmentation, refused error) plan {
	p := plan{Title: "defragment the members", Found: d.Found(), question: "Defragment the members?"}
	if refused == nil {
		p.Quorum = "yes: one member after the other, each when all answer"
	}
	if d.Full {
		p.Does = append(p.Does, "etcd forgets what keys were before; their values stay")
	}
	for _, e := range d.Targets {
		p.Does = append(p.Does, e+" makes its database smaller, and answers nobody meanwhile")
	}
	if d.Full {
		p.Does = append(p.Does, "the alarm ends, and etcd takes writes again")
	}
	return p
}

// removeCommand returns "allocator etcd remove".
func removeCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remove MEMBER",
		Short: "Remove a member for good",
		Long: `Remove takes a member out of the cluster, if the quorum survives it. MEMBER is its host, name or ID.
The node there goes on as a client of the others, and its data is no longer used.`,
		Example: "  allocator etcd remove 10.0.0.3 --config /etc/allocator/allocator.yaml --dry-run",
		Args:    cobra.ExactArgs(1),
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	c := newCall(a, cmd, true)
	cmd.RunE = c.with(func(ctx context.Context, s config.Config, g *etcdstore.Group, args []string) error {
		return c.change(ctx, s, g, args[0], false, "")
	})
	return cmd
}

// replaceCommand returns "allocator etcd replace".
func replaceCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replace MEMBER",
		Short: "Replace a member whose data is lost, under its address or another",
		Long: `Replace removes a member and adds a new one without a vote. The node there starts with an empty
--etcd.inside, catches up, and gets its vote. With --with the new member has another address.`,
		Example: "  allocator etcd replace 10.0.0.3 --config /etc/allocator/allocator.yaml\n" +
			"  allocator etcd replace 10.0.0.3 --with 10.0.0.4 --config /etc/allocator/allocator.yaml",
		Args: cobra.ExactArgs(1),
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	with := cmd.Flags().String("with", "", "`host` of the new member; default: that of the old one")
	c := newCall(a, cmd, true)
	cmd.RunE = c.with(func(ctx context.Context, s config.Config, g *etcdstore.Group, args []string) error {
		return c.change(ctx, s, g, args[0], true, *with)
	})
	return cmd
}

// change removes a member. If it is to be replaced, it adds the one at the host with, by default at
// the host of the old one.
func (c *call) change(ctx context.Context, s config.Config, g *etcdstore.Group, which string, replace bool,
	with string) (err error) {
	in := c.look(ctx, s, g, 0)
	if in.problem != nil {
		return unavailable(s, in.problem)
	}
	if replace && with == "" {
		if with, err = hostOf(in.list, which); err != nil {
			return refusal(err)
		}
	}
	p, gone, refused := planChange(in, s.Etcd, which, with)
	if gone.ID == 0 {
		return refusal(refused)
	}
	agreed, err := c.run(p, refused)
	if err != nil || !agreed {
		return err
	}
	// The person may have taken a while.
	ctx, cancel := context.WithTimeout(c.cmd.Context(), *c.timeout)
	defer cancel()
	if in = c.look(ctx, s, g, 0); in.problem != nil {
		return unavailable(s, in.problem)
	}
	if _, _, err := planChange(in, s.Etcd, fmt.Sprintf("%x", gone.ID), with); err != nil {
		return refusal(err)
	}
	c.record(p.Title)
	ctx, cancel = context.WithTimeout(c.cmd.Context(), *c.timeout) // The record may have taken as long.
	defer cancel()
	if err := g.Remove(ctx, gone.ID); err != nil {
		return cli.Exit(cli.ExitUnavailable, err)
	}
	fmt.Fprintf(c.a.Out, "member %s (%x) is removed\n", gone.Label(), gone.ID)
	if with == "" {
		return nil
	}
	id, err := add(ctx, g, s.Etcd.PeerURL(with))
	if err != nil {
		return cli.Exit(cli.ExitUnavailable, fmt.Errorf("%w\nThe node at %s adds its member itself when it starts "+
			"with an empty directory", err, with))
	}
	_, err = fmt.Fprintf(c.a.Out, "member %s (%x) is added without a vote: it gets one when it has caught up\n",
		with, id)
	return err
}

// add adds a member. A removal may break connections between the others for a moment, and etcd waits until
// they have lasted: so it is asked again for as long as the command may take.
func add(ctx context.Context, g *etcdstore.Group, peer string) (uint64, error) {
	for {
		id, err := g.Add(ctx, peer)
		if !errors.Is(err, etcdstore.ErrAwayOnce) {
			return id, err
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-time.After(addAgain):
		}
	}
}

// addAgain is after what time etcd is asked again.
const addAgain = 500 * time.Millisecond

// hostOf returns the host of a member, which may be named by its ID or name.
func hostOf(all []member.Status, which string) (string, error) {
	m, err := member.Find(all, which)
	if err != nil {
		return "", err
	}
	return member.HostOf(m.Peers[0]), nil
}

// planChange says what the removal of a member, and the addition of another, would do.
func planChange(in seen, e config.Etcd, which, with string) (p plan, gone member.Status, refused error) {
	gone, err := member.Find(in.list, which)
	if err != nil {
		return p, gone, err
	}
	before, after, refused := member.Without(in.list, gone)
	p.Found = append(p.Found, "now "+before.String())
	if gone.Err == nil && with != "" && with == member.HostOf(gone.Peers[0]) && refused == nil {
		p.Found = append(p.Found, fmt.Sprintf("warning: %s answers, so its data does not seem to be lost",
			gone.Label()))
	}
	p.Quorum = fmt.Sprintf("yes: without %s %v", gone.Label(), after)
	if refused != nil {
		p.Quorum = "no"
	}
	if refused == nil && with != "" {
		refused = member.Replace(in.list, gone, e.PeerURL(with))
	}
	p.Title = "remove " + gone.Label()
	p.Does = []string{fmt.Sprintf("member %s (%x) is removed", gone.Label(), gone.ID)}
	if with != "" {
		p.Title = fmt.Sprintf("replace %s with %s", gone.Label(), with)
		p.Does = append(p.Does, fmt.Sprintf("member %s is added as a learner, which needs no vote", e.PeerURL(with)))
		p.Then = append(p.Then, fmt.Sprintf("start the node at %s with an empty directory of etcd.inside, if it does "+
			"not run: it joins, catches up, and votes", with))
	}
	if host := member.HostOf(gone.Peers[0]); with != host {
		change := "take " + host + " out of"
		if with != "" {
			change = "put " + with + " in the place of " + host + " in"
		}
		p.Then = append(p.Then, change+" etcd.join and etcd.endpoints of each node, for its next start")
	}
	p.question = strings.ToUpper(p.Title[:1]) + p.Title[1:] + "?"
	return p, gone, refused
}
