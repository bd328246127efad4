package flake

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// A Layout is how the 63 bits of an ID are split into time, sid and sequence.
// Format adds the epoch. Both are constants of a space: IDs do not carry them.
//
// Layouts compare with ==; a built-in one differs from a custom one of the same bits.
// Take a constant, or what ParseLayout returns: other values, and zero, are invalid.
type Layout uint64

// Where the parts of a Layout lie.
const (
	seqAt    = 0  // 6 bits each
	sidAt    = 6  //
	timeAt   = 12 //
	unitAt   = 18 // 16 bits: milliseconds
	startAt  = 34 // 16 bits
	numberAt = 50 // 8 bits

	sidFirst Layout = 1 << 58
	random   Layout = 1 << 59
	ms       Layout = 1 << unitAt
)

// The built-in layouts. Those of other systems have the same bits and, unless
// another is given, the same epoch (Layout.Epoch), so both decode each other's IDs.
// Their numbers are stored and go over the wire: never reuse one.
const (
	// Scalable is that of the Ulid-Flake specification for several holders:
	// 43 bits of milliseconds, 15 of entropy, 5 of sid (32 holders).
	Scalable = 1<<numberAt | ms | 43<<timeAt | 15<<seqAt | 5<<sidAt | random

	// Standalone is that of the Ulid-Flake specification for one holder: 20 bits of
	// entropy and no sid. Offline tools only.
	Standalone = 2<<numberAt | ms | 43<<timeAt | 20<<seqAt | random

	// Fleet has 10 bits of entropy and 10 of sid: 1,024 holders. It is not in the
	// specification.
	Fleet = 3<<numberAt | ms | 43<<timeAt | 10<<seqAt | 10<<sidAt | random

	// Twitter has 41 bits of milliseconds, 10 of worker (at Twitter 5 of datacenter
	// and 5 of worker) and 12 of sequence, from 2010-11-04. It ends in 2080.
	//
	// Source: twitter-archive/snowflake, IdWorker.scala.
	Twitter = 4<<numberAt | ms | 41<<timeAt | 10<<sidAt | 12<<seqAt | sidFirst

	// Discord has Twitter's bits (the worker is 5 bits of worker and 5 of process),
	// from 2015-01-01. The original is unsigned: it has a 42nd bit of time, from 2084 on.
	//
	// Source: Discord's API reference, "Snowflakes".
	Discord = 5<<numberAt | ms | 41<<timeAt | 10<<sidAt | 12<<seqAt | sidFirst

	// Instagram has 40 bits of milliseconds, 13 of shard and 10 of sequence, from
	// 2011-08-24. The original has 41, of which the highest is the sign of a BIGINT:
	// positive IDs end in 2046.
	//
	// Source: Instagram Engineering, "Sharding & IDs at Instagram".
	Instagram = 6<<numberAt | ms | 40<<timeAt | 13<<sidAt | 10<<seqAt | sidFirst

	// Sonyflake has 39 bits of 10 ms, 8 of sequence and then 16 of machine, from
	// 2014-09-01. Some toolkits read the last two in the wrong order.
	//
	// Source: sony/sonyflake, sonyflake.go (v1).
	Sonyflake = 7<<numberAt | 10*ms | 39<<timeAt | 8<<seqAt | 16<<sidAt

	// Leaf has Twitter's bits and epoch; a millisecond's sequence starts at random
	// below 100, so that IDs of idle hours do not all fall into one shard.
	//
	// Source: Meituan-Dianping/Leaf, SnowflakeIDGenImpl.java.
	Leaf = 8<<numberAt | ms | 41<<timeAt | 10<<sidAt | 12<<seqAt | sidFirst | 100<<startAt

	// Baidu has 28 bits of seconds, 22 of worker and 13 of sequence. From its
	// default epoch, 2016-05-19T16:00Z, it ended in November 2024: give a later one.
	//
	// Source: baidu/uid-generator, DefaultUidGenerator.java.
	Baidu = 9<<numberAt | 1000*ms | 28<<timeAt | 22<<sidAt | 13<<seqAt | sidFirst

	// JS53 has 41 bits of milliseconds, 5 of sid and 7 of sequence, from 2024-01-01:
	// each ID is an integer that JavaScript's numbers hold exactly. A sid has 128
	// IDs in a millisecond. It is ours.
	JS53 = 10<<numberAt | ms | 41<<timeAt | 5<<sidAt | 7<<seqAt | sidFirst
)

// builtins are the built-in layouts in the order of their numbers.
var builtins = [...]struct {
	name   string
	layout Layout
	epoch  int64
}{
	{"scalable", Scalable, DefaultEpoch},
	{"standalone", Standalone, DefaultEpoch},
	{"fleet", Fleet, DefaultEpoch},
	{"twitter", Twitter, 1_288_834_974_657},
	{"discord", Discord, 1_420_070_400_000},
	{"instagram", Instagram, 1_314_220_021_721},
	{"sonyflake", Sonyflake, 1_409_529_600_000},
	{"leaf", Leaf, 1_288_834_974_657},
	{"baidu", Baidu, 1_463_673_600_000},
	{"js53", JS53, DefaultEpoch},
}

// Layouts returns the names of the built-in layouts.
func Layouts() []string {
	var names []string
	for _, b := range builtins {
		names = append(names, b.name)
	}
	return names
}

// Limits of a layout.
const (
	maxBits         = 63
	maxSIDBits      = 22
	maxSequenceBits = 24
	maxSpan         = 55        // bits of the milliseconds that a layout lasts
	maxUnit         = 60_000    // ms
	maxEpoch        = 1<<48 - 1 // in Unix ms, on either side of 1970
)

// Validate returns nil if l can be used, or an ErrLayout that says what to change.
// The unit has to divide a second, or be a whole number of seconds up to a minute.
func (l Layout) Validate() error {
	if n := l.Number(); n > 0 {
		if n > len(builtins) || builtins[n-1].layout != l {
			return fmt.Errorf("%w %#x", ErrLayout, uint64(l))
		}
		return nil
	}
	switch unit, total := l.Unit(), l.TimeBits()+l.LowBits(); {
	case l == 0:
		return fmt.Errorf("%w: none is given", ErrLayout)
	case unit < 1 || unit > maxUnit || 1000%unit != 0 && unit%1000 != 0:
		return fmt.Errorf("%w: a unit of %v: it must divide 1s, or be whole seconds up to 1m", ErrLayout,
			time.Duration(unit)*time.Millisecond)
	case total > maxBits:
		return fmt.Errorf("%w: %d + %d + %d = %d bits of time, sid and sequence: an ID has %d", ErrLayout,
			l.TimeBits(), l.SIDBits(), l.SequenceBits(), total, maxBits)
	case l.TimeBits() < 1:
		return fmt.Errorf("%w: no bits of time", ErrLayout)
	case l.TimeBits()+bits.Len64(uint64(unit-1)) > maxSpan:
		return fmt.Errorf("%w: %d bits of time in units of %d ms are over a million years: use fewer", ErrLayout,
			l.TimeBits(), unit)
	case l.SIDBits() > maxSIDBits:
		return fmt.Errorf("%w: %d bits of sid: at most %d", ErrLayout, l.SIDBits(), maxSIDBits)
	case l.SequenceBits() < 1 || l.SequenceBits() > maxSequenceBits:
		return fmt.Errorf("%w: %d bits of sequence: use 1 to %d", ErrLayout, l.SequenceBits(), maxSequenceBits)
	case l.Start() > 0 && (l.Random() || l.Start() > 1<<l.SequenceBits()):
		return fmt.Errorf("%w: start %d: it is for sequences that count, and at most %d",
			ErrLayout, l.Start(), 1<<l.SequenceBits())
	}
	return nil
}

// part returns n bits of l.
func (l Layout) part(at, n uint8) int { return int(l >> (at & 63) & (1<<(n&63) - 1)) }

// known is a quick check against the zero Layout.
func (l Layout) known() bool { return l&(1<<16-1)<<unitAt != 0 }

// Number returns the number of a built-in layout, 1 and up, or 0.
func (l Layout) Number() int { return l.part(numberAt, 8) }

// Unit returns the unit of time, in milliseconds.
func (l Layout) Unit() int64 { return int64(l.part(unitAt, 16)) }

// TimeBits returns how many bits the time has, in units since the epoch. They are the
// highest.
func (l Layout) TimeBits() int { return l.part(timeAt, 6) }

// SIDBits returns how many bits the sid has; 0: there is one holder.
func (l Layout) SIDBits() int { return l.part(sidAt, 6) }

// SequenceBits returns how many bits distinguish the IDs of one sid and unit of time.
func (l Layout) SequenceBits() int { return l.part(seqAt, 6) }

// SIDFirst reports whether the sid lies above the sequence, as Twitter has it. Then
// IDs of one sid are consecutive integers within a unit, and no block crosses units.
// Else the sequence lies above the sid: time and sequence count as one.
func (l Layout) SIDFirst() bool { return l&sidFirst != 0 }

// Random reports whether the sequence is hard to predict: it starts at random in each
// unit and grows by random steps. It is then called entropy. Else it counts.
func (l Layout) Random() bool { return l&random != 0 }

// Start returns the number below which the first sequence of a unit is drawn, in
// a layout that counts; 0: it is always 0.
func (l Layout) Start() int { return l.part(startAt, 16) }

// LowBits returns how many bits are below the time.
func (l Layout) LowBits() int { return l.SIDBits() + l.SequenceBits() }

// Holders returns how many sids there are, 0 to Holders−1.
func (l Layout) Holders() int { return 1 << l.SIDBits() }

// Stride returns the distance between two IDs of one sid whose sequences follow
// each other.
func (l Layout) Stride() int64 {
	if l.SIDFirst() {
		return 1
	}
	return 1 << l.SIDBits()
}

// Timestamp returns the time of id in units since the epoch.
func (l Layout) Timestamp(id ID) int64 { return int64(id) >> l.LowBits() }

// MaxTimestamp returns the largest timestamp, in units since the epoch.
func (l Layout) MaxTimestamp() int64 { return 1<<l.TimeBits() - 1 }

// End returns how many milliseconds after the epoch a layout ends: no ID has that
// time or a later one.
func (l Layout) End() int64 { return l.Unit() << l.TimeBits() }

// Safe reports whether each ID is an integer that a float64 holds exactly, as
// JSON numbers in JavaScript are.
func (l Layout) Safe() bool { return l.known() && l.TimeBits()+l.LowBits() <= 53 }

// ByNumber returns the built-in layout of a number that Number gave, else ErrLayout.
func ByNumber(n int) (Layout, error) {
	if n < 1 || n > len(builtins) {
		return 0, fmt.Errorf("%w %d", ErrLayout, n)
	}
	return builtins[n-1].layout, nil
}

// Epoch returns the epoch of the layout's own system in Unix milliseconds, and
// DefaultEpoch for a custom layout.
func (l Layout) Epoch() int64 {
	if n := l.Number(); n > 0 && n <= len(builtins) {
		return builtins[n-1].epoch
	}
	return DefaultEpoch
}

// The two values of order=.
const (
	orderSID  = "time-sid-seq"
	orderSeq  = "time-seq-sid"
	maxLayout = 200 // bytes of a text
)

// String returns the layout as ParseLayout reads it: the name of a built-in one,
// in lower case, or its bits, such as 41/10/12,order=time-sid-seq,unit=1ms.
func (l Layout) String() string {
	switch n := l.Number(); {
	case n > 0 && n <= len(builtins):
		return builtins[n-1].name
	case !l.known():
		return "no layout"
	}
	order, second, third := orderSID, l.SIDBits(), l.SequenceBits()
	if !l.SIDFirst() {
		order, second, third = orderSeq, third, second
	}
	s := fmt.Sprintf("%d/%d/%d,order=%s,unit=%dms", l.TimeBits(), second, third, order, l.Unit())
	if l.Random() {
		s += ",steps=random"
	}
	if l.Start() > 0 {
		s += fmt.Sprintf(",start=%d", l.Start())
	}
	return s
}

// ParseLayout returns the layout written in s: the name of a built-in one, or
// its bits from the highest down in the order that order= names, by slashes, and
// any of these, by commas:
//
//	order=time-sid-seq   or time-seq-sid; the first is the default
//	unit=1ms             of time; the default
//	steps=count          or random; the first is the default
//	start=0              the first sequence of a unit is random below it; only with steps=count
//
// It returns ErrLayout, with what to change.
func ParseLayout(s string) (Layout, error) {
	f, own, err := parseFormat(s)
	if err == nil && own {
		return 0, fmt.Errorf("%w %.60q: it names an epoch", ErrLayout, s)
	}
	return f.Layout, err
}

// ParseFormat returns the format written in s: a layout as ParseLayout reads it,
// and epoch= with a date, an RFC 3339 time or Unix milliseconds. Without an epoch
// it is the layout's own (Layout.Epoch). It returns ErrLayout, with what to change.
func ParseFormat(s string) (Format, error) {
	f, _, err := parseFormat(s)
	return f, err
}

func parseFormat(s string) (f Format, ownEpoch bool, err error) {
	fail := func(format string, args ...any) (Format, bool, error) {
		return Format{}, false, fmt.Errorf("%w %.60q: %s", ErrLayout, s, fmt.Sprintf(format, args...))
	}
	if len(s) > maxLayout {
		return fail("longer than %d bytes", maxLayout)
	}
	parts := strings.Split(s, ",")
	l, named := layoutNamed(parts[0])
	if !named {
		if l, err = parseBits(parts[0]); err != nil {
			return fail("%v", err)
		}
	}
	f = Format{Layout: l, Epoch: l.Epoch()}
	seen := map[string]bool{}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		if seen[key] {
			return fail("%s= stands twice", key)
		}
		seen[key] = true
		switch {
		case key == "epoch":
			if f.Epoch, err = parseEpoch(value); err != nil {
				return fail("%v", err)
			}
			ownEpoch = true
		case named:
			return fail("%q: of a layout with a name only epoch= can be set", part)
		default:
			if err := f.Layout.set(key, value); err != nil {
				return fail("%v", err)
			}
		}
	}
	if err := f.Layout.Validate(); err != nil {
		return Format{}, false, err
	}
	return f, ownEpoch, nil
}

// layoutNamed returns the built-in layout of a name.
func layoutNamed(name string) (Layout, bool) {
	for _, b := range builtins {
		if b.name == name {
			return b.layout, true
		}
	}
	return 0, false
}

// parseBits reads three numbers of bits: a layout in the default order.
func parseBits(s string) (Layout, error) {
	fields := strings.Split(s, "/")
	if len(fields) != 3 {
		return 0, fmt.Errorf("it is none of %s, and not three numbers of bits such as 41/10/12",
			strings.Join(Layouts(), ", "))
	}
	var n [3]Layout
	for i, f := range fields {
		v, err := strconv.ParseUint(f, 10, 8)
		if err != nil || v > maxBits {
			return 0, fmt.Errorf("%q is not a number of bits, 0 to %d", f, maxBits)
		}
		n[i] = Layout(v)
	}
	return ms | n[0]<<timeAt | n[1]<<sidAt | n[2]<<seqAt | sidFirst, nil
}

// set applies one of the settings behind the bits.
func (l *Layout) set(key, value string) error {
	switch {
	case key == "order" && value == orderSID, key == "steps" && value == "count":
	case key == "order" && value == orderSeq:
		const fields = 1<<timeAt - 1
		*l = *l&^(fields|sidFirst) | Layout(l.SequenceBits())<<sidAt | Layout(l.SIDBits())<<seqAt
	case key == "steps" && value == "random":
		*l |= random
	case key == "order":
		return fmt.Errorf("order=%s: it must be %s or %s", value, orderSID, orderSeq)
	case key == "steps":
		return fmt.Errorf("steps=%s: it must be count or random", value)
	case key == "unit":
		d, err := time.ParseDuration(value)
		if err != nil || d%time.Millisecond != 0 || d < 0 || d > maxUnit*time.Millisecond {
			return fmt.Errorf("unit=%s: it must be whole milliseconds up to a minute, such as 10ms", value)
		}
		*l = *l&^((1<<16-1)<<unitAt) | Layout(d/time.Millisecond)<<unitAt
	case key == "start":
		v, err := strconv.ParseUint(value, 10, 16)
		if err != nil {
			return fmt.Errorf("start=%s: it must be a number up to %d", value, 1<<16-1)
		}
		*l |= Layout(v) << startAt
	default:
		return fmt.Errorf("%q is not a setting of layouts: use order, unit, steps, start or epoch", key)
	}
	return nil
}

// parseEpoch reads a time in Unix milliseconds, as a date or by RFC 3339.
func parseEpoch(s string) (int64, error) {
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil && ms >= -maxEpoch && ms <= maxEpoch {
		return ms, nil
	}
	for _, form := range []string{time.RFC3339Nano, time.DateOnly} {
		if t, err := time.Parse(form, s); err == nil && t.Nanosecond()%int(time.Millisecond) == 0 {
			return t.UnixMilli(), nil
		}
	}
	return 0, fmt.Errorf("epoch=%s: it must be a date, a time such as 2024-01-01T00:00:00Z, or Unix milliseconds", s)
}

// AppendText appends what String returns to b. It returns ErrLayout for a layout
// that Validate refuses, and b unchanged.
func (l Layout) AppendText(b []byte) ([]byte, error) {
	if err := l.Validate(); err != nil {
		return b, err
	}
	return append(b, l.String()...), nil
}

// MarshalText returns what String returns. It returns ErrLayout for a layout that
// Validate refuses.
func (l Layout) MarshalText() ([]byte, error) { return l.AppendText(nil) }

// UnmarshalText sets l as ParseLayout reads b. After an error l is unchanged.
func (l *Layout) UnmarshalText(b []byte) error {
	v, err := ParseLayout(string(b))
	if err != nil {
		return err
	}
	*l = v
	return nil
}
