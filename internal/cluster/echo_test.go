package cluster

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
)

var (
	anInstance = uuid.MustParse("6f1c2e0a-9b1d-4d7e-8a35-0c4f2b7d9e11")
	aPing      = ping{From: anInstance, Nonce: 0x0102030405060708, T1: 1_000_000_007}
	aPong      = pong{
		Instance: anInstance, Node: "allocator-3", Nonce: math.MaxUint64, T1: 5, Hold: 31 * time.Microsecond,
		Clocks: clock.Snapshot{
			Raw: 7_000_000_001, Issuing: 1_789_999_993_123_456_788, Wall: 1_789_999_995_999_999_999, Kernel: clock.Synchronized,
		},
		Status: agreement.Status{
			Verdict: clock.Skewed, SID: 31, Term: 12, Era: 2, Cluster: 0xcafe, Revision: 88_000, Ceiling: 1_790_000_030_000,
		},
	}
)

// edited returns aPong with a change.
func edited(f func(*pong)) pong {
	p := aPong
	f(&p)
	return p
}

// The bytes are a contract between releases: a change here needs a new version.
func TestMessagesOnTheWire(t *testing.T) {
	got := appendPing(nil, aPing)
	want := "\x01\x01" + string(anInstance[:]) + "\x01\x02\x03\x04\x05\x06\x07\x08" + "\x00\x00\x00\x00\x3b\x9a\xca\x07"
	if string(got) != want {
		t.Errorf("ping\ngot  %x\nwant %x", got, want)
	}
	got, err := appendPong(nil, edited(func(p *pong) {
		p.Node, p.Status.SID = "a", -1
		p.Clocks = clock.Snapshot{Raw: 2, Issuing: 1, Wall: -1, Kernel: clock.Unsynchronized}
	}))
	want = "\x01\x02" + string(anInstance[:]) + strings.Repeat("\xff", 8) + "\x00\x00\x00\x00\x00\x00\x00\x05" +
		"\x00\x00\x00\x00\x00\x00\x79\x18" + // hold
		"\x00\x00\x00\x00\x00\x00\x00\x02" + "\x00\x00\x00\x00\x00\x00\x00\x01" + strings.Repeat("\xff", 8) + // clocks
		"\x02" + "\x01" + "\xff\xff\xff\xff" + // kernel, verdict, sid
		"\x00\x00\x00\x00\x00\x00\x00\x0c" + "\x00\x00\x00\x00\x00\x00\x00\x02" + // term, era
		"\x00\x00\x00\x00\x00\x00\xca\xfe" + "\x00\x00\x00\x00\x00\x01\x57\xc0" + // cluster, revision
		"\x00\x00\x01\xa0\xc4\x50\xe1\x30" + "\x01a" // ceiling, node
	if err != nil || string(got) != want {
		t.Errorf("pong: %v\ngot  %x\nwant %x", err, got, want)
	}
}

func TestMessagesRoundTrip(t *testing.T) {
	for _, want := range []any{
		aPing, ping{}, ping{Nonce: 1, T1: maxRaw},
		aPong,
		pong{Node: "x"},
		edited(func(p *pong) { p.Status = agreement.Status{SID: -1} }),
		edited(func(p *pong) { p.Node = strings.Repeat("n", maxNode) }),
		edited(func(p *pong) { p.Hold = maxRoundTrip }),
		edited(func(p *pong) { p.Clocks = clock.Snapshot{Raw: maxRaw, Issuing: maxDelta, Wall: -maxDelta} }),
		edited(func(p *pong) { p.Clocks.Wall = -p.Clocks.Raw - 1 }), // 1969: a broken clock is reported, not hidden
		edited(func(p *pong) { p.Status.SID, p.Status.Ceiling = maxSID, maxCeiling }),
	} {
		var b []byte
		var err error
		switch m := want.(type) {
		case ping:
			b = appendPing(nil, m)
		case pong:
			b, err = appendPong(nil, m)
		}
		if err != nil || len(b) > maxMessage {
			t.Errorf("%+v: %d bytes, %v", want, len(b), err)
			continue
		}
		got, err := decode(b)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%+v: %v\n%s", want, err, diff)
		}
	}
}

// Whatever a sender may not say, neither its own side sends nor ours takes.
func TestPongRanges(t *testing.T) {
	for name, f := range map[string]func(*pong){
		"t1 negative":        func(p *pong) { p.T1 = -1 },
		"t1 too large":       func(p *pong) { p.T1 = maxRaw + 1 },
		"hold negative":      func(p *pong) { p.Hold = -1 },
		"hold over a second": func(p *pong) { p.Hold = maxRoundTrip + 1 },
		"raw negative":       func(p *pong) { p.Clocks.Raw = -1 },
		"raw too large":      func(p *pong) { p.Clocks.Raw = maxRaw + 1 },
		"issuing too far":    func(p *pong) { p.Clocks.Issuing = -maxDelta - 1 },
		"issuing too late":   func(p *pong) { p.Clocks.Issuing = maxDelta + 1 },
		"wall too far":       func(p *pong) { p.Clocks.Wall = math.MinInt64 },
		"kernel status":      func(p *pong) { p.Clocks.Kernel = clock.Unsynchronized + 1 },
		"verdict":            func(p *pong) { p.Status.Verdict = maxVerdict + 1 },
		"sid -2":             func(p *pong) { p.Status.SID = -2 },
		"sid too large":      func(p *pong) { p.Status.SID = maxSID + 1 },
		"term":               func(p *pong) { p.Status.Term = -1 },
		"era":                func(p *pong) { p.Status.Era = -1 },
		"revision":           func(p *pong) { p.Status.Revision = -1 },
		"revision too large": func(p *pong) { p.Status.Revision = maxRecord + 1 },
		"ceiling":            func(p *pong) { p.Status.Ceiling = -1 },
		"ceiling too far":    func(p *pong) { p.Status.Ceiling = maxCeiling + 1 },
		"no name":            func(p *pong) { p.Node = "" },
		"long name":          func(p *pong) { p.Node = strings.Repeat("n", maxNode+1) },
		"control in name":    func(p *pong) { p.Node = "a\nlevel=ERROR" },
		"not ASCII":          func(p *pong) { p.Node = "é" },
	} {
		p := edited(f)
		if b, err := appendPong(nil, p); !errors.Is(err, errMalformed) || len(b) != 0 {
			t.Errorf("%s: sent as %x, %v", name, b, err)
		}
		if err := p.check(); !errors.Is(err, errMalformed) {
			t.Errorf("%s: check: %v", name, err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	pingBytes := appendPing(nil, aPing)
	pongBytes, err := appendPong(nil, aPong)
	fatal.If(t, err)
	set := func(b []byte, at int, with ...byte) []byte {
		b = bytes.Clone(b)
		copy(b[at:], with)
		return b
	}
	for name, tc := range map[string]struct {
		b    []byte
		want error
	}{
		"nothing":             {nil, errMalformed},
		"version alone":       {[]byte{1}, errMalformed},
		"later version":       {set(pingBytes, 0, 2), errVersion},
		"later version alone": {[]byte{2}, errVersion},
		"version 0":           {set(pongBytes, 0, 0), errVersion},
		"another kind":        {set(pingBytes, 1, 7), errMalformed},
		"ping cut":            {pingBytes[:len(pingBytes)-1], errMalformed},
		"ping with a tail":    {append(bytes.Clone(pingBytes), 0), errMalformed},
		"ping as a pong":      {set(pingBytes, 1, kindPong), errMalformed},
		"pong as a ping":      {set(pongBytes, 1, kindPing), errMalformed},
		"pong cut":            {pongBytes[:len(pongBytes)-1], errMalformed},
		"pong with a tail":    {append(bytes.Clone(pongBytes), 'x'), errMalformed},
		"pong to the name":    {pongBytes[:pongMinimum], errMalformed},
		"name longer than it": {set(pongBytes, pongMinimum-1, 255), errMalformed},
		"ping t1 negative":    {set(pingBytes, pingSize-8, 0x80), errMalformed},
		"hold negative":       {set(pongBytes, pingSize, 0x80), errMalformed},
		"raw negative":        {set(pongBytes, pingSize+8, 0x80), errMalformed},
		"issuing minimum":     {set(pongBytes, pingSize+16, 0x80, 0, 0, 0, 0, 0, 0, 0), errMalformed},
		"issuing overflows":   {set(pongBytes, pingSize+16, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), errMalformed},
		"wall overflows":      {set(pongBytes, pingSize+24, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), errMalformed},
		"sid -2":              {set(pongBytes, pingSize+34, 0xff, 0xfe), errMalformed},
		"blank in the name":   {set(pongBytes, pongMinimum, ' '), errMalformed},
		"too long":            {make([]byte, maxMessage+1), errMalformed},
	} {
		got, err := decode(tc.b)
		if got != nil || !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, tc.want)
		}
	}
}

// A later version may send a kernel status that means nothing yet.
func TestDecodeIgnoresKernelStatus(t *testing.T) {
	b, err := appendPong(nil, aPong)
	fatal.If(t, err)
	b[pingSize+32] = 0xf0
	got, err := decode(b)
	want := edited(func(p *pong) { p.Clocks.Kernel = clock.SyncUnknown })
	if diff := cmp.Diff(any(want), got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func FuzzDecode(f *testing.F) {
	b, _ := appendPong(nil, aPong)
	f.Add(b)
	f.Add(appendPing(nil, aPing))
	f.Add(appendAsk(nil, ask(aPing)))
	f.Add(appendReport(nil, aReport))
	f.Add([]byte{echoVersion, kindPong})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		msg, err := decode(b)
		if !bytes.Equal(b, before) {
			t.Fatal("the message was changed")
		}
		switch m := msg.(type) {
		case nil:
			if !errors.Is(err, errVersion) && !errors.Is(err, errMalformed) {
				t.Fatalf("refused with %v", err)
			}
		case ping:
			if again := appendPing(nil, m); err != nil || !bytes.Equal(again, b) {
				t.Fatalf("%x is read as %+v, %v and written as %x", b, m, err, again)
			}
		case ask:
			if again := appendAsk(nil, m); err != nil || !bytes.Equal(again, b) {
				t.Fatalf("%x is read as %+v, %v and written as %x", b, m, err, again)
			}
		case report:
			if again := appendReport(nil, m); err != nil || !bytes.Equal(again, b) {
				t.Fatalf("%x is read as %+v, %v and written as %x", b, m, err, again)
			}
		case pong:
			again, err2 := appendPong(nil, m)
			if k := &b[pingSize+32]; int(*k) >= len(kernels) {
				*k = 0
			}
			if err != nil || err2 != nil || !bytes.Equal(again, b) {
				t.Fatalf("%x is read as %+v, %v and written as %x, %v", b, m, err, again, err2)
			}
		}
	})
}

func FuzzAnnouncement(f *testing.F) {
	f.Add(announcement{Pool: poolHash("p"), Instance: anInstance}.encode())
	f.Add(announcement{}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := decodeAnnouncement(b)
		if err != nil {
			if !errors.Is(err, ErrOtherVersion) && !errors.Is(err, errAnnouncement) {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if again := a.encode(); !bytes.Equal(again, b) {
			t.Fatalf("%x is read as %+v and written as %x", b, a, again)
		}
	})
}
