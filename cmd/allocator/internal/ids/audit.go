package ids

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/audit"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/text"
)

// AuditCommand returns "allocator audit".
func AuditCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit [FILE…]",
		Short: "Find duplicates and disorder in logs of IDs, exactly",
		Long: `Audit reads logs with one ID a line, in any form, and reports which IDs are in them twice,
where lines do not rise, how many IDs there are of which sid, and from when.
Without a file, or for "-", it reads stdin. Files may be gzipped.

What does not fit in --memory is sorted in the directory for temporary files ($TMPDIR): 3 to
7 bytes for an ID near its neighbors, 20 for a random one. IDs that differ only in form are
equal; a flake and a ULID made from it are not, unless --by flake is given.

It exits with 0 if all is well, with 1 if an ID is there twice, out of order or malformed,
or if there is none, and with 2 if a file cannot be read.`,
		Example: `  allocator audit orders.log payments.log.gz
  allocator audit --order file node-1.log             # and every line above the one before
  allocator get 1000 | allocator audit
  allocator audit --format json orders.log`,
		Args: cobra.ArbitraryArgs,
	}
	kind := cli.Choose(cmd, "kind", "form of the IDs; auto detects it by length",
		"auto", "flake", "int", "hex", "ulid", "uuid", "u128")
	space := cli.SpaceFlags(cmd)
	order := cli.Choose(cmd, "order", "what has to rise: nothing, the lines of each file, or all lines in the order "+
		"of the files", "none", "file", "global")
	by := cli.Choose(cmd, "by", "what must be unique: whole IDs, or the flakes in them", "id", "flake")
	format := cli.FormatFlag(cmd)
	memory := memoryFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			if cli.Terminal(a.In) {
				return cli.UsageError("no file is given: name some, or send IDs to stdin, one a line")
			}
			args = []string{"-"}
		}
		if len(args) > audit.MaxLogs {
			return cli.UsageError("%d files are too many: %d at most", len(args), audit.MaxLogs)
		}
		return report(a, cmd, format, printAudit, func(r *reader, spool audit.Spool) (*audit.Report, bool, error) {
			auditor := audit.New(audit.Config{
				Kind:    describe.Kind(kind.Value),
				Space:   space(),
				Order:   audit.Order(order.Value),
				ByFlake: by.Value == "flake",
				Memory:  int64(*memory),
				Spool:   spool,
			})
			for _, path := range args {
				if err := r.file(path, auditor.Read); err != nil {
					return nil, false, err
				}
			}
			found, err := auditor.Finish()
			return found, err == nil && found.Sound, err
		})
	}
	return cmd
}

// printAudit writes a report for people.
func printAudit(w io.Writer, r *audit.Report) {
	line := func(name string, format string, args ...any) {
		fmt.Fprintf(w, "%-12s%s\n", name, fmt.Sprintf(format, args...))
	}
	line("IDs", "%d in %s", r.IDs, text.Count(r.Files, "file"))
	line("duplicates", "%d", r.Duplicates)
	for _, d := range r.ShownDuplicates {
		line("", "%s  %s  %s", d.ID, d.At, d.And)
	}
	line("disorder", "%d", r.Disorder)
	for _, d := range r.ShownDisorder {
		line("", "%s  %s", d.At, d.Detail)
	}
	line("invalid", "%d", r.Invalid)
	for _, d := range r.ShownInvalid {
		line("", "%s  %s: %s", d.At, d.Error.Class, d.Error.Message)
	}
	if r.From != nil && r.To != nil {
		line("from", "%s", *r.From)
		line("to", "%s", *r.To)
	}
	// One random ULID in 64 looks as if a flake were in it: where most have none,
	// the sids that the others seem to have mean nothing.
	if r.NoSID > r.IDs-r.NoSID {
		r.WideSID = 0
	} else {
		for _, sid := range slices.Sorted(maps.Keys(r.SIDs)) {
			line("sid "+strconv.Itoa(sid), "%d", r.SIDs[sid])
		}
	}
	if r.WideSID > 0 {
		line("", "%d of these are ULIDs and UUIDs: they have a sid only if they were issued in this space", r.WideSID)
	}
	if r.NoSID > 0 {
		line("no sid", "%d", r.NoSID)
	}
	switch {
	case r.Sound:
		line("verdict", "sound")
	case r.IDs == 0 && r.Invalid == 0:
		line("verdict", "nothing to judge: there is no ID")
	default:
		line("verdict", "not sound")
	}
}

// memoryFlag adds --memory.
func memoryFlag(cmd *cobra.Command) *sizeValue {
	memory := sizeValue(96 << 20)
	cmd.Flags().Var(&memory, "memory", "approximate memory to use, such as 64MiB; at least 16MiB")
	return &memory
}

// sizeValue is a flag of bytes.
type sizeValue int64

// minMemory is what an audit needs, in bytes.
const minMemory = 16 << 20

func (v *sizeValue) Type() string { return "SIZE" }
func (v *sizeValue) String() string {
	if *v%(1<<30) == 0 {
		return fmt.Sprintf("%dGiB", *v>>30)
	}
	return fmt.Sprintf("%dMiB", *v>>20)
}

func (v *sizeValue) Set(s string) error {
	for unit, shift := range map[string]int{"MiB": 20, "GiB": 30} {
		number, ok := strings.CutSuffix(s, unit)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 63-shift)
		if err != nil {
			return fmt.Errorf("%q is no whole number of %s", number, unit)
		}
		if n<<shift < minMemory {
			return fmt.Errorf("%s is less than %d MiB", s, minMemory>>20)
		}
		*v = sizeValue(n << shift)
		return nil
	}
	return fmt.Errorf("%q is no size: give it in MiB or GiB", s)
}
