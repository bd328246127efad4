package draw

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/nodestub"
	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/doctor/report"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/flake"
)

// Each thing that can be wrong with a draw has its line.
func TestDrawChecks(t *testing.T) {
	now := time.UnixMilli(1_780_000_000_000)
	one := func(addr string, sid flake.SID, at time.Time) drawing {
		d := drawing{addr: addr, node: "n-" + addr, sids: []flake.SID{sid}, format: flake.Default, above: 1}
		for i := range uint32(3) {
			id, err := d.format.Make(at.UnixMilli(), 100+i, sid)
			fatal.If(t, err)
			d.ids = append(d.ids, id)
		}
		d.next = d.ids[2] + 1<<5
		d.parsed = &pb.DescribeResponse{Flake: (*int64)(&d.ids[2]), UnixMs: at.UnixMilli(), Sid: int32(sid)}
		return d
	}
	for _, tt := range []struct {
		name   string
		change func(all *[]drawing)
		check  string // that fails; "" none
		detail string
	}{
		{"well", func(*[]drawing) {}, "", ""},
		{"none", func(all *[]drawing) { *all = nil }, "draw", "no node"},
		{"away", func(all *[]drawing) { (*all)[1] = drawing{addr: "b", err: errors.New("gone")} }, "draw", "b: gone"},
		{"twice from two", func(all *[]drawing) { (*all)[1] = one("b", 1, now) }, "draw-unique", "issued twice: by a and by b"},
		{"twice from one", func(all *[]drawing) { (*all)[0].ids[1] = (*all)[0].ids[0] }, "draw", "is not above it"},
		{"the last one again", func(all *[]drawing) { (*all)[0].next = (*all)[0].ids[2] }, "draw-unique", "was issued twice"},
		{"falling", func(all *[]drawing) { slices.Reverse((*all)[0].ids[:2]) }, "draw", "is not above it"},
		{"another sid", func(all *[]drawing) { (*all)[0].sids[0] = 9 }, "draw", "has sid 1, but the node named sid 9"},
		{"of yesterday", func(all *[]drawing) { (*all)[0] = one("a", 1, now.Add(-time.Hour)) }, "draw", "1h0m0s from this machine's clock"},
		{"decoded wrongly", func(all *[]drawing) { (*all)[0].parsed.UnixMs++ }, "draw", "decodes its own"},
		{"order not carried", func(all *[]drawing) { (*all)[0].above = (*all)[0].next }, "draw-order", "when asked for one after"},
		{"order refused", func(all *[]drawing) { (*all)[0].carryErr = errors.New("AFTER_TOO_FAR") }, "draw-order", "AFTER_TOO_FAR"},
		{"another space", func(all *[]drawing) { (*all)[1].format.Epoch++ }, "draw-space", "2 spaces"},
	} {
		all := []drawing{one("a", 1, now), one("b", 2, now)}
		tt.change(&all)
		r := judge(all, 10*time.Second, now)
		broken := slices.DeleteFunc(slices.Clone(r), func(c report.Check) bool { return c.State != report.Fail })
		if tt.check == "" {
			if len(broken) > 0 {
				t.Errorf("%s: %v", tt.name, broken)
			}
			continue
		}
		if !slices.ContainsFunc(broken, func(c report.Check) bool { return c.Name == tt.check && strings.Contains(c.Detail, tt.detail) }) {
			t.Errorf("%s: no failed %s with %q in %v", tt.name, tt.check, tt.detail, r)
		}
	}
}

func TestResolve(t *testing.T) {
	lookup := func(_ context.Context, host string) ([]string, error) {
		switch host {
		case "many":
			return []string{"fd00::1", "10.0.0.1"}, nil
		case "one":
			return []string{"10.0.0.9"}, nil
		}
		return nil, errors.New("no such host")
	}
	var got []string
	for _, a := range resolve(t.Context(), []string{"many:9000", "one:9000", "none:9000", "10.0.0.5:9000", "wrong"}, lookup) {
		got = append(got, a.shown())
	}
	want := []string{"many:9000 (10.0.0.1)", "many:9000 (fd00::1)", "one:9000", "none:9000", "10.0.0.5:9000", "wrong"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// One of several addresses of a name has to prove the name, and not the address.
func TestDrawProvesTheName(t *testing.T) {
	ca := certstest.NewAuthority(t, "ca")
	dir := t.TempDir()
	cert, key := ca.Issue(t, "me", -time.Hour, time.Hour).Write(t, dir, "me")
	_, port, err := net.SplitHostPort(nodestub.StartSecure(t, ca, "good"))
	fatal.If(t, err)
	a := &cli.App{Env: []string{"ALLOCATOR_TOKEN=good"}}
	cmd := &cobra.Command{}
	dialer := remote.DialFlags(a, cmd)
	fatal.If(t, cmd.ParseFlags([]string{"--ca", certstest.File(t, dir, "ca.pem", ca.PEM), "--cert", cert, "--key", key}))
	d, err := dialer()
	fatal.If(t, err)
	for host, proven := range map[string]bool{"localhost": true, "other.example": false} {
		to := target{addr: net.JoinHostPort(host, port), ip: "127.0.0.1"}
		conn, err := to.dial(d)
		fatal.If(t, err)
		defer func() { _ = conn.Close() }()
		_, err = pb.NewAllocatorServiceClient(conn).Allocate(t.Context(), &pb.AllocateRequest{Count: 1})
		if (err == nil) != proven || !proven && !strings.Contains(err.Error(), "not "+host) {
			t.Errorf("%s: %v", host, err)
		}
	}
}
