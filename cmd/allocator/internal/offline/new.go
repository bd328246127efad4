// Package offline holds the commands that make IDs without a node: new, monotonic
// and from-time. Nobody coordinates these IDs.
package offline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/ulid"
)

// notCoordinated is part of the help of every command that makes IDs here.
const notCoordinated = `These IDs are NOT COORDINATED: ULIDs and UUIDs differ by 80 or 74 random bits, and flakes of
several processes can be equal. "allocator get" gives IDs that are guaranteed to be unique.`

// making is how IDs are made here: the flags of new, monotonic and from-time.
type making struct {
	cmd    *cobra.Command
	kind   *cli.Choice
	as     *cli.Choice
	format *cli.Choice
	space  func() flake.Format
	count  *pflag.Flag
	sid    uint32
	size   int    // The random part of a flake's step has this many bytes.
	input  string // the time asked for, which an error is about; "" if none was
	ms     int64  // input in Unix ms
}

// narrow are the flags that only flakes have.
var narrow = []string{"layout", "epoch", "sid", "entropy"}

// formsOf are the forms that a kind of ID can be printed in, the usual one first.
var formsOf = map[string][]string{
	"flake": {"flake", "int", "hex", "bin", "bytes_hex"},
	"ulid":  {"ulid", "uuid", "u128", "bytes_hex"},
	"uuid":  {"uuid", "ulid", "u128", "bytes_hex"},
}

func makingFlags(cmd *cobra.Command, kinds ...string) *making {
	m := &making{cmd: cmd, size: 1}
	m.kind = cli.Choose(cmd, "kind", "what to make; a uuid is a random UUIDv7", kinds...)
	m.as = cli.Choose(cmd, "as", "print in this form, of the same number of bits; compare int as numbers, not as texts",
		append([]string{""}, describe.Forms...)...)
	m.space = cli.SpaceFlags(cmd)
	cmd.Flags().Uint32Var(&m.sid, "sid", 0, "sid of the flakes; it is not reserved")
	m.format = cli.FormatFlag(cmd)
	m.count = cli.CountFlag(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return m
}

// check rejects flags that do not go together, and sets the form.
func (m *making) check() error {
	forms := formsOf[m.kind.Value]
	m.as.Value = cmp.Or(m.as.Value, forms[0])
	if !slices.Contains(forms, m.as.Value) {
		return cli.UsageError("--as %s: a %s can be printed as %s", m.as.Value, m.kind.Value, strings.Join(forms, ", "))
	}
	for _, name := range narrow {
		if m.kind.Value != "flake" && m.cmd.Flags().Changed(name) {
			return cli.UsageError("--%s applies to flakes only: add --kind flake", name)
		}
	}
	if m.cmd.Flags().Lookup("entropy") == nil || !m.cmd.Flags().Changed("entropy") {
		m.size = min(m.size, m.space().Layout.MaxEntropySize())
	}
	return nil
}

// flakes returns the generator that the flags describe.
func (m *making) flakes() (*flake.Offline, error) {
	o, err := flake.NewOffline(flake.OfflineConfig{
		Format:      m.space(),
		SID:         flake.SID(m.sid),
		EntropySize: m.size,
		Entropy:     cli.Random(),
	})
	if err != nil {
		return nil, cli.UsageError("%s: %w", describe.Class(err), err)
	}
	return o, nil
}

// errTaken is returned for a millisecond whose flakes were all printed.
var errTaken = errors.New("no ID is left in this unit of time")

// drawn keeps the flakes of one command unique: at a million a second, random
// ones would soon repeat one of the 32,768 of a millisecond.
type drawn struct {
	space flake.Format
	at    int64
	seen  map[flake.ID]bool // those of ms
}

// unique calls draw until it returns an ID that was not returned in its
// millisecond. It returns draw's errors, and errTaken.
func (d *drawn) unique(draw func() (flake.ID, error)) (flake.ID, error) {
	for {
		id, err := draw()
		if err != nil {
			return 0, err
		}
		if at := d.space.Layout.Timestamp(id); at != d.at {
			clear(d.seen)
			d.at = at
		}
		if !d.seen[id] {
			d.seen[id] = true
			return id, nil
		}
		if len(d.seen) == 1<<d.space.Layout.SequenceBits() {
			return 0, errTaken
		}
	}
}

const (
	// retryEvery is how long to wait where nothing can be made in the present
	// millisecond.
	retryEvery = 200 * time.Microsecond
	// retryFor bounds such a wait: a full millisecond passes, and so does the
	// correction of a clock; a clock that is wrong does not.
	retryFor = time.Second
)

// passing are the errors that pass within retryFor.
var passing = []error{errTaken, ulid.ErrMonotonicOverflow, flake.ErrMonotonicOverflow, flake.ErrRegression}

// unit returns the unit of time of the flakes.
func (m *making) unit() time.Duration {
	return time.Duration(m.space().Layout.Unit()) * time.Millisecond
}

// maker makes an ID of a time in Unix ms.
type maker func(ms int64) (describe.ID, error)

// random returns what makes random IDs.
func (m *making) random() (maker, error) {
	if m.kind.Value != "flake" {
		o := ulid.NewOffline(ulid.OfflineConfig{Entropy: cli.Random()})
		return func(ms int64) (describe.ID, error) { return m.wide(o.At(ms)) }, nil
	}
	o, err := m.flakes()
	d := drawn{space: m.space(), at: -1, seen: map[flake.ID]bool{}}
	return func(ms int64) (describe.ID, error) {
		return ofFlake(d.unique(func() (flake.ID, error) { return o.At(ms) }))
	}, err
}

// ofFlake and wide turn what a generator returns into an ID of either width.
func ofFlake(id flake.ID, err error) (describe.ID, error) {
	return describe.ID{Kind: describe.Flake, Flake: id}, err
}

func (m *making) wide(id ulid.ID, err error) (describe.ID, error) {
	if m.kind.Value == "uuid" {
		id = id.ForceV7()
	}
	return describe.ID{Kind: describe.ULID, Wide: id}, err
}

// next makes an ID of the time that was asked for, or of now, without the errors that pass.
func (m *making) next(ctx context.Context, draw maker) (describe.ID, error) {
	if m.input != "" {
		return draw(m.ms)
	}
	for waited := time.Duration(0); ; waited += retryEvery {
		id, err := draw(time.Now().UnixMilli())
		if err == nil || waited > retryFor+m.unit() ||
			!slices.ContainsFunc(passing, func(p error) bool { return errors.Is(err, p) }) {
			return id, err
		}
		if ctx.Err() != nil {
			return id, cli.ErrInterrupted
		}
		time.Sleep(retryEvery)
	}
}

// print prints n IDs, one a line.
func (m *making) print(a *cli.App, ctx context.Context, n int64, draw maker) error {
	out := a.Output(ctx)
	space, json := m.space(), m.format.JSON()
	var b []byte
	for i := range n {
		id, err := m.next(ctx, draw)
		if err != nil {
			if errors.Is(err, cli.ErrInterrupted) {
				return err
			}
			if json && m.input != "" {
				err = errors.Join(cli.PrintLine(out, cli.InvalidInput(m.input, err)), cli.ErrInvalid)
			} else if i > 0 {
				err = fmt.Errorf("made %d of %d IDs: %s: %w", i, n, describe.Class(err), err)
			} else {
				err = fmt.Errorf("%s: %w", describe.Class(err), err)
			}
			return cli.Ended(out, err, true)
		}
		if b, err = cli.AppendID(b[:0], id, m.as.Value, space, json, ""); err != nil {
			return err
		}
		if _, err := out.Write(b); err != nil {
			return err
		}
	}
	return out.Flush()
}

// NewCommand returns "allocator new".
func NewCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "new [N]",
		Short: "Make N random IDs here, without a node",
		Long: `New prints N random IDs of the present, one a line. N is 1 if not given. IDs of one
millisecond are in no order; none is printed twice.

` + notCoordinated,
		Example: `  allocator new
  allocator new 5 --kind uuid
  allocator new 1000 --kind flake --as int --sid 7`,
		Args: cobra.MaximumNArgs(1),
	}
	m := makingFlags(cmd, "ulid", "uuid", "flake")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := m.check(); err != nil {
			return err
		}
		n, err := cli.CountOf(args, m.count)
		if err != nil {
			return err
		}
		draw, err := m.random()
		if err != nil {
			return err
		}
		return m.print(a, cmd.Context(), n, draw)
	}
	return cmd
}

// FromTimeCommand returns "allocator from-time".
func FromTimeCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "from-time TIME [N]",
		Short: "Make IDs of a given time here, or the bounds of one",
		Long: `From-time prints N random IDs of a millisecond, all different, in no order; N is 1 if not
given. For range queries, --min and --max print the smallest and the greatest ID of the
millisecond: flakes of all sids lie between them, and UUIDv7s between those of --kind uuid.

TIME is now, RFC 3339 such as 2026-11-20T16:36:28.444Z, a date, Unix milliseconds, or
@ and Unix seconds. Digits beyond milliseconds are dropped.

` + notCoordinated,
		Example: `  allocator from-time 2026-11-20T16:36:28.444Z 3
  allocator from-time --min 2026-11-20        # the first ULID of that day
  allocator from-time --max --kind flake --as int @1795192588`,
		Args: cobra.RangeArgs(1, 2),
	}
	m := makingFlags(cmd, "ulid", "uuid", "flake")
	smallest := cmd.Flags().Bool("min", false, "print the smallest ID of the millisecond")
	greatest := cmd.Flags().Bool("max", false, "print the greatest ID of the millisecond")
	cmd.MarkFlagsMutuallyExclusive("min", "max")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := m.check(); err != nil {
			return err
		}
		n, err := cli.CountOf(args[1:], m.count)
		if err != nil {
			return err
		}
		bound := *smallest || *greatest
		if bound && (len(args) > 1 || m.count.Changed) {
			return cli.UsageError("--min and --max are one ID each: omit N")
		}
		if bound && cmd.Flags().Changed("sid") {
			return cli.UsageError("--min and --max are bounds for all sids: omit --sid")
		}
		if m.ms, err = parseTime(args[0], time.Now()); err != nil {
			return cli.UsageError("TIME: %w", err)
		}
		m.input = args[0]
		if looksLikeSeconds(args[0], m.ms) {
			fmt.Fprintf(a.Err,
				"allocator: TIME %s is read as milliseconds, so in 1970; write @%s for seconds\n", args[0], args[0])
		}
		draw, err := m.random()
		if err != nil {
			return err
		}
		switch f, flakes := m.space(), m.kind.Value == "flake"; {
		case *smallest && flakes:
			draw = func(ms int64) (describe.ID, error) { return ofFlake(f.Min(ms)) }
		case *greatest && flakes:
			draw = func(ms int64) (describe.ID, error) { return ofFlake(f.Max(ms)) }
		case *smallest:
			draw = func(ms int64) (describe.ID, error) { return m.wide(ulid.Min(ms)) }
		case *greatest:
			draw = func(ms int64) (describe.ID, error) { return m.wide(ulid.Max(ms)) }
		case flakes && n > 1<<f.Layout.SequenceBits():
			return cli.UsageError("N is %d: a sid has %d flakes in %v of layout %s", n,
				1<<f.Layout.SequenceBits(), m.unit(), f.Layout)
		}
		return m.print(a, cmd.Context(), n, draw)
	}
	return cmd
}
