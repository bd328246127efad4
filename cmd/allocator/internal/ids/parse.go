// Package ids holds the commands that read IDs and need no node: parse, validate
// and audit.
package ids

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	grpcstatus "google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/text"
	"github.com/flakelease/allocator/internal/watermark"
	"github.com/flakelease/allocator/internal/wire"
	"github.com/flakelease/allocator/ulid"
)

// ParseCommand returns "allocator parse".
func ParseCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "parse [ID…]",
		Short: "Decode IDs of any form",
		Long: `Parse shows what is in each ID. It needs no node. Without an ID, or with "-" in place of
one, it reads them from stdin, one a line.

The length shows the form: 13 characters are a flake, 26 a ULID, 36 a UUID, and other
digits alone an integer. A UUID may be written without hyphens or as urn:uuid:, and hex
after 0x. Give --kind for u128 (a ULID's decimal), and for a 13-digit integer or hex.

A ULID or UUID shows the flake that it was made from. No ID shows whether it was made
from one: a UUIDv7 of any origin looks the same. With --addr it also asks a node who held
the sid at the time: that node issued the ID if it was issued in this space. Then it says too
whether the ID is complete: no smaller one of the space can appear any more.`,
		Example: `  allocator parse 02MVQDZ9NFSQ0
  allocator parse --only local 01ARZ3NDEKTSV4RRFFQ69G5FAV     # its time, in this zone
  allocator parse --as uuid 01ARZ3NDEKTSV4RRFFQ69G5FAV        # and --as ulid back
  allocator parse --kind hex 0x3CB6775EDBB218
  allocator parse --layout twitter 1541815603606036480
  allocator parse --format json < ids.txt
  allocator get --as uuid | allocator parse --addr 127.0.0.1:9000`,
	}
	r := readingFlags(a, cmd)
	as := cli.Choose(cmd, "as", "print IDs in this form and nothing else", append([]string{""}, describe.Forms...)...)
	only := cli.Choose(cmd, "only", "print this part and nothing else", append([]string{""}, parts...)...)
	cmd.MarkFlagsMutuallyExclusive("as", "only")
	connect := remote.NodesFlags(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p := parser{reading: r, as: as.Value, only: only.Value}
		if cmd.Flags().Changed("addr") {
			if p.as+p.only != "" {
				return cli.UsageError("--addr names the holder, and --as and --only leave it out: give one or " +
					"the other")
			}
			nodes, err := connect()
			if err != nil {
				return err
			}
			defer nodes.Close()
			p.nodes = nodes
		}
		return p.run(cmd.Context(), a, args)
	}
	return cmd
}

// parser prints what is in IDs.
type parser struct {
	*reading
	validate bool   // whether they are well-formed, and nothing else
	as, only string // "": everything
	out      *bufio.Writer
	nodes    *remote.Nodes // nil: no node is asked
	askErr   error         // why no node is asked any more
	now      time.Time     // as of the last read of stdin: near enough for "3 minutes ago"
	buf      []byte
	shown    bool // something was printed: a blank line comes before the next
	bad      bool // an input was invalid

	watermark watermark.Answer // the latest that a node told
}

// run prints what is in the IDs of a command line.
func (p *parser) run(ctx context.Context, a *cli.App, args []string) error {
	p.out, p.now = a.Output(ctx), time.Now()
	flush := func() error { p.now = time.Now(); return p.out.Flush() }
	err := inputs{args, a.In, flush}.each(ctx, func(input string, err error) error { return p.one(ctx, input, err) })
	if err = cli.Ended(p.out, err, p.bad); p.askErr != nil && (err == nil || errors.Is(err, cli.ErrInvalid)) {
		return p.askErr
	}
	return err
}

// one prints what is in one input. Its error ends the command; an invalid input
// is none.
func (p *parser) one(ctx context.Context, input string, err error) error {
	var id describe.ID
	if err == nil {
		id, err = p.parse(input)
	}
	if p.errOutErr != nil {
		return p.errOutErr
	}
	b := p.buf[:0]
	switch {
	case err != nil:
	case p.validate && p.json(): // The input is alphanumeric with hyphens only: it is an ID.
		b = append(append(append(b, `{"input":"`...), input...), `","valid":true,"kind":"`...)
		b = append(append(b, id.Kind...), "\"}\n"...)
	case p.validate:
		b = append(append(append(b, "valid    "...), input...), "  "...)
		b = append(append(b, id.Kind...), '\n')
	case p.as != "":
		b, err = cli.AppendID(b, id, p.as, p.space(), p.json(), "")
	case p.only != "":
		b, err = p.appendOnly(b, id)
	default:
		var holder *status.Holder
		var why string // there is no holder
		var mark *completeness
		if p.nodes != nil {
			if holder, why, err = p.holder(ctx, id); err == nil {
				mark, err = p.mark(ctx, id)
			}
			if err != nil {
				if exit := (*cli.ExitError)(nil); ctx.Err() != nil ||
					errors.As(err, &exit) && exit.Code == cli.ExitUsage {
					return err
				}
				// The IDs can be decoded all the same. No node is asked again: each
				// of many IDs would wait as long.
				p.askErr, p.nodes, err = err, nil, nil
			}
		}
		switch {
		case !p.json():
			if p.shown {
				b = append(b, '\n')
			}
			p.shown = true
			b = p.appendText(b, id, holder, why, mark)
		case p.nodes != nil:
			b, err = p.appendHolder(describe.AppendJSON(b, id, p.space()), holder, why, mark)
		default:
			b = append(describe.AppendJSON(b, id, p.space()), '\n')
		}
	}
	p.buf = b
	if err != nil {
		return p.invalid(input, err)
	}
	_, err = p.out.Write(b)
	return err
}

// invalid reports an input that is no ID, or has not what was asked for.
func (p *parser) invalid(input string, err error) error {
	p.bad = true
	if p.json() {
		return cli.PrintLine(p.out, cli.InvalidInput(input, err))
	}
	if p.validate {
		_, err = fmt.Fprintf(p.out, "invalid  %s  %s: %v\n", cli.Show(input), describe.Class(err), err)
		return err
	}
	if err := p.out.Flush(); err != nil { // keep the order of the two streams
		return err
	}
	if _, lost := fmt.Fprintf(p.err, "allocator: %s: %s: %v\n", cli.Show(input), describe.Class(err),
		err); lost != nil {
		return cli.ErrInvalid // without stderr nothing more can be reported: an endless stream would be read forever
	}
	return nil
}

// holder asks a node who held the sid of an ID. Without a holder it returns why, as far as
// the node says.
func (p *parser) holder(ctx context.Context, id describe.ID) (_ *status.Holder, why string, _ error) {
	asked := id.Flake.String()
	if id.IsWide() {
		asked = id.Wide.UUID()
	}
	var r *pb.DescribeResponse
	err := p.nodes.Ask(ctx, func(ctx context.Context, c *grpc.ClientConn) (err error) {
		r, err = pb.NewAllocatorServiceClient(c).Describe(ctx, &pb.DescribeRequest{Id: asked})
		return err
	})
	if err != nil {
		return nil, "", err
	}
	if layout, err := wire.ParseLayout(r.GetLayout(), r.GetLayoutBits()); err == nil {
		if have, given := (flake.Format{Layout: layout, Epoch: r.GetEpochUnixMs()}), p.space(); have != given {
			return nil, "", cli.Exit(cli.ExitUsage,
				fmt.Errorf("the node's space has layout %v: give --layout %v", have, have))
		}
	}
	h := r.GetHolder()
	if h == nil {
		return nil, text.Printable(r.GetHolderProblem()), nil
	}
	return &status.Holder{
		Node:     h.GetNode(),
		Instance: h.GetInstance(),
		Term:     h.GetTerm(),
		Since:    describe.Time(h.GetSinceUnixMs()),
		Worker:   h.GetWorker(),
	}, "", nil
}

// completeness is whether an ID is below the watermark; else Problem says why.
type completeness struct {
	Complete bool   `json:"complete"`
	Problem  string `json:"complete_problem,omitempty"`
}

// mark asks a node whether no ID of the space below id can appear any more; nil: id has no flake.
func (p *parser) mark(ctx context.Context, id describe.ID) (*completeness, error) {
	low, derived := within(id, p.space())
	if !derived {
		return nil, nil
	}
	if p.watermark.Complete(low) {
		return &completeness{Complete: true}, nil
	}
	problem := ""
	err := p.nodes.Ask(ctx, func(ctx context.Context, c *grpc.ClientConn) error {
		m, err := pb.NewAllocatorServiceClient(c).GetWatermark(ctx, &pb.GetWatermarkRequest{})
		if err != nil && ctx.Err() == nil { // The rest is known all the same, so no other node is asked.
			problem = text.Printable(grpcstatus.Convert(err).Message())
			return nil
		}
		p.watermark = status.WatermarkOf(m)
		return err
	})
	mark := p.watermark
	switch {
	case err != nil:
		return nil, err
	case problem != "":
	case mark.Complete(low):
		return &completeness{Complete: true}, nil
	case len(mark.BlockedBy) > 0:
		problem = "the watermark is at " + mark.Flake + ": " + mark.BlockedBy[0].Text
	default:
		problem = "the watermark is at " + mark.Flake
	}
	return &completeness{Problem: problem}, nil
}

// appendHolder adds the holder, or why there is none, and whether the ID is complete, behind
// the fields of the object that b ends with.
func (p *parser) appendHolder(b []byte, holder *status.Holder, why string, mark *completeness) ([]byte, error) {
	tail, err := json.Marshal(struct {
		Holder  *status.Holder `json:"holder"`
		Problem string         `json:"holder_problem,omitempty"`
		*completeness
	}{holder, why, mark})
	if err != nil {
		return b, err
	}
	return append(append(append(b[:len(b)-1], ','), tail[1:]...), '\n'), nil
}

// name appends the first column of a line.
func name(b []byte, s string) []byte {
	b = append(b, s...)
	return append(b, "            "[len(s):]...)
}

// appendText appends what is in an ID as people read it. It is by hand what
// Fprintf would do, in a tenth of the time.
func (p *parser) appendText(b []byte, id describe.ID, holder *status.Holder, why string, mark *completeness) []byte {
	f := p.space()
	low, derived := within(id, f)
	b = append(append(name(b, "kind"), id.Kind...), '\n')
	if id.IsWide() {
		r := id.Wide.Randomness()
		b, _ = id.Wide.AppendText(name(b, "ulid"))
		b = id.Wide.AppendUUID(name(append(b, '\n'), "uuid"))
		if id.Kind == describe.UUID {
			b = appendVersion(name(append(b, '\n'), "version"), id.Wide)
		}
		b = name(append(b, '\n'), "time")
		if id.Kind == describe.UUID && !id.Wide.IsV7() {
			b = append(b, "none: this is no UUIDv7. Read as a ULID: "...)
		}
		b = cli.AppendTimes(b, id.Wide.UnixMilli(), p.now)
		b = hex.AppendEncode(name(append(b, '\n'), "random"), r[:])
		if !derived {
			b = append(name(append(b, '\n'), "flake"), "none: not derived from one"...)
		} else {
			b = append(name(append(b, '\n'), "origin"),
				"unknown: any UUIDv7 looks like this; what follows holds if the ID was issued in this space"...)
		}
	} else {
		b = cli.AppendTimes(name(b, "time"), f.UnixMilli(low), p.now)
	}
	if derived {
		b, _ = low.AppendText(name(append(b, '\n'), "flake"))
		b = low.AppendInt(name(append(b, '\n'), "int"))
		b = low.AppendHex(name(append(b, '\n'), "hex"))
		if !id.IsWide() {
			b = low.AppendBin(name(append(b, '\n'), "bin"))
		}
		b = append(name(append(b, '\n'), "layout"), f.Layout.String()...)
		lowest := "entropy"
		if !f.Layout.Random() {
			lowest = "sequence"
		}
		b = strconv.AppendUint(name(append(b, '\n'), lowest), uint64(f.Entropy(low)), 10)
		if f.Layout.SIDBits() > 0 {
			b = strconv.AppendUint(name(append(b, '\n'), "sid"), uint64(f.SID(low)), 10)
		}
	}
	b = append(b, '\n')
	switch {
	case p.nodes == nil:
	case why != "":
		b = append(append(name(b, "holder"), why...), '\n')
	case holder == nil:
		b = append(name(b, "holder"), "unknown: the ledger has no line so old, or etcd does not answer\n"...)
	default:
		kind := "node"
		if holder.Worker {
			kind = "worker"
		}
		b = fmt.Appendf(name(b, "holder"), "%s %s, term %d (instance %s), if the ID was issued here\n", kind,
			holder.Node, holder.Term, holder.Instance)
	}
	switch {
	case mark == nil:
	case mark.Complete:
		b = append(name(b, "complete"), "yes: nothing at or below it can appear any more\n"...)
	default:
		b = fmt.Appendf(name(b, "complete"), "not yet: %s\n", mark.Problem)
	}
	return b
}

// appendVersion appends the version and the variant of a UUID.
func appendVersion(b []byte, id ulid.ID) []byte {
	version, variant := describe.Version(id)
	if variant != describe.RFC9562 {
		return append(append(b, "none, variant "...), variant...)
	}
	b = strconv.AppendInt(b, int64(version), 10)
	return append(append(b, ", variant "...), variant...)
}

// ValidateCommand returns "allocator validate".
func ValidateCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate [ID…]",
		Short: "Check which IDs are well-formed",
		Long: `Validate prints for each ID whether it is well-formed, or what is wrong. It exits with 1 if
any ID is invalid. It needs no node, and does not know whether an ID was ever issued.
Without an ID, or with "-" in place of one, it reads them from stdin, one a line.`,
		Example: `  allocator validate 02MVQDZ9NFSQ0 nonsense
  allocator validate < ids.txt > /dev/null && echo all are well-formed`,
	}
	r := readingFlags(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return (&parser{reading: r, validate: true}).run(cmd.Context(), a, args)
	}
	return cmd
}
