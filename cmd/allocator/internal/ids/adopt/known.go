package adopt

import (
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
)

// libraries are generators whose epoch no built-in layout has, with their default settings.
var libraries = []struct{ name, layout string }{
	{"ShardingSphere up to June 2026, in Shanghai", "41/10/12,epoch=2016-10-31T16:00:00Z"},
	{"ShardingSphere, in UTC", "41/10/12,epoch=2016-11-01T00:00:00Z"},
	{"php-snowflake", "41/10/12,epoch=2019-08-08T08:08:08Z"},
	{"CosId", "41/10/12,epoch=2019-12-24T16:00:00Z"},
	{"Yitter IdGenerator", "51/6/6,epoch=2020-02-20T02:20:02.02Z"},
}

// zones is how far two epochs can be apart that are one local time in two time zones.
const zones = 14 * time.Hour

// An epoch is not tried if it is younger: small IDs have fewer bits.
const youngest = 30 * 24 * time.Hour

// aheadBy says that the newest ID is of the future by some hours.
func aheadBy(by time.Duration) string {
	if by < 30*time.Minute || by > zones {
		return ""
	}
	return fmt.Sprintf(", %.0f hours ahead: is the epoch another time zone's?", by.Hours())
}

// hints returns what the layout and epoch may be of IDs that none of the candidates has: the libraries for
// which the newest ID is of today, or else the epoch with which it is of now.
func (s *Sample) hints() (out []Hint) {
	for i, c := range s.known {
		if v := c.verdict(s.report.IDs); v.Fits && c.future == 0 && !s.stale(c) {
			out = append(out, Hint{Layout: libraries[i].layout, Library: libraries[i].name})
		}
	}
	if len(out) > 0 {
		return out
	}
	const layout = "41/10/12"
	f, err := flake.ParseFormat(layout)
	if err != nil {
		return nil
	}
	age := s.max.Int64() >> f.Layout.LowBits() // in milliseconds
	epoch := s.cfg.Now.Time().Add(-time.Duration(age) * time.Millisecond)
	if age < youngest.Milliseconds() || epoch.Unix() < 0 {
		return nil
	}
	return []Hint{{Layout: layout + ",epoch=" + epoch.UTC().Format(time.RFC3339)}}
}

func (s *Sample) stale(c *candidate) bool {
	return s.cfg.Now.Time().Sub(c.format.Time(c.to)) > staleAfter
}

// stepBack is what an ID of a sid has below the one before.
type stepBack struct {
	sid  flake.SID
	line uint64
	by   time.Duration
}

// order compares an ID with the one before of its sid. A generator whose epoch has changed by a time zone
// goes back by hours, once.
func (c *candidate) order(id flake.ID, sid flake.SID, line uint64) {
	last := c.last[sid]
	c.last[sid] = id
	if id >= last {
		return
	}
	c.disorder++
	by := time.Duration(c.format.UnixMilli(last)-c.format.UnixMilli(id)) * time.Millisecond
	if c.step.line == 0 && by >= time.Hour && by <= zones {
		c.step = stepBack{sid, line, by}
	}
}

// stepped returns the first step back by hours in a sample that is in order otherwise.
func (c *candidate) stepped(ids int64) *StepBack {
	if c.step.line == 0 || c.disorder*tolerance > ids {
		return nil
	}
	return &StepBack{SID: int(c.step.sid), Line: c.step.line, By: c.step.by.Round(time.Second).String()}
}
