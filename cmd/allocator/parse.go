package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/describe"
)

// reading is how IDs are read: the flags that parse and validate share.
type reading struct {
	kind    *choice
	layout  *choice
	epoch   clock.Millis
	lenient bool
	format  *choice
}

func readingFlags(cmd *cobra.Command) *reading {
	r := &reading{epoch: clock.Millis(flake.DefaultEpoch)}
	r.kind = choose(cmd, "kind", "form of the input; auto goes by its length", "auto", "flake", "int", "hex", "ulid", "uuid")
	r.layout = choose(cmd, "layout", "layout of the space", "scalable", "standalone", "fleet")
	cmd.Flags().Var(config.EpochValue(&r.epoch), "epoch", "epoch of the space, as RFC 3339 or Unix milliseconds")
	cmd.Flags().BoolVar(&r.lenient, "lenient", false, "read I and L as 1, O as 0, and skip hyphens")
	r.format = formatFlag(cmd)
	return r
}

// space returns the format that the flags name.
func (r *reading) space() flake.Format {
	layout, _ := flake.ParseLayout(r.layout.value) // one of its words
	return flake.Format{Layout: layout, Epoch: int64(r.epoch)}
}

func (r *reading) parse(input string) (describe.ID, error) {
	if r.lenient {
		return describe.ParseLenient(input, describe.Kind(r.kind.value), r.space())
	}
	return describe.Parse(input, describe.Kind(r.kind.value), r.space())
}

// inputError is what an invalid input is in JSON.
type inputError struct {
	Input string     `json:"input"`
	Error classError `json:"error"`
}

type classError struct {
	Class   string `json:"class"`
	Message string `json:"message"`
}

func invalid(input string, err error) inputError {
	return inputError{input, classError{describe.Class(err), err.Error()}}
}

// errInvalid ends a command that has already said which inputs are invalid.
var errInvalid = &exitError{code: exitInvalid}

func (a *app) parseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "parse ID…",
		Short: "Take IDs apart, in any form",
		Long: `Parse shows what is in each ID. «-» reads IDs from stdin, one a line. With --addr it
also asks a node who held the ID's sid at the time.`,
		Example: "  allocator parse 02MVQDZ9NFSQ0\n  allocator get 3 --as uuid | allocator parse --format json -",
		Args:    cobra.MinimumNArgs(1),
	}
	r := readingFlags(cmd)
	connect := a.nodesFlags(cmd, "")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		p := parser{reading: r, out: bufio.NewWriter(a.out), err: a.err}
		if cmd.Flags().Changed("addr") {
			nodes, err := connect()
			if err != nil {
				return err
			}
			defer nodes.close()
			p.nodes = nodes
		}
		err := eachInput(args, a.in, p.out.Flush, func(input string) error { return p.one(cmd.Context(), input) })
		if flushErr := p.out.Flush(); err == nil {
			err = flushErr
		}
		if err == nil && p.bad {
			return errInvalid
		}
		return err
	}
	return cmd
}

type parser struct {
	*reading
	out   *bufio.Writer
	err   io.Writer
	nodes *nodes // nil: ask nobody
	shown bool   // something was printed: a blank line comes before the next
	bad   bool   // an input was invalid
}

// holderLine is who held the sid of an ID.
type holderLine struct {
	Node     string  `json:"node"`
	Instance string  `json:"instance"`
	Term     int64   `json:"term"`
	Since    *string `json:"since"`
}

// one prints what is in one input. Its error ends the command; an invalid input
// is none.
func (p *parser) one(ctx context.Context, input string) error {
	id, err := p.parse(input)
	if err != nil {
		p.bad = true
		if p.format.value == "json" {
			return printLine(p.out, invalid(input, err))
		}
		if err := p.out.Flush(); err != nil { // keep the order of the two streams
			return err
		}
		fmt.Fprintf(p.err, "allocator: %q is no ID: %v\n", input, err)
		return nil
	}
	d := describe.Describe(id, p.space())
	var holder *holderLine
	if p.nodes != nil {
		if holder, err = p.holder(ctx, id); err != nil {
			return err
		}
	}
	if p.format.value == "json" {
		return p.printJSON(d, holder)
	}
	if p.shown {
		fmt.Fprintln(p.out)
	}
	p.shown = true
	p.printText(d, holder)
	return nil
}

func (p *parser) holder(ctx context.Context, id describe.ID) (*holderLine, error) {
	text := id.Flake.String()
	if id.IsWide() {
		text = id.Wide.UUID()
	}
	var r *pb.DescribeResponse
	err := p.nodes.ask(ctx, func(ctx context.Context, c *grpc.ClientConn) (err error) {
		r, err = pb.NewAllocatorServiceClient(c).Describe(ctx, &pb.DescribeRequest{Id: text})
		return err
	})
	if err != nil {
		return nil, err
	}
	if layout, err := layoutOf(r.GetLayout()); err == nil {
		if have, asked := (flake.Format{Layout: layout, Epoch: r.GetEpochUnixMs()}), p.space(); have != asked {
			return nil, &exitError{exitUsage, fmt.Errorf("the node's space has layout %s and epoch %d: give --layout %s --epoch %d",
				have.Layout, have.Epoch, have.Layout, have.Epoch)}
		}
	}
	h := r.GetHolder()
	if h == nil {
		return nil, nil
	}
	return &holderLine{h.GetNode(), h.GetInstance(), h.GetTerm(), describe.Time(h.GetSinceUnixMs())}, nil
}

// printJSON adds the holder behind the fields of the description, where it was
// asked for.
func (p *parser) printJSON(d describe.Description, holder *holderLine) error {
	body, err := json.Marshal(d)
	if err != nil {
		return err
	}
	if p.nodes != nil {
		tail, err := json.Marshal(holder)
		if err != nil {
			return err
		}
		body = append(append(append(body[:len(body)-1], `,"holder":`...), tail...), '}')
	}
	_, err = p.out.Write(append(body, '\n'))
	return err
}

func (p *parser) printText(d describe.Description, holder *holderLine) {
	line := func(name string, v any) { fmt.Fprintf(p.out, "%-12s%v\n", name, v) }
	f, now := d.Flake, time.Now()
	if w := d.Wide; w != nil {
		line("kind", w.Kind)
		line("ulid", w.ULID)
		line("uuid", w.UUID)
		line("time", times(w.UnixMs, now))
		line("random", w.RandomnessHex)
		if w.Flake == nil {
			line("flake", "none: not derived from one")
		}
		f = w.Flake
	} else {
		line("kind", f.Kind)
		line("time", times(f.UnixMs, now))
	}
	if f != nil {
		line("flake", f.Base32)
		line("int", f.Int)
		line("hex", f.Hex)
		line("layout", f.Layout)
		line("entropy", f.Randomness)
		if f.SID != nil {
			line("sid", *f.SID)
		}
	}
	switch {
	case p.nodes == nil:
	case holder == nil:
		line("holder", "unknown: the ledger has no line so old, or etcd does not answer")
	default:
		line("holder", fmt.Sprintf("node %s, term %d (instance %s)", holder.Node, holder.Term, holder.Instance))
	}
}

func (a *app) validateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate ID…",
		Short: "Say which IDs are well-formed",
		Long: `Validate prints a line for each ID: whether it is well-formed, and what is wrong if it is
not. «-» reads IDs from stdin, one a line. It exits with 1 if any ID is invalid.`,
		Example: "  allocator validate 02MVQDZ9NFSQ0 nonsense",
		Args:    cobra.MinimumNArgs(1),
	}
	r := readingFlags(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		out := bufio.NewWriter(a.out)
		bad := false
		err := eachInput(args, a.in, out.Flush, func(input string) error {
			id, err := r.parse(input)
			bad = bad || err != nil
			switch {
			case r.format.value == "json" && err != nil:
				return printLine(out, invalid(input, err))
			case r.format.value == "json":
				return printLine(out, struct {
					Input string        `json:"input"`
					Valid bool          `json:"valid"`
					Kind  describe.Kind `json:"kind"`
				}{input, true, id.Kind})
			case err != nil:
				_, err = fmt.Fprintf(out, "invalid  %s  %s: %v\n", input, describe.Class(err), err)
			default:
				_, err = fmt.Fprintf(out, "valid    %s  %s\n", input, id.Kind)
			}
			return err
		})
		if err == nil && bad {
			return errInvalid
		}
		return errors.Join(err)
	}
	return cmd
}
