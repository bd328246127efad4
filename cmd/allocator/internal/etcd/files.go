package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/certs"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/inside"
	"github.com/flakelease/allocator/internal/inside/etcdserver"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// certsCommand returns "allocator etcd certs".
func certsCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make an authority and a certificate for each host",
		Long: `Certs makes ca.pem and ca.key, once, and for each host HOST.pem and HOST.key, which are valid to
serve and to call with: for etcd inside (etcd.tls), and for the API (tls). Give each machine ca.pem and its
own two files. ca.key stays where it is. Who has such a certificate may read and write everything in etcd:
make none for callers of the API, and do not set tls.client-ca to ca.pem.

Run it again with more hosts to add certificates, and to renew those of which less than a tenth of their
time is left. Nodes and members read certificates and keys again when they change; members read ca.pem at
their start alone, so another authority needs a file with both first: docs/how-to/run-on-machines.md.`,
		Example: "  allocator etcd certs --hosts 10.0.0.1,10.0.0.2,10.0.0.3 --out pki",
		Args:    cobra.NoArgs,
	}
	hosts := cmd.Flags().StringSlice("hosts", nil, "addresses or names of the machines, comma-separated")
	out := cmd.Flags().String("out", "pki", "`directory` for the files")
	days := cmd.Flags().Int("days", 365, "how long certificates are valid")
	again := cmd.Flags().Bool("renew", false, "replace certificates that are valid")
	_ = cmd.MarkFlagDirname("out")
	cmd.RunE = func(*cobra.Command, []string) error {
		if len(*hosts) == 0 {
			return cli.UsageError("--hosts is empty: name the machines, such as --hosts 10.0.0.1,10.0.0.2,10.0.0.3")
		}
		if *days < 1 || *days > 3650 {
			return cli.UsageError("--days is %d: it must be 1 to 3650", *days)
		}
		authority := certs.Authority{Dir: *out, Now: time.Now()}
		made, err := authority.Sign(*hosts, time.Duration(*days)*24*time.Hour, *again)
		switch {
		case errors.Is(err, certs.ErrAuthority):
			return cli.UsageError("%w", err)
		case err != nil:
			return cli.Exit(cli.ExitInvalid, err)
		case len(made) == 0:
			var until time.Time
			for _, h := range *hosts {
				have, err := certs.Read(filepath.Join(*out, h+".pem"))
				if err != nil {
					return cli.Exit(cli.ExitInvalid, err)
				}
				if end := have[0].NotAfter; until.IsZero() || end.Before(until) {
					until = end
				}
			}
			_, err = fmt.Fprintf(a.Out, "%s has valid certificates of all %d hosts already, the first until %s; "+
				"--renew replaces them before\n", *out, len(*hosts), until.UTC().Format(time.DateOnly))
			return err
		}
		_, err = fmt.Fprintf(a.Out, "%s has certificates for %s, valid for %d days or a few less, so that they "+
			"do not end together; keep %s/ca.key away from the machines\n", *out, strings.Join(made, ", "), *days, *out)
		return err
	}
	return cmd
}

// snapshotCommand returns "allocator etcd snapshot".
func snapshotCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot FILE",
		Short: "Write a snapshot of etcd into a file",
		Long: `Snapshot writes what etcd holds now. Members with etcd inside write one each hour by themselves, into
the directory snapshots of etcd.inside; copy these to another machine.`,
		Example: "  allocator etcd snapshot backup.db --config /etc/allocator/allocator.yaml",
		Args:    cobra.ExactArgs(1),
	}
	c := newCall(a, cmd, false)
	cmd.RunE = c.with(func(ctx context.Context, _ config.Config, g *etcdstore.Group, args []string) error {
		if _, err := os.Lstat(args[0]); err == nil {
			return cli.UsageError("%s exists, and may be the only snapshot of its time: name another file, or "+
				"remove it", args[0])
		}
		if err := meet.Save(ctx, g, args[0]); err != nil {
			if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
				return cli.UsageError("%w", err)
			}
			return cli.Exit(cli.ExitUnavailable, err)
		}
		info, err := os.Stat(args[0])
		if err != nil {
			return cli.Exit(cli.ExitInvalid, err)
		}
		if c.format.Value == "json" {
			return cli.PrintLine(a.Out, meet.Snapshot{Path: args[0], At: info.ModTime(), Size: info.Size()})
		}
		_, err = fmt.Fprintf(a.Out, "%s has %s\n", args[0], mebi(info.Size()))
		return err
	})
	return cmd
}

// verified is what a snapshot has.
type verified struct {
	File     string `json:"snapshot"`
	SHA256   string `json:"sha256"`
	Checked  bool   `json:"checked"`
	Size     int64  `json:"size"`
	Revision int64  `json:"revision"`
	Keys     int    `json:"keys"`
	Space    string `json:"space,omitempty"` // The space is read from a member that was restored.
	Era      int64  `json:"era,omitempty"`
	SIDs     int    `json:"sids,omitempty"`
}

// verifyCommand returns "allocator etcd verify".
func verifyCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Check that a snapshot can be restored",
		Long: `Verify compares the checksum of a snapshot, reads each page and record, starts a member from it that
nobody else can call, and reads the space there. It needs no etcd, and room for the database below $TMPDIR.`,
		Example: "  allocator etcd verify backup.db",
		Args:    cobra.ExactArgs(1),
	}
	restore := cmd.Flags().Bool("restore", true, "start a member from it and read the space")
	limit := cmd.Flags().Duration("timeout", time.Minute, "how long the member may take to start and answer")
	format := cli.FormatFlag(cmd)
	load := a.Settings(cmd)
	cli.ListSettings(cmd, "root", "space")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, _, err := load()
		if err != nil {
			return err
		}
		v := verified{File: args[0]}
		v.SHA256, v.Checked, err = inside.ReadSnapshot(v.File)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
			return cli.UsageError("%w", err)
		}
		if err == nil {
			v.Size, v.Revision, v.Keys, err = etcdserver.Open(v.File)
		}
		if err == nil && *restore {
			ctx, cancel := context.WithTimeout(cmd.Context(), *limit)
			defer cancel()
			var view lease.View
			err = etcdserver.Try(ctx, v.File, v.Checked, func(endpoint string) (err error) {
				view, err = spaceAt(ctx, endpoint, s)
				return err
			})
			v.Space, v.Era, v.SIDs = s.Space, view.Era.Value.Number, len(view.SIDs)
			if err == nil && (!view.Config.Exists() || view.Config.Err != nil || v.Era == 0) {
				err = fmt.Errorf("%s has no space %q under root %q, or not all of it: is it the snapshot of another "+
					"etcd, or does the space need --space and --root?", v.File, s.Space, s.Root)
			}
		}
		if err != nil {
			return cli.Exit(cli.ExitInvalid, err)
		}
		if format.Value == "json" {
			return cli.PrintLine(a.Out, v)
		}
		fmt.Fprintf(a.Out, "%s: %s, %d keys at revision %d, SHA-256 %s; %s\n", v.File, mebi(v.Size), v.Keys,
			v.Revision, v.SHA256, map[bool]string{
				true:  "its checksum is right",
				false: "it has no checksum, as a copy from before an upgrade",
			}[v.Checked])
		if *restore {
			fmt.Fprintf(a.Out, "a member starts from it, and has space %q: era %d, records of %d sids\n", v.Space,
				v.Era, v.SIDs)
		}
		return nil
	}
	return cmd
}

// spaceAt returns the space that a member has.
func spaceAt(ctx context.Context, endpoint string, s config.Config) (v lease.View, err error) {
	client, err := etcdstore.Dial(etcdstore.Config{Endpoints: []string{endpoint}})
	if err != nil {
		return v, err
	}
	defer client.Close()
	store, err := etcdstore.New(client, s.Root, s.Space)
	if err != nil {
		return v, err
	}
	return store.Load(ctx)
}

// restoreCommand returns "allocator etcd restore".
func restoreCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore this machine's member from a snapshot, into a new cluster",
		Long: `Restore prepares the directory of etcd.inside with a snapshot, and restarts the member if one runs.
The node goes on running: it knows what it was granted. Run it on every machine of etcd.join with the same
file. The members are a new cluster then, which begins when all of them are restored, and every node refuses
until "allocator admin recover" has begun a new era. If a machine is gone for good, leave it out on the
others with --etcd.join.

The data that the member had is kept in the directory. A member that has started from the snapshot already
is not restored from it again, since it may have voted. To restore all members from one snapshot once more,
give --again 1 on each of them, then --again 2.`,
		Example: "  allocator etcd restore backup.db --config /etc/allocator/allocator.yaml",
		Args:    cobra.ExactArgs(1),
	}
	again := cmd.Flags().Uint("again", 0, "how often all members were restored from this snapshot before")
	c := newCall(a, cmd, true)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, _, err := cli.WithEtcd("etcd restore", c.load)
		if err != nil {
			return err
		}
		in := s.Etcd.Inside
		if in.Dir == "" {
			return cli.UsageError("restore works on a machine with a member: give --etcd.inside or --config")
		}
		host, _, err := inside.OwnAddress(cmd.Context(), in)
		if err != nil {
			return cli.UsageError("%w", err)
		}
		d, hosts := inside.Dir(in.Dir), in.Join
		if len(hosts) == 0 {
			hosts = []string{host}
		}
		r, err := d.PlanRestore(args[0], host, s.Etcd.PeerURL(host), inside.Initial(hosts, s.Etcd.PeerURL), *again)
		if err != nil {
			return refusal(err)
		}
		p, refused := planRestore(c.ask(), r, in.Dir, hosts)
		if ok, err := c.run(p, refused); err != nil || !ok {
			return err
		}
		r.Act = cli.Act(p.Title, *c.reason)
		if err := d.Restore(r, etcdserver.Restore); err != nil {
			return cli.Exit(cli.ExitInvalid, err)
		}
		if err := d.Terminate(*c.timeout); err != nil {
			return cli.Exit(cli.ExitInvalid, err)
		}
		_, err = fmt.Fprintf(a.Out, "%s has the data of %s for the next start of member %s\n", in.Dir, args[0], host)
		return err
	}
	return cmd
}

// planRestore says what a restore would do to the members that answer.
func planRestore(in seen, r inside.Restored, dir string, hosts []string) (p plan, refused error) {
	p = plan{
		Title:    fmt.Sprintf("restore member %s from %s", r.Host, r.File),
		Found:    []string{"SHA-256 of the snapshot: " + r.SHA256},
		question: fmt.Sprintf("Restore member %s?", r.Host),
	}
	switch before := member.QuorumOf(in.list); {
	case in.problem != nil:
		p.Found = append(p.Found, fmt.Sprintf("no majority of the members answers now: %v", in.problem))
		p.Quorum = "there is none to lose"
	case in.cluster == r.Cluster:
		p.Found = append(p.Found, "now "+before.String()+", in the restored cluster")
		p.Quorum = "yes: the member joins it"
		if refused = member.MayRestore(r.Host, r.Peer, in.list); refused != nil {
			p.Quorum = "no"
		}
	default:
		gone, _ := member.Find(in.list, r.Host)
		_, after, lost := member.Without(in.list, gone)
		p.Found = append(p.Found, "now "+before.String())
		p.Quorum = fmt.Sprintf("yes, until the others are restored too: without %s %v", r.Host, after)
		if lost != nil {
			p.Quorum = fmt.Sprintf("no: without %s %v", r.Host, after)
		}
	}
	if !r.Checked {
		p.Found = append(p.Found, "warning: the snapshot has no checksum of etcd: it is a copy of a database, such as "+
			"those before an upgrade")
	}
	p.Does = []string{fmt.Sprintf("%s gets the data of the snapshot, as a member of %s with token %s", dir,
		strings.Join(hosts, ", "), r.Token)}
	if r.Runs != 0 {
		p.Does = append(p.Does, fmt.Sprintf("the member that runs (process %d) is stopped, and its node starts it "+
			"from that data", r.Runs))
	}
	p.Does = append(p.Does, "the present data stays beside it", "the restored members are a new cluster, which begins "+
		"when all of them are restored")
	p.Then = []string{
		"do the same on each other machine of etcd.join, with the same file",
		"run \"allocator admin recover\": until then every node refuses with HISTORY_REWOUND",
	}
	return p, refused
}
