package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/history/spool"
	"github.com/flakelease/allocator/internal/describe"
)

func (a *app) auditCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit [FILE…]",
		Short: "Find duplicates and disorder in logs of IDs, exactly",
		Long: `Audit reads logs with one ID a line, in any form, and says which IDs are in them twice,
where lines do not rise, how many IDs there are of which sid, and from when to when.
Without a file, or for «-», it reads stdin. Files may be gzipped. A history of the chaos
harness (lines of JSON) is read as what clients were answered, block by block.

It compares every ID with every other, however many there are: what does not fit in
--memory is sorted on disk, in the folder for temporary files ($TMPDIR), which takes 3 to
7 bytes for an ID that is near its neighbours and 20 for a random one. IDs that differ in
their form only are the same; a flake and a ULID made from it are not, unless --by flake
says that only the flake counts.

It exits with 0 if all is well, with 1 if an ID is there twice, out of order or malformed,
or if there is none, and with 2 if a file cannot be read.`,
		Example: `  allocator audit orders.log payments.log.gz
  allocator audit --order file node-1.log             # and every line above the one before
  allocator get 1000 | allocator audit
  allocator audit --format json history.jsonl`,
		Args: cobra.ArbitraryArgs,
	}
	au := &audit{files: nil, err: a.err}
	kind := choose(cmd, "kind", "form of the IDs; auto goes by their length", "auto", "flake", "int", "hex", "ulid", "uuid", "u128")
	space := spaceFlags(cmd)
	order := choose(cmd, "order", "what has to rise: nothing, the lines of each file, or all lines in the order of the files", "none", "file", "global")
	by := choose(cmd, "by", "what must be unique: whole IDs, or the flakes in them", "id", "flake")
	format := formatFlag(cmd)
	memory := sizeValue(96 << 20)
	cmd.Flags().Var(&memory, "memory", "about how much memory to use, such as 64MiB; 16MiB at least")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if len(args) == 0 {
			if terminal(a.in) {
				return usage("no file is given: name some, or send IDs to stdin, one a line")
			}
			args = []string{"-"}
		}
		if len(args) > mostFiles {
			return usage("%d files are too many: %d at most", len(args), mostFiles)
		}
		dir, err := spool.NewDir("", 0)
		if err != nil {
			return &exitError{exitUsage, err}
		}
		defer func() { err = errors.Join(err, dir.Close()) }()
		au.kind, au.space, au.files = describe.Kind(kind.value), space(), args
		au.order, au.byFlake, au.in = order.value, by.value == "flake", a.in
		au.spool = &watched{Spool: dir, ctx: cmd.Context(), told: au.merging}
		// The garbage collector lets the heap double, and two widths may be mixed.
		au.narrow = history.NewMerge(int64(memory)/6, au.spool)
		au.wide = history.NewMerge(int64(memory)/6, au.spool)
		if err := au.read(cmd.Context()); err != nil {
			return err
		}
		found, err := au.finish()
		if err != nil {
			return err
		}
		out := a.output(cmd.Context())
		if format.value == "json" {
			err = printLine(out, found)
		} else {
			found.print(out)
		}
		return ended(out, err, !found.Sound)
	}
	return cmd
}

// auditReport is what an audit found.
type auditReport struct {
	Sound      bool             `json:"sound"`
	Files      int              `json:"files"`
	IDs        int64            `json:"ids"`
	Duplicates uint64           `json:"duplicates"` // surplus: an ID that is there three times counts two
	Disorder   int64            `json:"disorder"`   // lines whose ID is below the one before
	Invalid    int64            `json:"invalid"`    // lines that are no ID
	From       *string          `json:"from"`       // times of the least and the greatest ID; nil: there is none
	To         *string          `json:"to"`
	SIDs       map[string]int64 `json:"sids"`
	NoSID      int64            `json:"no_sid"` // IDs that come from no flake
	Twice      []twice          `json:"duplicates_shown"`
	Below      []below          `json:"disorder_shown"`
	Bad        []badLine        `json:"invalid_shown"`

	sids []int64
}

type twice struct {
	ID    string `json:"id"` // the first of Count that the two have in common
	Count uint64 `json:"count"`
	At    string `json:"at"` // file:line
	And   string `json:"and"`
}

type below struct {
	At     string `json:"at"`
	Detail string `json:"detail"`
}

type badLine struct {
	At    string     `json:"at"`
	Error classError `json:"error"`
}

// mostShown bounds the evidence of each kind.
const mostShown = 10

func (r *auditReport) print(w io.Writer) {
	line := func(name string, format string, args ...any) {
		fmt.Fprintf(w, "%-12s%s\n", name, fmt.Sprintf(format, args...))
	}
	line("IDs", "%d in %s", r.IDs, plural(r.Files, "file"))
	line("duplicates", "%d", r.Duplicates)
	for _, d := range r.Twice {
		more := ""
		if d.Count > 1 {
			more = fmt.Sprintf(" and the next %d", d.Count-1)
		}
		line("", "%s%s  %s  %s", d.ID, more, d.At, d.And)
	}
	line("disorder", "%d", r.Disorder)
	for _, d := range r.Below {
		line("", "%s  %s", d.At, d.Detail)
	}
	line("invalid", "%d", r.Invalid)
	for _, d := range r.Bad {
		line("", "%s  %s: %s", d.At, d.Error.Class, d.Error.Message)
	}
	if r.From != nil && r.To != nil {
		line("from", "%s", *r.From)
		line("to", "%s", *r.To)
	}
	// One random ULID in 64 looks as if a flake were in it: where most have none,
	// what the others seem to have is no news.
	if seem := r.IDs - r.NoSID; r.NoSID <= seem {
		for sid, n := range r.sids {
			if n > 0 {
				line("sid "+strconv.Itoa(sid), "%d", n)
			}
		}
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

func plural(n int, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}

// sizeValue is a flag of bytes.
type sizeValue int64

// leastMemory is what an audit can do with, in bytes.
const leastMemory = 16 << 20

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
		if n<<shift < leastMemory {
			return fmt.Errorf("%s is less than %d MiB", s, leastMemory>>20)
		}
		*v = sizeValue(n << shift)
		return nil
	}
	return fmt.Errorf("%q is no size: give it in MiB or GiB", s)
}

// watched is a Spool whose reading stops when ctx ends, and shows how far it is.
type watched struct {
	history.Spool
	ctx           context.Context
	told          func(read, written int64)
	read, written int64
}

func (w *watched) Create() (history.Spooled, error) {
	s, err := w.Spool.Create()
	return &watchedFile{s, w}, err
}

type watchedFile struct {
	history.Spooled
	w *watched
}

func (f *watchedFile) Write(b []byte) (int, error) {
	f.w.written += int64(len(b))
	if f.w.ctx.Err() != nil {
		return 0, errInterrupted
	}
	return f.Spooled.Write(b)
}

func (f *watchedFile) Open() (io.ReadCloser, error) {
	in, err := f.Spooled.Open()
	return &watchedReader{in, f.w}, err
}

type watchedReader struct {
	io.ReadCloser
	w *watched
}

func (r *watchedReader) Read(b []byte) (int, error) {
	if r.w.ctx.Err() != nil {
		return 0, errInterrupted
	}
	n, err := r.ReadCloser.Read(b)
	r.w.read += int64(n)
	r.w.told(r.w.read, r.w.written)
	return n, err
}
