// Package regions compares the spaces of several regions, as "allocator doctor
// --regions" does: they have to have one layout and epoch, and no sid in common.
package regions

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/status"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/deployment"
	"github.com/flakelease/allocator/cmd/allocator/internal/doctor/report"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/text"
)

// Region is a region of the file.
type Region struct {
	Name         string `yaml:"name"`
	Addr         string `yaml:"addr"` // gRPC addresses of its nodes, by commas
	remote.Files `yaml:",inline"`
}

// Bounds of the file.
const (
	maxFile    = 1 << 20 // bytes
	maxRegions = 1024    // This many regions of one sid each share a layout of 1,024 sids.
)

// Read reads a file of regions, in YAML or JSON. Its error says what to change.
func Read(path string) ([]Region, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxFile:
		return nil, fmt.Errorf("%s: it has more than %d bytes", path, maxFile)
	}
	list, err := parse(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

func parse(b []byte) ([]Region, error) {
	var file struct {
		Regions []Region `yaml:"regions"`
	}
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if n := len(file.Regions); n < 2 || n > maxRegions {
		return nil, fmt.Errorf("it lists %s under \"regions:\": give 2 to %d", text.Count(n, "region"), maxRegions)
	}
	seen := map[string]bool{}
	for i, r := range file.Regions {
		addrs := deployment.NodeAddrs(nil, r.Addr)
		switch {
		case r.Name == "":
			return nil, fmt.Errorf("region %d has no name", i+1)
		case seen[r.Name]:
			return nil, fmt.Errorf("two regions have the name %s", cli.Show(r.Name))
		case len(addrs) == 0:
			return nil,
				fmt.Errorf("region %s has no addr: give the host:port of a node's gRPC listener", cli.Show(r.Name))
		}
		seen[r.Name] = true
		for _, addr := range addrs {
			if _, _, err := net.SplitHostPort(addr); err != nil {
				return nil, fmt.Errorf("region %s: addr %s is not host:port", cli.Show(r.Name), cli.Show(addr))
			}
		}
	}
	return file.Regions, nil
}

// found is what is known of a region.
type found struct {
	name  string
	nodes []deployment.NodeReport
	hint  func(message string) string
}

// Checks asks the nodes of all regions at the same time, and compares their spaces. What
// a region leaves out of how its nodes are called is taken from def. It reports whether
// any node answered; the error says what is wrong with the file.
func Checks(ctx context.Context, a *cli.App, regions []Region, def remote.Files) (report.Report, bool, error) {
	all := make([]found, len(regions))
	done := make(chan struct{})
	asking := 0
	defer func() {
		for range asking {
			<-done
		}
	}()
	for i, r := range regions {
		addrs := deployment.NodeAddrs(nil, r.Addr)
		d, err := r.Or(def).Dialer(a, "", slog.New(slog.DiscardHandler))
		if err == nil {
			err = d.MayCall(addrs...)
		}
		if err != nil {
			return nil, false, fmt.Errorf("region %s: %w", cli.Show(r.Name), err)
		}
		all[i] = found{name: lease.Printable(r.Name), hint: d.Hint}
		asking++
		go func() {
			all[i].nodes = deployment.AskNodes(ctx, d, addrs)
			done <- struct{}{}
		}()
	}
	for ; asking > 0; asking-- {
		<-done
	}
	checks, reached := examine(all)
	return checks, reached, nil
}

// space is what the nodes of a region say of its space.
type space struct {
	region string
	lease.Space
}

// examine judges what was found.
func examine(all []found) (r report.Report, reached bool) {
	var spaces []space
	for _, f := range all {
		s, answered, known := f.check(&r)
		reached = reached || answered
		if known {
			spaces = append(spaces, s)
		}
	}
	if len(spaces) < 2 {
		r.Add("region-sids", report.Skipped, "", "there are no two regions to compare")
		return r, reached
	}
	same, other := spaces[:1], false
	for _, s := range spaces[1:] {
		if s.Format() == spaces[0].Format() {
			same = append(same, s)
			continue
		}
		other = true
		r.Add("region-layout", report.Fail,
			"Create one of these spaces again with the layout and epoch of the other, before its IDs meet those of "+
				"other regions",
			"%s has layout %s and epoch %s, and %s has layout %s and epoch %s", s.region, s.Layout, day(s.Epoch),
			spaces[0].region, spaces[0].Layout, day(spaces[0].Epoch))
	}
	if !other {
		r.Add("region-layout", report.OK, "", "all have layout %s and epoch %s", spaces[0].Layout, day(spaces[0].Epoch))
	}
	disjoint := true
	for i, s := range same {
		for _, o := range same[:i] {
			both := lease.SIDRange{From: max(s.SIDs().From, o.SIDs().From), To: min(s.SIDs().To, o.SIDs().To)}
			switch {
			case s.Pool == o.Pool:
				r.Add("region-sids", report.Fail,
					"Give each region the addr of its own nodes, and each of those the etcd of its region",
					"%s and %s are one space: pool %s", o.region, s.region, s.Pool)
			case both.From < both.To:
				r.Add("region-sids", report.Fail,
					"Give the nodes of one of them a sid-range without these, look for duplicates with \"allocator "+
						"audit\", and create that region's space again with other --sids",
					"%s (%v) and %s (%v) both have the sids %v: they can issue the same IDs", o.region, o.SIDs(),
					s.region, s.SIDs(), both)
			default:
				continue
			}
			disjoint = false
		}
	}
	if disjoint && !other {
		r.Add("region-sids", report.OK, "", "no sid is in two regions; in none: %s", rest(same))
	}
	return r, reached
}

// check adds the check of one region, and returns its space if it is known.
func (f found) check(r *report.Report) (s space, answered, known bool) {
	var failed []string
	do := "Check that a node runs there, and that addr is the address of its gRPC listener"
	for _, n := range f.nodes {
		if n.Err != nil {
			message := status.Convert(n.Err).Message()
			do = cmp.Or(strings.TrimSpace(f.hint(message)), do)
			failed = append(failed, n.Addr+": "+message)
			continue
		}
		answered = true
		one, err := spaceOf(n)
		one.region = f.name
		switch {
		case err != nil:
			do = "Look at its log, and run doctor again"
			failed = append(failed, fmt.Sprintf("%s: %v", n.Label(), err))
		case known && one.Pool != s.Pool:
			r.Add("region", report.Fail, "Correct addr, or etcd.endpoints of these nodes",
				"%s has nodes of two spaces: pools %s and %s", f.name, s.Pool, one.Pool)
			return s, true, false
		default:
			s, known = one, true
		}
	}
	if !known {
		r.Add("region", report.Fail, do, "%s: no node says what its space is: %s", f.name, strings.Join(failed, "; "))
		return s, answered, false
	}
	r.Add("region", report.OK, "", "%s: layout %s, sids %s, epoch %s, pool %s", f.name, s.Layout,
		s.SIDs().Of(s.Layout), day(s.Epoch), s.Pool)
	return s, true, true
}

// spaceOf returns the space that a node says it is of.
func spaceOf(n deployment.NodeReport) (s space, err error) {
	c := n.Cluster
	if c.Pool == "" || c.PoolSIDs == "" {
		return s, errors.New("the node has not read its space from etcd yet")
	}
	s.Pool, s.Epoch = c.Pool, clock.Millis(c.EpochUnixMs)
	if s.Layout, err = flake.ParseLayout(c.Layout); err == nil {
		s.Part, err = lease.ParsePart(c.PoolSIDs, s.Layout)
	}
	return s, err
}

// restShown is how many runs of sids are shown that no region has.
const restShown = 4

// rest says which sids no space has.
func rest(spaces []space) string {
	parts := make([]lease.SIDRange, 0, len(spaces)+1)
	for _, s := range spaces {
		parts = append(parts, s.SIDs())
	}
	end := flake.SID(spaces[0].Layout.Holders())
	parts = append(parts, lease.SIDRange{From: end, To: end})
	slices.SortFunc(parts, func(a, b lease.SIDRange) int { return cmp.Compare(a.From, b.From) })
	var free []string
	from := flake.SID(0)
	for _, p := range parts {
		if p.From > from {
			free = append(free, lease.SIDRange{From: from, To: p.From}.String())
		}
		from = p.To
	}
	if more := len(free) - restShown; more > 0 {
		free = append(free[:restShown], fmt.Sprintf("and %d more runs", more))
	}
	return cmp.Or(strings.Join(free, ", "), "none")
}

func day(t clock.Millis) string { return t.Time().UTC().Format(time.RFC3339Nano) }
