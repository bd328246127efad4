package bench

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/bwmarrin/snowflake"
	"github.com/google/uuid"
	oklog "github.com/oklog/ulid/v2"
	"github.com/rs/xid"
	"github.com/segmentio/ksuid"
	"github.com/sony/sonyflake"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
)

// issuing returns the cases of what a node does for a request, beside libraries
// that make an ID without being asked over a network. None of these knows of its
// like on another machine; ours holds a sid, and a window it may use.
//
// Our steps within a millisecond are random while the clock is not behind
// (draw), and +1 once IDs run ahead of it (sustained). How far ahead is not
// limited here: the cap of the layout, 30.5 ns an ID, would hide what an ID
// costs.
func issuing() []Case {
	src := clock.NewSystem(nil)
	origin := time.Now()
	var word atomic.Uint64
	live, slow := newTenure(src, genConfig(flake.Scalable)), newTenure(src, genConfig(flake.Scalable))
	n := newNode(src)
	twitter := newTenure(src, genConfig(flake.Twitter))
	js53 := genConfig(flake.JS53)
	js53.MaxLead = 0
	capped := newTenure(src, js53)
	var calls uint64
	ctx := context.Background()
	ids := make([]flake.ID, 1000)
	snow, err := snowflake.NewNode(1)
	if err != nil {
		panic(err)
	}
	sony := sonyflake.NewSonyflake(sonyflake.Settings{MachineID: func() (uint16, error) { return 1, nil }})
	next := func(t *gen.Tenure, now clock.Millis, n int) gen.Block {
		b, err := t.Next(now, now, n, 0)
		if err != nil {
			panic(err) // the tenure has no end, and no limit on its lead
		}
		return b
	}
	one := func() string { return next(live, src.Now().Wall, 1).First.String() }
	return []Case{
		{Groups[10], Ours + ", sustained", func(times int) {
			for range times {
				sinkFlake = next(live, src.Now().Wall, 1).First
			}
		}, one, 0},
		{Groups[10], Ours + ", draw", func(times int) {
			for range times { // 64 in a millisecond
				sinkFlake = next(slow, src.Now().Wall+clock.Millis(calls>>6), 1).First
				calls++
			}
		}, func() string { return next(slow, src.Now().Wall+clock.Millis(calls>>6), 1).First.String() }, 0},
		{Groups[10], Ours + ", the whole node, sustained", func(times int) {
			for range times {
				b, err := n.Next(ctx, 1, 0)
				if err != nil {
					panic(err)
				}
				sinkFlake = b.First
			}
		}, func() string { b, _ := n.Next(ctx, 1, 0); return b.First.String() }, 0},
		{Groups[10], ourTwitter, func(times int) {
			for range times {
				sinkFlake = next(twitter, src.Now().Wall, 1).First
			}
		}, func() string { return next(twitter, src.Now().Wall, 1).First.String() }, 0},
		{Groups[10], Floor, func(times int) {
			for range times {
				w := word.Load()
				word.CompareAndSwap(w, w+uint64(time.Since(origin))|1)
			}
		}, func() string { return "floor" }, 0},
		{Groups[10], "rs/xid", func(times int) {
			for range times {
				sinkXID = xid.New()
			}
		}, func() string { return xid.New().String() }, 0},
		{Groups[10], "oklog/ulid, Make", func(times int) { // monotonic, locked, math/rand
			for range times {
				sinkOklog = oklog.Make()
			}
		}, func() string { return oklog.Make().String() }, 0},
		{Groups[10], "google/uuid, version 7", func(times int) {
			for range times {
				sinkUUID, sinkErr = uuid.NewV7()
			}
		}, func() string { id, _ := uuid.NewV7(); return id.String() }, 0},
		{Groups[10], "segmentio/ksuid", func(times int) {
			for range times {
				sinkKSUID, sinkErr = ksuid.NewRandom()
			}
		}, func() string { id, _ := ksuid.NewRandom(); return id.String() }, 0},
		{Groups[10], "bwmarrin/snowflake", func(times int) { // its layout's cap
			for range times {
				sinkSnow = snow.Generate()
			}
		}, func() string { return snow.Generate().String() }, 10 * time.Millisecond},
		{Groups[10], "sony/sonyflake", func(times int) { // its layout's cap
			for range times {
				sinkWord, sinkErr = sony.NextID()
			}
		}, func() string { id, _ := sony.NextID(); return flake.ID(id).String() }, 50 * time.Millisecond},

		{Groups[11], Ours + ", sustained", func(times int) {
			for range times {
				next(live, src.Now().Wall, len(ids)).Fill(ids)
			}
			sinkFlake = ids[0]
		}, func() string { next(live, src.Now().Wall, len(ids)).Fill(ids); return ids[999].String() }, 0},
		{Groups[11], "bwmarrin/snowflake, in a loop", func(times int) {
			for range times {
				for i := range ids {
					ids[i] = flake.ID(snow.Generate())
				}
			}
		}, func() string { return snow.Generate().String() }, 10 * time.Millisecond},
		{Groups[11], "rs/xid, in a loop", func(times int) {
			for range times {
				for range ids {
					sinkXID = xid.New()
				}
			}
		}, func() string { return xid.New().String() }, 0},

		// 128 of a sid in a millisecond of the clock, none ahead of it: then each request
		// is repeated until the next. A refusal allocates.
		{Groups[12], Ours, func(times int) {
			for range times {
				sinkFlake = nextOfCap(capped, src).First
			}
		}, func() string { return nextOfCap(capped, src).First.String() }, 50 * time.Millisecond},
	}
}

// nextOfCap asks for an ID until the clock allows one.
func nextOfCap(t *gen.Tenure, src clock.Source) gen.Block {
	for {
		now := src.Now().Wall
		if b, err := t.Next(now, now, 1, 0); err == nil {
			return b
		}
	}
}

// endless is a lead that no measurement reaches.
const endless = clock.Millis(1) << 42

func genConfig(l flake.Layout) gen.Config {
	return gen.Config{Layout: l, Epoch: clock.Millis(l.Epoch()), MaxLead: endless, MaxStep: l.MaxStep(1)}
}

func newTenure(src clock.Source, cfg gen.Config) *gen.Tenure {
	t, err := gen.NewTenure(cfg, 7, src.Now().Wall, cfg.Epoch+clock.Millis(cfg.Layout.End()), gen.Random())
	if err != nil {
		panic(err)
	}
	return t
}

func newNode(src clock.Source) *node.Node {
	n := node.New(node.Config{Name: "bench", Instance: "bench-1", Gen: genConfig(flake.Scalable), MaxWait: time.Second},
		src, gen.Random())
	n.Begin(lease.Grant{SID: 7, Term: 1, Base: src.Now().Wall, Ceil: clock.Millis(flake.DefaultEpoch) + 1<<43})
	return n
}
