package status

import (
	"bytes"
	"reflect"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/node"
)

// aSelf is a node that says something of everything.
var aSelf = Self{
	Rate: 1_000_000, Lead: -3, Ceil: 1_769_904_000_000, Era: 3, Highest: 1_769_904_000_001, Refusing: node.ClockSkew, Now: 1_000_000,
	Work: Work{P50: 20, P99: 900, Write: 1500, Written: 1_000_000 - 700, Refused: map[string]int64{"CLOCK_SKEW": 7, "INVALID_COUNT": 1}},
}

// TestSaid: what a node says is what others show, with the time of its latest write by the clock of the node that was told.
// What is out of bounds is said as the bound.
func TestSaid(t *testing.T) {
	got, err := ParseSaid(aSelf.Say(), 3*time.Second, 2_000_000)
	want := Said{Report: aSelf.report(), Era: 3, Highest: 1_769_904_000_001}
	want.Age, want.Work.Written = 3000, 2_000_000-3000-700
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	if got, err := ParseSaid(Self{Now: 5}.Say(), 0, 9); err != nil || !reflect.DeepEqual(got, Said{}) {
		t.Errorf("of a node that did nothing yet: %+v, %v", got, err)
	}
	if b := (Self{Now: 5}).Say(); !bytes.Equal(b, make([]byte, saidSize)) {
		t.Errorf("of a node that did nothing yet: %x", b)
	}
	for reason := range node.Reason(maxReasons) {
		b := Self{Refusing: reason}.Say()
		b[5*8+1+4*reason] = 1
		got, err := ParseSaid(b, 0, 9)
		if known := reason > 0 && int(reason) < node.NumReasons; err != nil || got.Refusing != reason || (len(got.Work.Refused) == 1) != known {
			t.Errorf("reason %d: %+v, %v", reason, got, err)
		}
	}
	far := Self{Rate: 1 << 62, Lead: -1 << 62, Ceil: -1, Era: 1 << 62, Highest: -1, Now: -5, Work: Work{P50: 1 << 40, P99: -1, Write: 1, Written: 1}}
	got, err = ParseSaid(far.Say(), 0, 9)
	if want := (Said{Report: Report{Rate: maxRate, Lead: -maxUnix, Work: Work{P50: maxCount, Write: 1, Written: 9}}, Era: maxEra}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for i, at := range []int{0, 8, 16, 24, 32} { // rate, lead, ceiling, era and highest
		b := aSelf.Say()
		if b[at] = 0x70; i == 1 {
			b[at] = 0x90
		}
		if _, err := ParseSaid(b, 0, 0); err == nil {
			t.Errorf("the number at %d is out of bounds, and is taken", at)
		}
	}
}

// FuzzParseSaid: no bytes end the program, and what is taken can be said again.
func FuzzParseSaid(f *testing.F) {
	f.Add(aSelf.Say())
	f.Add(aSelf.Say()[1:])
	f.Add(append(aSelf.Say(), 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		said, err := ParseSaid(b, 0, 1<<40)
		if err == nil && len(b) != saidSize {
			t.Fatalf("%d bytes are taken", len(b))
		}
		if err != nil {
			return
		}
		if again, err := ParseSaid(said.bytes(1<<40), 0, 1<<40); err != nil || !reflect.DeepEqual(again, said) {
			t.Fatalf("%+v is said as %+v, %v", said, again, err)
		}
	})
}
