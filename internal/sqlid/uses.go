package sqlid

import (
	"cmp"
	"slices"
	"time"
)

// uses are the slices that servers may use, each from before it is sent. The watermark is told from them.
//
// Times are given. Under one lock the clock is read, a slice is cut from told on, and add notes it: so no slice begins
// below what the watermark was told.
type uses struct {
	list  []use
	added int
	told  int64 // Unix ms: the last floor
}

type use struct {
	n      int       // The number counts from the first slice.
	from   int64     // Unix ms
	server int64     // -1: it is not known whether the slice is written, and where
	over   time.Time // The slice is not used any more from then on, whenever it is written.
}

// add notes a slice that is sent next, and returns its number.
func (u *uses) add(from int64, over time.Time) int {
	u.list = append(u.list, use{u.added, from, -1, over})
	u.added++
	return u.added - 1
}

// refused takes slice n back: it was not written and will not be.
func (u *uses) refused(n int) {
	u.list = slices.DeleteFunc(u.list, func(e use) bool { return e.n == n })
}

// wrote notes where slice n is written: that server uses none of those before it any more.
func (u *uses) wrote(n int, server int64) {
	u.list = slices.DeleteFunc(u.list, func(e use) bool { return e.n < n && e.server == server })
	for i := range u.list {
		if u.list[i].n == n {
			u.list[i].server = server
		}
	}
}

// floor returns the time below which no server makes an ID any more. If none can make any, that is a second ago.
func (u *uses) floor(now time.Time) int64 {
	u.expire(now)
	floor := now.UnixMilli() - 1000
	if len(u.list) > 0 {
		floor = slices.MinFunc(u.list, func(a, b use) int { return cmp.Compare(a.from, b.from) }).from
	}
	u.told = max(u.told, floor)
	return u.told
}

// number begins with another worker number, of which the watermark was told nothing: after a wrong clock, told may be
// far ahead.
func (u *uses) number() { u.told = 0 }

// onlyOn reports whether no server but this one may use a slice, or be told of one yet.
func (u *uses) onlyOn(server int64, now time.Time) bool {
	u.expire(now)
	return !slices.ContainsFunc(u.list, func(e use) bool { return e.server < 0 || e.server != server })
}

func (u *uses) expire(now time.Time) {
	u.list = slices.DeleteFunc(u.list, func(e use) bool { return !now.Before(e.over) })
}
