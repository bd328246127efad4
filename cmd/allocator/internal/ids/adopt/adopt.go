// Package adopt finds out which layout and epoch a sample of existing IDs has, and with
// which settings a space can go on from there.
//
// IDs do not say what their bits mean. What contradicts a layout are bits above its time,
// times in the future, and sids that nobody has; what is left are the times that the
// IDs would have, which only people can compare with what they know. Layouts that differ
// in nothing that an ID shows, as twitter and leaf do, look the same.
//
// The package opens nothing and reads no clock.
package adopt

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/audit"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/lease"
)

// Config is what a sample is compared with.
type Config struct {
	Format flake.Format   // the one that the IDs are said to have; zero: find out
	More   []flake.Format // others to compare, besides the built-in ones
	SIDs   lease.SIDRange // sids that the IDs may have; zero: any
	Now    clock.Millis   // the clock
	Memory int64          // about how much to use for duplicates, in bytes
	Spool  audit.Spool    // takes what does not fit in Memory
}

const (
	// FutureAfter is how far ahead of the clock an ID may be: clocks differ.
	FutureAfter = time.Minute
	// A layout fits if it fits all but one in tolerance: tables hold a few odd rows.
	tolerance = 10
	// Times that are all this close to the epoch are those of small numbers.
	smallWithin = time.Hour
	// The newest ID of a table in use is younger than this.
	staleAfter = 24 * time.Hour
	maxShown   = 10
)

// Errors of Finish, and of lines.
var (
	ErrEmpty   = errors.New("adopt: the sample is empty")
	ErrNoIDs   = errors.New("adopt: the sample has no IDs")
	errDecimal = errors.New("not a decimal ID, 1 to 2^63−1")
)

// Sample is what was read of existing IDs. It is not safe for concurrent use.
type Sample struct {
	cfg        Config
	candidates []*candidate
	known      []*candidate // those of libraries, in their order; nil where candidates has the format
	sorter     *audit.Sorter
	last, max  flake.ID
	rounded    roundings
	report     Report
}

// candidate is a format, and what the IDs would be in it. Times are the highest bits in
// every layout, so limits of times are limits of IDs.
type candidate struct {
	format   flake.Format
	same     []string // others with which an ID looks the same
	ended    bool     // the layout ended before now, and no ID is counted
	now      clock.Millis
	past     flake.ID // the greatest ID that is not of the future
	greatest flake.ID // the greatest of the layout
	unheld   int64    // IDs of more bits
	future   int64
	max      flake.ID   // greatest ID of all
	from, to flake.ID   // the least and greatest of the past; 0: none
	sids     []uint32   // number of IDs of each sid, whatever their times
	begun    []bool     // whether a sid has an ID of the past
	last     []flake.ID // the last ID of each sid
	disorder int64      // IDs below the one before of their sid
	step     stepBack   // the first by hours
	sidsSaid lease.SIDRange
}

// New returns a Sample that has read nothing.
func New(cfg Config) *Sample {
	s := &Sample{
		cfg:    cfg,
		sorter: audit.NewSorter(cfg.Memory/3, cfg.Spool),
		report: Report{
			Layouts:         []Verdict{},
			ShownInvalid:    []audit.InvalidLine{},
			ShownDuplicates: []audit.DuplicateID{},
		},
	}
	formats := slices.Clone(cfg.More)
	if cfg.Format != (flake.Format{}) {
		formats = slices.Insert(formats, 0, cfg.Format)
	}
	for _, name := range flake.Layouts() {
		f, err := flake.ParseFormat(name)
		if err == nil && f.Layout.SIDBits() > 0 { // others are for one holder
			formats = append(formats, f)
		}
	}
	for _, f := range formats {
		if i := slices.IndexFunc(s.candidates, func(c *candidate) bool { return alike(c.format, f) }); i >= 0 {
			if known := s.candidates[i]; known.format != f && !slices.Contains(known.same, f.String()) {
				known.same = append(known.same, f.String())
			}
			continue
		}
		s.candidates = append(s.candidates, newCandidate(f, cfg))
	}
	if cfg.Format == (flake.Format{}) {
		for _, l := range libraries {
			if f, err := flake.ParseFormat(l.layout); err == nil {
				s.known = append(s.known, newCandidate(f, cfg))
			}
		}
	}
	return s
}

// alike reports whether all IDs have the same time, sid and sequence in both.
func alike(a, b flake.Format) bool {
	la, lb := a.Layout, b.Layout
	return a.Epoch == b.Epoch && la.Unit() == lb.Unit() && la.TimeBits() == lb.TimeBits() &&
		la.SIDBits() == lb.SIDBits() && la.SequenceBits() == lb.SequenceBits() && la.SIDFirst() == lb.SIDFirst()
}

func newCandidate(f flake.Format, cfg Config) *candidate {
	c := &candidate{
		format:   f,
		now:      cfg.Now,
		sidsSaid: cfg.SIDs,
		greatest: 1<<(f.Layout.TimeBits()+f.Layout.LowBits()) - 1,
	}
	if holders := flake.SID(f.Layout.Holders()); cfg.SIDs.All() || cfg.SIDs.To > holders {
		c.sidsSaid = lease.SIDRange{From: min(cfg.SIDs.From, holders), To: holders}
	}
	last, err := f.Max(int64(cfg.Now) + FutureAfter.Milliseconds())
	if errors.Is(err, flake.ErrTimeOverflow) {
		c.ended = true
		return c
	}
	if err == nil { // else its epoch is to come: every ID is of the future
		c.past = last
	}
	c.sids, c.begun = make([]uint32, f.Layout.Holders()), make([]bool, f.Layout.Holders())
	c.last = make([]flake.ID, f.Layout.Holders())
	return c
}

// Read reads IDs in decimal, one a line, plain or gzipped: what is before the first comma,
// semicolon or tab, with or without double quotes. A first line that is no number is a
// header. It may be called again for more, and returns the errors of r and the spool.
func (s *Sample) Read(r io.Reader) error {
	header := true
	return audit.EachLine(r, func(line int64, text []byte, err error) error {
		if i := bytes.IndexAny(text, ",;\t"); i >= 0 {
			text = bytes.TrimSpace(text[:i])
		}
		if n := len(text); n > 1 && text[0] == '"' && text[n-1] == '"' {
			text = text[1 : n-1]
		}
		if len(text) == 0 {
			return nil
		}
		var id flake.ID
		if err == nil {
			id, err = parse(text)
		}
		first := header
		header = false
		switch {
		case err == nil:
			return s.add(id, uint64(line))
		case first && text[0] != '-' && (text[0] < '0' || text[0] > '9'):
			s.report.header = string(text)
			return nil
		}
		s.invalid(line, text, err)
		return nil
	})
}

func parse(text []byte) (flake.ID, error) {
	var n uint64
	for _, c := range text {
		if c < '0' || c > '9' || n > 1<<63/10 {
			return 0, errDecimal
		}
		n = n*10 + uint64(c-'0')
	}
	if n == 0 || n >= 1<<63 {
		return 0, errDecimal
	}
	return flake.ID(n), nil
}

func (s *Sample) invalid(line int64, text []byte, err error) {
	s.report.Invalid++
	if len(s.report.ShownInvalid) < maxShown {
		s.report.ShownInvalid = append(s.report.ShownInvalid, audit.InvalidLine{
			At:    strconv.FormatInt(line, 10),
			Error: audit.LineError{Class: describe.Class(err), Message: fmt.Sprintf("%.60q: %v", text, err)},
		})
	}
}

// add takes the ID of a line.
func (s *Sample) add(id flake.ID, line uint64) error {
	s.report.IDs++
	if id < s.last {
		s.report.Disorder++
	}
	s.last, s.max = id, max(s.max, id)
	s.rounded.add(id)
	for _, of := range [][]*candidate{s.candidates, s.known} {
		for _, c := range of {
			c.add(id, line)
		}
	}
	return s.sorter.Add(audit.Item{Key: audit.Key{Lo: uint64(id)}, Pos: line})
}

func (c *candidate) add(id flake.ID, line uint64) {
	if c.ended {
		return
	}
	if id > c.greatest {
		c.unheld++
		return
	}
	c.max = max(c.max, id)
	sid := c.format.SID(id)
	c.order(id, sid, line)
	c.sids[sid]++ // also of the future: a generator whose clock is fast has its sid
	if id > c.past {
		c.future++
		return
	}
	c.begun[sid] = true
	if c.from == 0 || id < c.from {
		c.from = id
	}
	c.to = max(c.to, id)
}

// outside returns how many IDs have a sid that nobody is said to have.
func (c *candidate) outside() (n int64) {
	for sid, ids := range c.sids {
		if !c.sidsSaid.Has(flake.SID(sid)) {
			n += int64(ids)
		}
	}
	return n
}

// ahead is how far the greatest ID is ahead of the clock.
func (c *candidate) ahead() time.Duration {
	return time.Duration(c.format.UnixMilli(c.max)-int64(c.now)) * time.Millisecond
}

// time returns the time of an ID in c's format.
func (c *candidate) time(id flake.ID) string {
	if s := describe.Time(c.format.UnixMilli(id)); s != nil {
		return *s
	}
	return strconv.FormatInt(c.format.UnixMilli(id), 10) + " ms after 1970"
}

// verdict judges one of ids IDs.
func (c *candidate) verdict(ids int64) (v Verdict) {
	v = Verdict{Layout: c.format.String(), Same: c.same}
	many := func(n int64) bool { return n*tolerance > ids }
	percent := func(n int64) string { return strconv.FormatInt((100*n+ids-1)/ids, 10) + " %" }
	end := clock.Millis(c.format.Epoch + c.format.Layout.End() - 1)
	switch outside := c.outside(); {
	case c.ended:
		v.Why = fmt.Sprintf("it ended at %s: its users have a later epoch, to be given as --layout %v,epoch=TIME",
			end.Time().Format(time.RFC3339), c.format.Layout)
	case many(c.unheld):
		v.Why = fmt.Sprintf("%s of the IDs have more than its %d bits", percent(c.unheld),
			c.format.Layout.TimeBits()+c.format.Layout.LowBits())
	case many(c.unheld + c.future):
		v.Why = fmt.Sprintf("%s of the IDs would be in the future, up to %s%s", percent(c.future), c.time(c.max),
			aheadBy(c.ahead()))
	case many(outside):
		v.Why = fmt.Sprintf("%s of the IDs would have sids outside %v", percent(outside), c.sidsSaid)
	case c.format.UnixMilli(c.to)-c.format.Epoch < smallWithin.Milliseconds():
		v.Why = fmt.Sprintf(
			"all IDs would be of the first hour after its epoch, %s: numbers this small are counters, not times",
			c.time(0))
	default:
		v.Fits, v.From, v.To = true, c.time(c.from), c.time(c.to)
	}
	return v
}

// Finish returns what the sample is. It is called once. It returns ErrEmpty or ErrNoIDs,
// and the errors of the spool.
func (s *Sample) Finish() (*Report, error) {
	r := &s.report
	switch {
	case r.IDs == 0 && r.Invalid == 0 && r.header == "":
		return nil, ErrEmpty
	case r.IDs == 0 && r.Invalid == 0:
		return nil, fmt.Errorf("%w: its only line is %.60q", ErrNoIDs, r.header)
	case r.IDs == 0:
		return nil, fmt.Errorf("%w: line %s is %s", ErrNoIDs, r.ShownInvalid[0].At, r.ShownInvalid[0].Error.Message)
	}
	n, err := s.sorter.Duplicates(func(d audit.Duplicate) {
		if len(r.ShownDuplicates) < maxShown {
			line := func(pos uint64) string { return strconv.FormatUint(pos, 10) }
			r.ShownDuplicates = append(r.ShownDuplicates, audit.DuplicateID{
				ID:  strconv.FormatUint(d.Key.Lo, 10),
				At:  line(d.A),
				And: line(d.B),
			})
		}
	})
	if err != nil {
		return nil, err
	}
	r.Duplicates = n
	// The layout that the caller named, then those that fit, the one with the youngest
	// newest ID first: a table in use has IDs of today.
	type judged struct {
		*candidate
		verdict Verdict
		rank    int64
	}
	var all []judged
	fit := 0
	for _, c := range s.candidates {
		j := judged{c, c.verdict(r.IDs), math.MinInt64}
		if j.verdict.Fits {
			j.rank = c.format.UnixMilli(c.to)
			fit++
		}
		if c.format == s.cfg.Format {
			j.rank = math.MaxInt64
		}
		all = append(all, j)
	}
	slices.SortStableFunc(all, func(a, b judged) int { return cmp.Compare(b.rank, a.rank) })
	for _, j := range all {
		r.Layouts = append(r.Layouts, j.verdict)
	}
	best := all[0]
	stale := s.stale(best.candidate)
	if r.Rounded = s.rounded.why(!best.format.Layout.SIDFirst(), !s.cfg.SIDs.All()); r.Rounded != "" {
		return r, nil
	}
	if best.verdict.Fits && (fit == 1 || !stale || best.format == s.cfg.Format) {
		r.Plan = best.plan()
		r.Plan.Stale, r.Plan.StepBack = stale, best.stepped(r.IDs)
		r.Clean = r.Invalid == 0 && r.Duplicates == 0 && r.Plan.Future == 0 && r.Plan.MoreBits == 0 &&
			r.Plan.Outside == 0 && r.Plan.StepBack == nil
	} else if s.cfg.Format == (flake.Format{}) {
		r.Hints = s.hints()
	}
	return r, nil
}

// plan returns how a space goes on from the IDs.
func (c *candidate) plan() *Plan {
	p := &Plan{
		Layout:   c.format.String(),
		Above:    strconv.FormatInt(int64(c.to), 10),
		From:     c.time(c.from),
		To:       c.time(c.to),
		Future:   c.future,
		MoreBits: c.unheld,
		Outside:  c.outside(),
		Holders:  c.format.Layout.Holders(),
		SIDs:     []SIDCount{},
		Fast:     []int{},
	}
	if c.future > 0 {
		p.Last, p.LastAt, p.Ahead = strconv.FormatInt(int64(c.max), 10), c.time(c.max), aheadBy(c.ahead())
	}
	used := map[flake.SID]bool{}
	for sid, ids := range c.sids {
		if ids > 0 {
			used[flake.SID(sid)] = true
			p.SIDs = append(p.SIDs, SIDCount{sid, int64(ids)})
			if !c.begun[sid] {
				p.Fast = append(p.Fast, sid)
			}
		}
	}
	p.SIDsSeen = len(p.SIDs)
	sids := slices.Sorted(maps.Keys(used)) // The least ID of the past has one.
	p.Lowest, p.Highest = int(sids[0]), int(sids[len(sids)-1])
	slices.SortStableFunc(p.SIDs, func(a, b SIDCount) int { return cmp.Compare(b.IDs, a.IDs) })
	p.SIDs = p.SIDs[:min(len(p.SIDs), maxShown)]
	if c.sidsSaid.Len() < p.Holders { // these are the old generators', seen or not
		for sid := c.sidsSaid.From; sid < c.sidsSaid.To; sid++ {
			used[sid] = true
		}
	}
	p.Init = fmt.Sprintf("allocator init --etcd.endpoints URL --layout %s --above %s --fresh", p.Layout, p.Above)
	if free, ok := widest(used, p.Holders); ok {
		if free.From < lease.MaxSIDs/2 { // then the space has the old generators' sids too, for later
			free.To = min(free.To, lease.MaxSIDs)
		}
		p.NodeSIDs = free.String()
		if free.To > lease.MaxSIDs { // beyond those that a space has by default
			p.Init += " --sids " + p.NodeSIDs
		} else if reserved := around(free, min(p.Holders, lease.MaxSIDs)); reserved.Len() > 0 {
			p.Init += " --reserve " + reserved.String()
		}
		p.Serve = fmt.Sprintf("allocator serve --etcd.endpoints URL --layout %s", p.Layout)
	}
	return p
}

// around returns the sids below n that r does not have.
func around(r lease.SIDRange, n int) (out lease.SIDSet) {
	for _, other := range []lease.SIDRange{{To: r.From}, {From: r.To, To: flake.SID(n)}} {
		if other.Len() > 0 {
			out = append(out, other)
		}
	}
	return out
}

// widest returns the longest run of sids that are not used, the first lease.MaxSIDs of it.
func widest(used map[flake.SID]bool, holders int) (best lease.SIDRange, ok bool) {
	var from flake.SID
	for sid := range flake.SID(holders) + 1 {
		if int(sid) < holders && !used[sid] {
			continue
		}
		if run := (lease.SIDRange{From: from, To: sid}); run.Len() > best.Len() {
			best = run
		}
		from = sid + 1
	}
	best.To = min(best.To, best.From+lease.MaxSIDs)
	return best, best.Len() > 0
}
