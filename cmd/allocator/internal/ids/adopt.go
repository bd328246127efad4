package ids

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/ids/adopt"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/audit"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
)

// AdoptCommand returns "allocator adopt".
func AdoptCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adopt --sample FILE",
		Short: "Find the layout of existing IDs, and how a space goes on from them",
		Long: `Adopt reads existing IDs and says which layouts and epochs they can have, from when they
are, which sids (worker numbers) made them, and what is odd. Then it prints the init command
of a space that goes on from there.

A sample has one ID a line in decimal, or is CSV with the IDs in the first column. It may be
gzipped. Take recent rows of each generator, with the greatest ID.

A layout is out if a tenth of the IDs would have times in the future, bits that it does not
have, or sids outside --sids. Of the others the one with the youngest IDs comes first:
compare its times with those of rows that you know. If several fit and no ID is of today,
adopt asks for --layout. IDs that a spreadsheet or JavaScript has rounded have other sids:
adopt says so and prints no command.

It exits with 0 if a layout fits and nothing is odd, and else with 1.`,
		Example: `  allocator adopt --sample ids.txt
  mysql -Ne 'SELECT id FROM orders' | allocator adopt --sample - --sids 0-31
  allocator adopt --layout baidu,epoch=2024-06-01 --sample ids.csv.gz`,
		Args: cobra.NoArgs,
	}
	sample := cmd.Flags().String("sample", "", "file with IDs, or - for stdin")
	_ = cmd.MarkFlagFilename("sample")
	space := cli.SpaceFlags(cmd)
	var sids lease.SIDRange
	cmd.Flags().Var(config.SIDsValue(&sids), "sids",
		"sids that generators of the sample have, as first-last: others are odd, and nodes get none of these")
	memory := memoryFlag(cmd)
	format := cli.FormatFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case *sample == "":
			return cli.UsageError("no sample is given: name a file with --sample, or - for stdin")
		case *sample == "-" && cli.Terminal(a.In):
			return cli.UsageError("stdin is a terminal: send IDs to it, one a line")
		}
		c := adopt.Config{SIDs: sids, Now: clock.Millis(time.Now().UnixMilli()), Memory: int64(*memory)}
		switch named, epoch := cmd.Flags().Changed("layout"), cmd.Flags().Changed("epoch"); {
		case named:
			c.Format = space()
		// The layout is not known: every one with sids is tried with this epoch.
		case epoch:
			for _, name := range flake.Layouts() {
				if f, err := flake.ParseFormat(name); err == nil && f.Layout.SIDBits() > 0 {
					c.More = append(c.More, flake.Format{Layout: f.Layout, Epoch: space().Epoch})
				}
			}
		}
		return report(a, cmd, format, printAdoption, func(r *reader, spool audit.Spool) (*adopt.Report, bool, error) {
			c.Spool = spool
			s := adopt.New(c)
			if err := r.file(*sample, func(_ string, in io.Reader) error { return s.Read(in) }); err != nil {
				return nil, false, err
			}
			found, err := s.Finish()
			return found, err == nil && found.Clean, err
		})
	}
	return cmd
}

// printAdoption writes a report for people.
func printAdoption(w io.Writer, r *adopt.Report) {
	line := func(name string, format string, args ...any) {
		fmt.Fprintf(w, "%-12s%s\n", name, fmt.Sprintf(format, args...))
	}
	line("IDs", "%d", r.IDs)
	line("duplicates", "%d", r.Duplicates)
	for _, d := range r.ShownDuplicates {
		line("", "%s  lines %s and %s", d.ID, d.At, d.And)
	}
	line("invalid", "%d", r.Invalid)
	for _, d := range r.ShownInvalid {
		line("", "line %s: %s", d.At, d.Error.Message)
	}
	line("order", "%d IDs are below the one before", r.Disorder)
	fmt.Fprintln(w)
	fits := 0
	for _, v := range r.Layouts {
		name := v.Layout
		if len(v.Same) > 0 {
			name += " or " + strings.Join(v.Same, " or ")
		}
		if v.Fits {
			fits++
			line("possible", "%s: %s to %s", name, v.From, v.To)
		} else {
			line("no", "%s: %s", name, v.Why)
		}
	}
	fmt.Fprintln(w)
	p := r.Plan
	if p == nil {
		if r.Rounded != "" {
			line("verdict", "%s. Export the IDs as text, such as with psql -At, and read that file", r.Rounded)
		} else if fits > 0 && r.Layouts[0].Fits {
			line("verdict", "several layouts are possible, and in none of them are the newest IDs of today: give "+
				"--layout with the one whose times are right")
		} else if fits > 0 {
			line("verdict", "the IDs do not have layout %s: name one that is possible, or none", r.Layouts[0].Layout)
		} else {
			line("verdict", "the IDs have none of these layouts: give --layout with the bits, such as "+
				"41/10/12,epoch=2020-01-01, or --epoch")
		}
		for _, h := range r.Hints {
			if h.Library != "" {
				line("try", "--layout %s, that of %s: its newest ID would be of today", h.Layout, h.Library)
			} else {
				line("try", "--layout %s, if the newest ID is of this second: else the epoch is so much earlier",
					h.Layout)
			}
		}
		return
	}
	line("layout", "%s", p.Layout)
	if same := r.Layouts[0].Same; len(same) > 0 {
		line("",
			"%s has the same bits and epoch: IDs do not tell them apart, and either will do", strings.Join(same, ", "))
	}
	if p.Stale {
		line("", "its newest ID is of %s: if IDs were made since, this is not their layout and epoch", p.To)
	} else if fits > 1 {
		line("", "the likeliest, since its newest ID is the youngest: compare its times with those of rows you know")
	}
	line("sids", "%d of %d, from %d to %d; most IDs:", p.SIDsSeen, p.Holders, p.Lowest, p.Highest)
	for _, s := range p.SIDs {
		line("", "sid %-8d%d", s.SID, s.IDs)
	}
	if p.Outside > 0 {
		line("odd", "%d IDs of sids outside --sids", p.Outside)
	}
	if p.MoreBits > 0 {
		line("odd", "%d IDs of more bits than the layout has", p.MoreBits)
	}
	if p.Future > 0 {
		line("odd", "%d IDs of the future, up to %s (%s)%s", p.Future, p.Last, p.LastAt, p.Ahead)
		line("", "nodes may issue these when their time comes: if layout and epoch are right, give those rows others")
	}
	if s := p.StepBack; s != nil {
		line("odd", "IDs of sid %d go back by %s in line %d: its generator was started with another epoch, such as "+
			"midnight in another time zone, and repeats these hours; or two exports follow each other",
			s.SID, s.By, s.Line)
	}
	for _, sid := range p.Fast[:min(len(p.Fast), 10)] {
		line("odd", "sid %d has IDs of the future alone: the clock of its generator is fast, or it is no sid", sid)
	}
	fmt.Fprintf(w, "\nCreate the space, with the greatest ID of the whole table if it is not in the sample:\n\n"+
		"  %s\n", p.Init)
	if p.Serve == "" {
		fmt.Fprint(w, "\nEvery sid is in use: stop some old generators before nodes start.\n")
		return
	}
	fmt.Fprintf(w,
		"\nNodes take the sids %s: no old generator may have one of these, seen here or not:\n\n  %s\n",
		p.NodeSIDs, p.Serve)
}
