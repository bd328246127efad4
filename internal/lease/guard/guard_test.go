package guard_test

import (
	"math"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/catalog"
	"github.com/flakelease/allocator/internal/lease/guard"
)

const (
	wall = clock.Millis(1_700_000_000_000)
	min  = clock.Millis(60_000)
	day  = 24 * 60 * min

	ofHolders = "every live holder's"
	ofRecords = "the latest record in etcd"
	ofItself  = "its own time before it was set"
)

// at is a reading of a clock that is right, some time after the list was read.
func at(since time.Duration) clock.Reading {
	return clock.Reading{Wall: wall + clock.MillisOf(since), Mono: clock.Mono(since)}
}

// TestLatest has the rows of "Poison guard" in docs/DESIGN.md: up to which time a ceiling may be written, a minute
// after the list was read.
func TestLatest(t *testing.T) {
	const since, skew, step, down = time.Minute, 250 * time.Millisecond, 10 * time.Minute, 60 * 24 * time.Hour
	const live, slack = wall - 3_000, min + 2*min + 250 // since, what a record may be late, and the skew
	held := catalog.Evidence{HolderWall: live, WithoutGossip: wall - day, LatestWall: wall - 1_000}
	until := func(era int64, at clock.Millis) lease.AcceptedTime { return lease.AcceptedTime{Era: era, Until: at} }
	alone := catalog.Evidence{WithoutGossip: wall - day, LatestWall: wall - 2*day}
	ahead := catalog.Evidence{HolderWall: wall + day}
	off := catalog.Evidence{LatestWall: wall - day}
	later := catalog.Evidence{WithoutGossip: wall - 2*day, LatestWall: wall - day}
	wrote := func(g *guard.Guard) { g.Wrote(wall, 0) }
	twice := func(at clock.Millis, elapsed time.Duration) func(*guard.Guard) {
		return func(g *guard.Guard) { wrote(g); g.Wrote(at, elapsed) }
	}
	// listed lets the process list records of that time, with a floor, by a clock that is confirmed, and then write.
	listed := func(latest, floor clock.Millis, confirmed bool) func(*guard.Guard) {
		return func(g *guard.Guard) {
			g.Listed(at(0), guard.Evidence{
				Evidence:  catalog.Evidence{LatestWall: latest},
				Era:       lease.Era{Floor: floor},
				Confirmed: confirmed,
			})
			g.Listed(at(0), guard.Evidence{Evidence: catalog.Evidence{LatestWall: wall + day}})
			wrote(g)
		}
	}
	after := func(g *guard.Guard) { wrote(g); listed(wall+day, wall+day, false)(g) }
	const own = wall + min + 11*min
	for name, tc := range map[string]struct {
		seen      catalog.Evidence
		extending bool
		confirmed bool
		accepted  lease.AcceptedTime
		slept     time.Duration
		before    func(*guard.Guard) // what this process has seen and done
		want      clock.Millis
		of        string
	}{
		"nothing shows the time":                  {want: math.MaxInt64},
		"beside holders, alone":                   {seen: held, want: live + slack, of: ofHolders},
		"beside holders, confirmed":               {seen: held, confirmed: true, want: live + slack + 10*min, of: ofHolders},
		"a first extension":                       {seen: held, extending: true, want: live + slack + 10*min, of: ofHolders},
		"beside nodes without gossip":             {seen: alone, want: wall - day + 13*min, of: ofRecords},
		"beside them, a later record":             {seen: later, want: wall - day + 13*min, of: ofRecords},
		"beside them, confirmed":                  {seen: alone, confirmed: true, want: wall - 2*day + min + 60*day, of: ofRecords},
		"after a downtime":                        {seen: off, want: wall - day + min + 60*day, of: ofRecords},
		"accepted":                                {seen: held, accepted: until(2, wall+day), want: wall + day, of: ofHolders},
		"accepted, but less":                      {seen: held, accepted: until(2, wall-day), want: live + slack, of: ofHolders},
		"accepted in another era":                 {seen: held, accepted: until(1, wall+day), want: live + slack, of: ofHolders},
		"wrote before":                            {before: wrote, want: own, of: ofItself},
		"wrote, then slept":                       {before: wrote, slept: time.Hour, want: own + 60*min, of: ofItself},
		"wrote, acquires alone":                   {before: wrote, seen: held, want: live + slack, of: ofHolders},
		"wrote, a holder is later":                {before: wrote, seen: ahead, extending: true, want: wall + day + slack, of: ofItself},
		"wrote, others are earlier":               {before: wrote, seen: held, extending: true, want: own, of: ofItself},
		"wrote by a clock that is a little ahead": {before: twice(wall+6*min, time.Minute), want: own + 60, of: ofItself},
		"wrote at a time that was accepted":       {before: twice(wall+day, 0), want: own + day, of: ofItself},
		"wrote at the limit":                      {before: twice(wall+11*min, 0), want: own, of: ofItself},
		"later records at the start":              {before: listed(wall+60*min, wall-day, false), want: own + 60*min, of: ofItself},
		"later records, overruled":                {before: listed(wall+60*min, wall-day, true), want: own, of: ofItself},
		"records that are a little later":         {before: listed(wall+10*min, wall-day, true), want: own + 10*min, of: ofItself},
		"a later floor is not overruled":          {before: listed(0, wall+60*min, true), want: own + 60*min, of: ofItself},
		"records after a write":                   {before: after, want: own, of: ofItself},
	} {
		t.Run(name, func(t *testing.T) {
			g := guard.New(skew)
			seen := guard.Evidence{Evidence: tc.seen, Era: lease.Era{Number: 2}, Confirmed: tc.confirmed}
			if tc.before != nil {
				tc.before(&g)
			}
			now := at(since)
			now.Asleep = tc.slept
			seen.At = at(0)
			seen.Accepted.Value = tc.accepted
			if got, of := g.Latest(now, seen, !tc.extending); got != tc.want || of != tc.of {
				t.Errorf("%d ms after the list was read, of %q; want %d, of %q", got-wall, of, tc.want-wall, tc.of)
			}
			l := g.Limit(now, seen)
			if got := map[bool]clock.Millis{false: l.Acquire, true: l.Extend}[tc.extending]; got != tc.want || l.At != now.Mono {
				t.Errorf("the limit is %+v, want %d", l, tc.want)
			}
		})
	}
}
