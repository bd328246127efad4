package cluster

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

var someMeasured = measured{Instance: anInstance, Nonce: 7, Clocks: []measuredClock{
	{Prefix: 0xfffffffe, Fresh: true, RTT: maxSentRTT, Offset: -maxSentOffset, Error: maxSentError},
	{Prefix: 1, RTT: 310, Offset: 1_000_250, Error: 155},
}}

func TestMeasuredCodec(t *testing.T) {
	for _, want := range []measured{someMeasured, {Instance: anInstance, Nonce: 8}} {
		got, err := decode(appendMeasured(nil, want))
		if diff := cmp.Diff(any(want), got); err != nil || diff != "" {
			t.Errorf("%v\n%s", err, diff)
		}
	}
	if got, err := decode(appendAskMeasured(nil, askMeasured(aPing))); err != nil || got != askMeasured(aPing) {
		t.Errorf("%+v, %v", got, err)
	}
	whole := appendMeasured(nil, someMeasured)
	for n := range whole {
		if _, err := decode(whole[:n]); n != measuredHead && n != measuredHead+measuredSize && !errors.Is(err, errMalformed) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	most := measured{Clocks: make([]measuredClock, MaxMeasured+1)}
	b := appendMeasured(nil, most)
	if got, err := decode(b); err != nil || len(got.(measured).Clocks) != MaxMeasured || len(b) > maxMessage {
		t.Errorf("%d bytes: %v", len(b), err)
	}
	if _, err := decode(append(b, make([]byte, measuredSize)...)); !errors.Is(err, errMalformed) {
		t.Errorf("more than %d clocks: %v", MaxMeasured, err)
	}
}

// TestMeasurementsAreRounded: what is shown is never surer than what was measured, and what does
// not fit is at the end of the range.
func TestMeasurementsAreRounded(t *testing.T) {
	for name, tc := range map[string]struct{ is, want Measurement }{
		"as it is": {
			Measurement{Fresh: true, Offset: -time.Second, Error: 20 * time.Microsecond, RTT: time.Millisecond},
			Measurement{Fresh: true, Offset: -time.Second, Error: 20 * time.Microsecond, RTT: time.Millisecond},
		},
		"rounded": {
			Measurement{Offset: 1999, Error: 1001, RTT: 1999},
			Measurement{Offset: 1000, Error: 2000, RTT: 1000},
		},
		"far ahead": {
			Measurement{Offset: math.MaxInt64, Error: time.Hour, RTT: math.MaxInt64},
			Measurement{Offset: maxSentOffset * time.Microsecond, Error: maxSentError * time.Microsecond, RTT: maxSentRTT * time.Microsecond},
		},
		"far behind": {
			Measurement{Offset: math.MinInt64},
			Measurement{Offset: -maxSentOffset * time.Microsecond},
		},
	} {
		tc.is.Instance, tc.want.Instance = anInstance.String(), anInstance.String()
		sent, ok := tc.is.sent()
		got, err := decode(appendMeasured(nil, measured{Clocks: []measuredClock{sent}}))
		if !ok || err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, got.(measured).Clocks[0].measurement(tc.is.Instance)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
	if _, ok := (Measurement{Instance: "etcd"}).sent(); ok {
		t.Error("what is no UUID is sent")
	}
}

// TestTakeMeasured: measurements count once, if they were asked for, of whom they were asked, and
// in time.
func TestTakeMeasured(t *testing.T) {
	other := uuid.New()
	table := aTable(anInstance, other)
	table.peers[anInstance].measured.nonce = 7
	for _, tc := range []struct {
		name string
		m    measured
		came int64
		want fault
	}{
		{"of nobody", measured{Instance: uuid.New(), Nonce: 7}, 1, notMember},
		{"not asked for", measured{Instance: other, Nonce: 7}, 1, unknown},
		{"without a nonce", measured{Instance: other}, 1, unknown},
		{"late", someMeasured, int64(maxRoundTrip) + 1, stale},
		{"in time", someMeasured, 5, none},
		{"again", someMeasured, 6, unknown},
	} {
		if got := table.takeMeasured(tc.m, tc.came); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, faultNames[got], faultNames[tc.want])
		}
	}
	if p := table.peers[anInstance]; len(p.clocks) != 2 || p.clocksAt != 5 || table.peers[other].clocks != nil {
		t.Errorf("%+v", p)
	}
}

// TestMeasuredNames: measurements are of registered processes and of this one. A prefix that two
// of them share is of neither.
func TestMeasuredNames(t *testing.T) {
	self := uuid.MustParse("00000001-9b1d-4d7e-8a35-0c4f2b7d9e11")
	one, two := uuid.MustParse("00000002-9b1d-4d7e-8a35-0c4f2b7d9e11"), uuid.MustParse("00000002-0000-4d7e-8a35-0c4f2b7d9e11")
	c := &Cluster{cfg: Config{Local: still{}}, instance: self, table: aTable(anInstance, one, two)}
	for _, prefix := range []uint32{1, 2, 3, prefixOf(anInstance)} {
		c.table.peers[anInstance].clocks = append(c.table.peers[anInstance].clocks, measuredClock{Prefix: prefix})
	}
	got := c.Measured()
	want := map[string]PeerMeasured{anInstance.String(): {
		Clocks: []Measurement{{Instance: self.String()}, {Instance: anInstance.String()}},
		Age:    1,
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
