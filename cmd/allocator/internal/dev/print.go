package dev

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/cmd/allocator/internal/remote"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/daemon"
)

func (d *dev) printNode(one *daemon.Daemon) error {
	st, at := one.Node().Stats(), one.Addresses()
	line := struct {
		Node    string `json:"node"`
		State   string `json:"state"`
		SID     int    `json:"sid"` // -1: none
		HTTP    string `json:"http"`
		GRPC    string `json:"grpc"`
		Admin   string `json:"admin"`
		RESP    string `json:"resp,omitempty"`
		Etcd    string `json:"etcd"`
		Console string `json:"console"`
		// The cluster's time minus the node's, and its uncertainty, in µs; absent without a measurement.
		Offset      *int64 `json:"offset_us,omitempty"`
		Uncertainty *int64 `json:"uncertainty_us,omitempty"`
	}{
		Node:    st.Name,
		State:   "ready",
		SID:     -1,
		HTTP:    at.HTTP,
		GRPC:    at.GRPC,
		Admin:   at.Admin,
		RESP:    at.RESP,
		Etcd:    d.etcd.Endpoint(),
		Console: d.console,
	}
	if st.Holding {
		line.SID = int(st.SID)
	}
	about := fmt.Sprintf("sid %-3d", line.SID)
	if one.Node().Ready() != nil && isStandby(one) {
		line.State = "standby"
		about = fmt.Sprintf("all %d sids are held: acquires the next free one ", st.Lease.Pool.Size)
	}
	clocks := ""
	if j := one.Clocks().Gate.Judgement; j.Known {
		us, uncertainty := j.Offset.Microseconds(), j.Uncertainty.Microseconds()+1
		line.Offset, line.Uncertainty = &us, &uncertainty
		clocks = "  clock " + clock.FormatOffset(j.Offset, j.Uncertainty)
	}
	if d.json {
		return cli.PrintLine(d.Out, line)
	}
	_, err := fmt.Fprintf(d.Out, "%-7s %-8s %s http %s  grpc %s  admin %s%s\n",
		line.State, line.Node, about, line.HTTP, line.GRPC, line.Admin, clocks)
	return err
}

// printExamples prints calls that work when pasted, with an ID made now.
func (d *dev) printExamples(ctx context.Context) error {
	first := d.daemons[max(0, slices.IndexFunc(d.daemons, func(one *daemon.Daemon) bool {
		return one.Node().Ready() == nil
	}))]
	block, err := first.Node().Next(ctx, 1, 0)
	if err != nil {
		return fmt.Errorf("first ID: %w", err)
	}
	at, addr := first.Addresses(), ""
	if at.GRPC != remote.DefaultAddr {
		addr = " --addr " + at.GRPC
	}
	as, layout := "ulid", "" // what parse has to be told
	if d.space != flake.Default {
		layout = fmt.Sprintf(" --layout %v", d.space)
	}
	if !d.space.Layout.Random() {
		as = "int"
	}
	var b strings.Builder
	fmt.Fprintf(&b, `
Watch it, and break it, in a browser:

  %[7]sbreak

Try, in another terminal:

  curl -X POST http://%[1]s/v1/ids
  curl -X POST -H 'Accept: text/plain' 'http://%[1]s/v1/ids?count=3&as=%[5]s'
  curl http://%[1]s/v1/ids/%[2]s
  curl http://%[1]s/v1/cluster

or

  allocator get 3 --as %[5]s%[3]s
  allocator parse %[2]s%[6]s --addr %[4]s
  allocator status%[3]s
`, at.HTTP, block.First, addr, at.GRPC, as, layout, d.console)
	if host, port, err := net.SplitHostPort(at.RESP); err == nil {
		fmt.Fprintf(&b,
			"\nor, as a Redis client,\n\n  redis-cli -h %s -p %s ID.NEXT COUNT 3 FORMAT %s\n", host, port, as)
	}
	fmt.Fprintf(&b, "\netcd is at %s\n\nCtrl-C stops everything.\n", d.etcd.Endpoint())
	_, err = fmt.Fprint(d.Out, b.String())
	return err
}
