package daemon

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/cluster"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/lease"
)

// noon is the floor of spaces in tests.
var noon = clock.Millis(time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC).UnixMilli())

// TestSameSpace: a space that exists is used only if it is what was asked for, and the error says in
// what it differs.
func TestSameSpace(t *testing.T) {
	f := flake.Format{Layout: flake.Scalable, Epoch: flake.DefaultEpoch}
	above, err := f.Max(int64(noon) - 1)
	fatal.If(t, err)
	reserved := lease.Window{
		Era: 1, Term: 1, Instance: "op", Node: lease.Operator, Nonce: "n", Base: noon, Ceil: noon, State: lease.Reserved, Wall: noon,
	}
	for name, tc := range map[string]struct {
		part     lease.SIDRange // of the space
		sidRange lease.SIDRange // that the node may take
		begin    Beginning
		change   func(*lease.View)
		differs  bool // The error is ErrDiffers.
		says     string
	}{
		"the same":    {},
		"above an ID": {begin: Beginning{Above: above}},
		"at an ID": {
			begin: Beginning{Above: above + 1}, differs: true,
			says: "begin at 2026-11-22T12:00:00Z, before 2026-11-22T12:00:00.001Z, the end of the time of",
		},
		"above no ID of the layout": {begin: Beginning{Above: 1<<63 - 1}, says: "the last time of layout scalable"},
		"damaged": {
			change: func(v *lease.View) { v.Config.Err = errors.New("no record") }, says: `config of space "s": no record`,
		},
		"another layout": {
			change: func(v *lease.View) { v.Config.Value.Layout = flake.Twitter }, differs: true, says: `space "s": `,
		},
		"a part":               {part: lease.SIDRange{From: 4, To: 8}},
		"the part asked for":   {part: lease.SIDRange{From: 4, To: 8}, begin: Beginning{SIDs: lease.SIDRange{From: 4, To: 8}}},
		"another part":         {begin: Beginning{SIDs: lease.SIDRange{From: 4, To: 8}}, differs: true, says: "has the sids 0-31"},
		"a range of it":        {part: lease.SIDRange{From: 4, To: 8}, sidRange: lease.SIDRange{From: 5, To: 8}},
		"a range of others":    {part: lease.SIDRange{From: 4, To: 8}, sidRange: lease.SIDRange{From: 5, To: 9}, says: "5-8"},
		"reserved":             {begin: Beginning{Reserved: lease.SIDSet{{From: 3, To: 4}}}},
		"reserved in part":     {begin: Beginning{Reserved: lease.SIDSet{{From: 3, To: 6}}}, differs: true, says: "run \"allocator admin reserve 4-5\""},
		"reserved and more of": {begin: Beginning{Reserved: lease.SIDSet{{From: 9, To: 10}}}, differs: true, says: "its sids 9 are not reserved"},
	} {
		t.Run(name, func(t *testing.T) {
			v := lease.View{SIDs: map[flake.SID]lease.SIDRecords{3: {Window: lease.NewEntry[lease.Window](1, 0, lease.Encode(reserved))}}}
			v.Config.Rev, v.Config.Value = 1, lease.Space{Layout: f.Layout, Epoch: clock.Millis(f.Epoch), Pool: "p", Part: tc.part}
			v.Era.Value.Floor = noon
			if tc.change != nil {
				tc.change(&v)
			}
			cfg := config.Config{Space: "s", Layout: f.Layout, Epoch: clock.Millis(f.Epoch), SIDRange: tc.sidRange}
			err := sameSpace(cfg, tc.begin, v)
			if (err != nil) != (tc.says != "") || err != nil && !strings.Contains(err.Error(), tc.says) ||
				errors.Is(err, ErrDiffers) != tc.differs {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestReservations: a new space reserves exactly the sids that it is told, for IDs from its floor on.
func TestReservations(t *testing.T) {
	whole := lease.Space{Layout: flake.Scalable, Epoch: clock.Millis(flake.DefaultEpoch), Pool: "p"}
	part := whole
	part.Part = lease.SIDRange{From: 4, To: 8}
	for _, tc := range []struct {
		space lease.Space
		sids  string // "": none
		want  []flake.SID
		fails bool
	}{
		{space: whole},
		{space: whole, sids: "0,3-4", want: []flake.SID{0, 3, 4}},
		{space: whole, sids: "31", want: []flake.SID{31}},
		{space: whole, sids: "30-32", fails: true},
		{space: part, sids: "4-7", want: []flake.SID{4, 5, 6, 7}},
		{space: part, sids: "3-4", fails: true},
		{space: part, sids: "7-8", fails: true},
	} {
		var set lease.SIDSet
		if tc.sids != "" {
			var err error
			if set, err = lease.ParseSIDSet(tc.sids); err != nil {
				t.Fatal(err)
			}
		}
		list, err := Beginning{Reserved: set}.reservations(tc.space, noon+5, noon)
		if wrong := new(lease.RangeError); tc.fails != errors.As(err, &wrong) || (err != nil) != tc.fails {
			t.Errorf("%s of %v: %v", tc.sids, tc.space.SIDs(), err)
		}
		var got []flake.SID
		nonces := map[string]bool{}
		for _, r := range list {
			got, nonces[r.Window.Nonce] = append(got, r.SID), true
			if w := r.Window; w.State != lease.Reserved || w.Ceil != noon+5 || w.Era != 1 || w.Wall != noon || w.Nonce == "" {
				t.Errorf("%+v", r)
			}
		}
		if !slices.Equal(got, tc.want) || len(nonces) != len(got) {
			t.Errorf("%s: %v, %d nonces", tc.sids, got, len(nonces))
		}
	}
}

// crowd is a cluster of so many peers that never answer.
type crowd struct{ peers, asked int }

func (c *crowd) AskReports(int) { c.asked++ }

func (c *crowd) Reports() map[string]cluster.PeerReport {
	out := map[string]cluster.PeerReport{}
	for i := range c.peers {
		out[string(rune('a'+i))] = cluster.PeerReport{}
	}
	return out
}

// TestAskAll: a question that reaches a part of the peers is asked until all were.
func TestAskAll(t *testing.T) {
	for peers, want := range map[int]int{0: 1, 1: 1, cluster.AsksAtOnce - 1: 1, cluster.AsksAtOnce + 1: 2, 3*cluster.AsksAtOnce + 1: 4} {
		c := &crowd{peers: peers}
		if askAll(c); c.asked != want {
			t.Errorf("%d peers are asked by %d calls, want %d", peers, c.asked, want)
		}
	}
}

// TestHosts: browsers may call a node by each name that it has, and by any where that is not checked.
func TestHosts(t *testing.T) {
	d := &Daemon{addrs: Addresses{
		AdvertisedGRPC: "grpc.example.com:9000", AdvertisedHTTP: "http.example.com:8080", AdvertisedConsole: "https://console.example.com:7947",
	}}
	d.cfg.HTTP.Hosts = []string{"ids.example.com"}
	d.cfg.Listen = config.Listen{HTTP: "listen.example.com:8080", Admin: "admin.example.com:7947", GRPC: "0.0.0.0:9000"}
	for name, ours := range map[string]bool{
		"ids.example.com": true, "grpc.example.com": true, "http.example.com": true, "console.example.com:7947": true,
		"listen.example.com:80": true, "admin.example.com": true, "10.0.0.1:8080": true, "evil.example.com": false, "example.com": false,
	} {
		if got := d.hosts(true).Allow(name); got != ours {
			t.Errorf("%s is allowed: %v", name, got)
		}
		if !d.hosts(false).Allow(name) {
			t.Errorf("%s is not allowed where names are not checked", name)
		}
	}
	if len(d.cfg.HTTP.Hosts) != 1 {
		t.Errorf("the setting became %q", d.cfg.HTTP.Hosts)
	}
}
