package ids

import (
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
)

// reading is how IDs are read: the flags that parse and validate share.
type reading struct {
	kind      *cli.Choice
	format    *cli.Choice
	space     func() flake.Format
	lenient   bool
	err       io.Writer
	errOutErr error // A write to err failed with it.
}

func readingFlags(a *cli.App, cmd *cobra.Command) *reading {
	r := &reading{err: a.Err}
	r.kind = cli.Choose(cmd, "kind", "form of the input; auto detects it by length",
		"auto", "flake", "int", "hex", "ulid", "uuid", "u128")
	r.space = cli.SpaceFlags(cmd)
	cmd.Flags().BoolVar(&r.lenient, "lenient", false,
		"read I and L as 1 and O as 0, skip hyphens, and report each on stderr")
	r.format = cli.FormatFlag(cmd)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return r
}

func (r *reading) json() bool { return r.format.JSON() }

// parse reads one input, and reports on stderr what it repaired.
func (r *reading) parse(input string) (describe.ID, error) {
	kind := describe.Kind(r.kind.Value)
	id, err := describe.Parse(input, kind, r.space())
	if err == nil || !r.lenient {
		return id, err
	}
	if id, err = describe.ParseLenient(input, kind, r.space()); err == nil {
		fixed, changes := flake.Repair(input)
		b := fmt.Appendf(nil, "allocator: %s: read as %s:", cli.Show(input), fixed)
		for i, c := range changes {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(append(b, ' '), c.String()...)
		}
		_, r.errOutErr = r.err.Write(append(b, '\n'))
	}
	return id, err
}

// within returns the flake of an ID: itself, or the one a wide ID was derived
// from, if it was.
func within(id describe.ID, f flake.Format) (flake.ID, bool) {
	if id.IsWide() && !id.Wide.IsV7() {
		return 0, false // known without building an error
	}
	low, err := id.AsFlake(f)
	return low, err == nil
}

// parts are what --only prints: the names of parse's JSON, the time in the other ways
// that people write it, and the randomness by its name in layouts that count.
var parts = []string{"time", "local", "ago", "unix_ms", "unix_s", "timestamp_ms", "kind", "sid", "sequence",
	"randomness", "randomness_hex"}

// appendOnly appends a line with the part of --only. A part that the ID does not
// have is an error of class no_form, or the one that explains why there is no flake
// in it.
func (p *parser) appendOnly(b []byte, id describe.ID) ([]byte, error) {
	if !p.json() {
		b, _, err := p.appendPart(b, id)
		return append(b, '\n'), err
	}
	part, quoted, err := p.appendPart(nil, id)
	if quoted {
		part = append(append([]byte{'"'}, part...), '"')
	}
	return fmt.Appendf(b, `{"%s":%s}`+"\n", p.only, part), err
}

// appendPart appends the part of --only as it is; quoted means that it is a
// string in JSON.
func (p *parser) appendPart(b []byte, id describe.ID) (_ []byte, quoted bool, err error) {
	f := p.space()
	unixMs := f.UnixMilli(id.Flake)
	if id.IsWide() {
		unixMs = id.Wide.UnixMilli()
	}
	t := time.UnixMilli(unixMs)
	switch p.only {
	case "unix_ms":
		return strconv.AppendInt(b, unixMs, 10), false, nil
	case "unix_s":
		return strconv.AppendInt(b, t.Unix(), 10), false, nil
	case "ago":
		return cli.AppendAge(b, t, p.now), true, nil
	case "kind":
		return append(b, id.Kind...), true, nil
	case "local":
		return cli.AppendLocal(b, t), true, nil
	case "time":
		b, ok := describe.AppendTime(b, unixMs)
		if !ok {
			return b, true, fmt.Errorf("%w: RFC 3339 has no year %d", describe.ErrForm, t.UTC().Year())
		}
		return b, true, nil
	case "randomness_hex":
		if !id.IsWide() {
			return b, true, fmt.Errorf("%w: a flake has no randomness_hex: ask for randomness", describe.ErrForm)
		}
		r := id.Wide.Randomness()
		return hex.AppendEncode(b, r[:]), true, nil
	}
	low, err := id.AsFlake(f)
	if err != nil {
		return b, false, err
	}
	switch p.only {
	case "timestamp_ms":
		return strconv.AppendInt(b, f.UnixMilli(low)-f.Epoch, 10), false, nil
	case "sequence":
		if f.Layout.Random() {
			return b, false, fmt.Errorf("%w: layout %v draws its lowest bits at random: ask for randomness",
				describe.ErrForm, f.Layout)
		}
		fallthrough
	case "randomness":
		return strconv.AppendUint(b, uint64(f.Entropy(low)), 10), false, nil
	}
	if f.Layout.SIDBits() == 0 {
		return b, false, fmt.Errorf("%w: the layout %s has no sid", describe.ErrForm, f.Layout)
	}
	return strconv.AppendUint(b, uint64(f.SID(low)), 10), false, nil
}
