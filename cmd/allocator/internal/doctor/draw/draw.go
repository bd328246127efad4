// Package draw is the part of doctor that draws IDs from every node and judges them.
package draw

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/cmd/allocator/internal/doctor/report"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/text"
	"github.com/flakelease/allocator/internal/wire"
)

// Bounds of one node's part in a draw.
const (
	timeout = 20 * time.Second // waits that the node asks for included
	calls   = 10               // so that order shows from call to call
	slack   = time.Minute      // between an ID and its judgement: the draws of all nodes lie in between
)

// Max is the most IDs to draw from one node.
const Max = 1_000_000

// Checks draws n IDs from every address of every name, carries the order from node to
// node, and judges all of it. The times of the IDs may differ from this machine's
// clock by maxSkew.
func Checks(ctx context.Context, addrs []string, n int, maxSkew time.Duration, d remote.Dialer) report.Report {
	all := drawFrom(ctx, resolve(ctx, addrs, net.DefaultResolver.LookupHost), n, d)
	return judge(all, maxSkew+slack, time.Now())
}

// drawing is what one address gave.
type drawing struct {
	addr string
	err  error

	node   string
	sids   []flake.SID // those that its answers named, each once
	format flake.Format
	ids    []flake.ID // in the order they came

	next     flake.ID // one more, asked to lie above all that came before it from anyone
	above    flake.ID // The request for next asked for an ID above this.
	parsed   *pb.DescribeResponse
	carryErr error // The request for next or for parsed failed with it.
}

// drawFrom draws n IDs from every address, at the same time. Then it carries the
// order from node to node, and has each decode its own last ID.
func drawFrom(ctx context.Context, addrs []target, n int, d remote.Dialer) []drawing {
	out := make([]drawing, len(addrs))
	asked := make([]*remote.Nodes, len(addrs))
	var all sync.WaitGroup
	for i, a := range addrs {
		out[i].addr = a.shown()
		conn, err := a.dial(d)
		if err != nil {
			out[i].err = err
			continue
		}
		defer func() { _ = conn.Close() }()
		asked[i] = &remote.Nodes{Addrs: []string{out[i].addr}, Conns: []*grpc.ClientConn{conn}, Timeout: timeout}
		all.Go(func() { out[i].err = out[i].take(ctx, asked[i], n) })
	}
	all.Wait()
	var highest flake.ID
	for _, d := range out {
		if len(d.ids) > 0 {
			highest = max(highest, slices.Max(d.ids))
		}
	}
	for i := range out {
		d := &out[i]
		if d.err != nil {
			continue
		}
		d.above = highest
		if d.carryErr = d.carry(ctx, asked[i]); d.carryErr == nil {
			highest = max(highest, d.next)
		}
	}
	return out
}

// take draws n IDs in several calls.
func (d *drawing) take(ctx context.Context, node *remote.Nodes, n int) error {
	block := max(1, n/calls)
	for len(d.ids) < n {
		r, err := allocate(ctx, node, min(block, n-len(d.ids)), 0)
		if err != nil {
			return err
		}
		layout, err := wire.ParseLayout(r.GetLayout(), r.GetLayoutBits())
		if err != nil {
			return err
		}
		format := flake.Format{Layout: layout, Epoch: r.GetEpochUnixMs()}
		if r.GetCount() < 1 || d.node != "" && (format != d.format || r.GetNode() != d.node) {
			return fmt.Errorf("got %d IDs of layout %s and epoch %d from node %q, after IDs of layout %s from node "+
				"%q: several nodes answer at this address; give the address of one",
				r.GetCount(), layout, format.Epoch, r.GetNode(), d.format.Layout, d.node)
		}
		d.node, d.format = r.GetNode(), format
		if sid := flake.SID(r.GetSid()); !slices.Contains(d.sids, sid) {
			d.sids = append(d.sids, sid)
		}
		for i := range int64(r.GetCount()) {
			d.ids = append(d.ids, flake.ID(r.GetFirst()+i*r.GetStride()))
		}
	}
	return nil
}

// carry asks for one ID above all others, and what the node makes of it.
func (d *drawing) carry(ctx context.Context, node *remote.Nodes) error {
	r, err := allocate(ctx, node, 1, d.above)
	if err != nil {
		return err
	}
	d.next = flake.ID(r.GetFirst())
	return node.Ask(ctx, func(ctx context.Context, c *grpc.ClientConn) (err error) {
		d.parsed, err = pb.NewAllocatorServiceClient(c).Describe(ctx,
			&pb.DescribeRequest{Id: d.ids[len(d.ids)-1].String()})
		return err
	})
}

func allocate(ctx context.Context, node *remote.Nodes, n int, after flake.ID) (r *pb.AllocateResponse, err error) {
	err = node.Ask(ctx, func(ctx context.Context, c *grpc.ClientConn) (err error) {
		r, err = pb.NewAllocatorServiceClient(c).Allocate(ctx,
			&pb.AllocateRequest{Count: int32(n), After: int64(after)})
		return err
	})
	return r, err
}

// judge judges a draw: a line for each node, one for uniqueness, one for
// the order that was carried.
func judge(all []drawing, limit time.Duration, now time.Time) (r report.Report) {
	const bug = "This must not happen: stop the nodes, keep the IDs and etcd's data, and report it"
	if len(all) == 0 {
		r.Add("draw", report.Fail, "Give --addr, or start nodes", "there is no node to draw from")
		return r
	}
	var formats []flake.Format
	seen := map[flake.ID]int{} // The value is the index in all of the drawing that has the ID.
	total, from, twice, carried := 0, 0, 0, 0
	for i, d := range all {
		if d.err != nil {
			r.Add("draw", report.Fail, "Check that a node runs there and is ready; docs/reference/refusals.md "+
				"explains each reason", "%s: %s", d.addr, remote.Cause(d.err))
			continue
		}
		total, from = total+len(d.ids), from+1
		if !slices.Contains(formats, d.format) {
			formats = append(formats, d.format)
		}
		name := fmt.Sprintf("%s at %s", d.node, d.addr)
		if wrong := d.wrong(limit, now); wrong != "" {
			r.Add("draw", report.Fail, bug, "%s: %s", name, wrong)
		} else {
			r.Add("draw", report.OK, "", "%s: %s with sid %s, rising from %s to %s", name,
				text.Count(len(d.ids), "ID"), sidList(d.sids), d.ids[0], d.ids[len(d.ids)-1])
		}
		for _, id := range append(slices.Clone(d.ids), d.next) {
			if id == 0 {
				continue // the last call failed, which is reported below
			}
			if other, ok := seen[id]; ok {
				if twice++; twice == 1 {
					r.Add("draw-unique",
						report.Fail, bug, "%s was issued twice: by %s and by %s", id, all[other].addr, d.addr)
				}
			}
			seen[id] = i
		}
		switch {
		case d.carryErr != nil:
			r.Add("draw-order", report.Fail,
				"Check that the node is ready, and that its clock and those of the other nodes are right",
				"%s, asked for an ID after %s: %v", name, d.above, d.carryErr)
		case d.next <= d.above:
			r.Add("draw-order", report.Fail, bug, "%s gave %s when asked for one after %s", name, d.next, d.above)
		default:
			carried++
		}
	}
	if len(formats) > 1 {
		r.Add("draw-space", report.Fail, "Correct --addr, or the nodes' etcd.endpoints, space and root",
			"the addresses are of %d spaces with different layouts or epochs", len(formats))
	}
	if twice == 0 && total > 0 {
		r.Add("draw-unique", report.OK, "", "%s from %s, no two equal",
			text.Count(total, "ID"), text.Count(from, "node"))
	} else if twice > 1 {
		r.Add("draw-unique", report.Fail, bug, "%s issued twice in total", text.Count(twice, "ID"))
	}
	if carried == len(all) {
		r.Add("draw-order", report.OK, "", "each node in turn issued an ID above all earlier ones")
	}
	return r
}

// wrong reports what is wrong with the IDs of one node, by themselves.
func (d drawing) wrong(limit time.Duration, now time.Time) string {
	for i, id := range d.ids {
		switch {
		case i > 0 && id <= d.ids[i-1]:
			return fmt.Sprintf("%s was issued after %s, and is not above it", id, d.ids[i-1])
		case !slices.Contains(d.sids, d.format.SID(id)):
			return fmt.Sprintf("%s has sid %d, but the node named sid %s", id, d.format.SID(id), sidList(d.sids))
		}
	}
	last := d.ids[len(d.ids)-1]
	if off := d.format.Time(last).Sub(now).Abs(); off > limit {
		return fmt.Sprintf("%s has the time %s, %v from this machine's clock", last,
			d.format.Time(last).Format(time.RFC3339), off.Round(time.Second))
	}
	if p := d.parsed; p != nil {
		if p.GetFlake() != int64(last) || p.GetUnixMs() != d.format.UnixMilli(last) ||
			flake.SID(p.GetSid()) != d.format.SID(last) {
			return fmt.Sprintf("the node decodes its own ID %s as flake %d of %d ms with sid %d",
				last, p.GetFlake(), p.GetUnixMs(), p.GetSid())
		}
	}
	return ""
}

func sidList(sids []flake.SID) string {
	var out []string
	for _, s := range sids {
		out = append(out, fmt.Sprint(s))
	}
	return strings.Join(out, ", ")
}

// target is one address to draw from. Where a name has several, ip is one of
// them, and the name is what a certificate has to prove.
type target struct {
	addr string // host:port as given
	ip   string // "" for the name itself
}

func (t target) shown() string {
	if t.ip == "" {
		return t.addr
	}
	return fmt.Sprintf("%s (%s)", t.addr, t.ip)
}

func (t target) dial(d remote.Dialer) (*grpc.ClientConn, error) {
	if t.ip == "" {
		return d.Dial(t.addr)
	}
	_, port, err := net.SplitHostPort(t.addr)
	if err != nil {
		return nil, err
	}
	return d.Dial(net.JoinHostPort(t.ip, port), grpc.WithAuthority(t.addr))
}

// resolveTimeout is how long a name server may take.
const resolveTimeout = 5 * time.Second

// resolve gives every address of every name: a headless Service of Kubernetes
// has one for each node. What has one, or is no name that can be found, stays as
// it is.
func resolve(ctx context.Context, addrs []string, lookup func(context.Context, string) ([]string, error)) []target {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	var out []target
	for _, addr := range addrs {
		host, _, err := net.SplitHostPort(addr)
		var ips []string
		if err == nil && host != "" && net.ParseIP(host) == nil {
			ips, _ = lookup(ctx, host)
		}
		if len(ips) < 2 {
			out = append(out, target{addr: addr})
			continue
		}
		slices.Sort(ips)
		for _, ip := range ips {
			out = append(out, target{addr: addr, ip: ip})
		}
	}
	return out
}
