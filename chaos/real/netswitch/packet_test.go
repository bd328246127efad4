package netswitch

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// datagram returns an IPv4 packet of UDP or TCP with a right checksum.
func datagram(proto Proto, from, to uint16, content string) []byte {
	size := map[Proto]int{UDP: 8, TCP: 20}[proto]
	b := make([]byte, 20+size+len(content))
	b[0], b[8], b[9] = 0x45, 64, byte(proto)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], []byte{10, 77, 0, 1})
	copy(b[16:], []byte{10, 77, 0, 2})
	binary.BigEndian.PutUint16(b[20:], from)
	binary.BigEndian.PutUint16(b[22:], to)
	if proto == UDP {
		binary.BigEndian.PutUint16(b[24:], uint16(8+len(content)))
	} else {
		b[32] = 5 << 4
	}
	copy(b[20+size:], content)
	p, _ := parse(b)
	p.sum()
	return b
}

// sound is what a receiving kernel computes: the sum over all, checksum included.
func sound(b []byte) bool {
	sum := uint32(b[9]) + uint32(len(b)-20)
	for i := 12; i < len(b); i += 2 {
		if i+1 < len(b) {
			sum += uint32(b[i])<<8 | uint32(b[i+1])
		} else {
			sum += uint32(b[i]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum == 0xffff
}

func TestParse(t *testing.T) {
	p, ok := parse(datagram(UDP, 7946, 53, "hello"))
	if !ok || p.proto != UDP || p.from != 7946 || p.to != 53 || string(p.data[p.payload:]) != "hello" || p.dst != [4]byte{10, 77, 0, 2} || !p.whole {
		t.Errorf("got %+v, %t", p, ok)
	}
	p, ok = parse(datagram(TCP, 1, 2379, ""))
	if !ok || p.proto != TCP || p.to != 2379 || p.payload != len(p.data) {
		t.Errorf("got %+v, %t", p, ok)
	}
	later := datagram(UDP, 7946, 53, "hello")
	binary.BigEndian.PutUint16(later[6:], 100)
	if p, ok := parse(later); !ok || p.whole || p.from != 0 || (Match{Ports: []uint16{53}}).admits(p) || !(Match{Proto: UDP}).admits(p) {
		t.Errorf("a later fragment: %+v, %t", p, ok)
	}
	whole := datagram(UDP, 1, 2, "hello")
	for n := range len(whole) {
		if _, ok := parse(whole[:n]); ok {
			t.Errorf("%d bytes of %d are a packet", n, len(whole))
		}
	}
	six := bytes.Clone(whole)
	six[0] = 0x65
	if _, ok := parse(six); ok {
		t.Error("IPv6 is a packet")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(datagram(UDP, 1, 2, "hello"))
	f.Add(datagram(TCP, 1, 2, "hello"))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, ok := parse(data)
		if !ok {
			return
		}
		r := rand.New(rand.NewPCG(1, 1))
		p.corrupt(r)
		p.forge(r)
	})
}

func TestMatch(t *testing.T) {
	gossip, _ := parse(datagram(UDP, 7946, 7946, "x"))
	answer, _ := parse(datagram(TCP, 2379, 40000, "x"))
	for _, tc := range []struct {
		m              Match
		gossip, answer bool
	}{
		{Match{}, true, true},
		{Match{Proto: UDP}, true, false},
		{Match{Ports: []uint16{2379}}, false, true},
		{Match{Ports: []uint16{40000, 7946}}, true, true},
		{Match{Proto: UDP, Ports: []uint16{2379}}, false, false},
	} {
		if tc.m.admits(gossip) != tc.gossip || tc.m.admits(answer) != tc.answer {
			t.Errorf("%+v: %t, %t", tc.m, tc.m.admits(gossip), tc.m.admits(answer))
		}
	}
}

func TestForgeIsSound(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, proto := range []Proto{UDP, TCP} {
		for _, content := range []string{"x", "xy", "some words", "an odd number of them"} {
			for range 200 {
				before := datagram(proto, 1, 2, content)
				if !sound(before) {
					t.Fatalf("the checksum of %q is wrong", content)
				}
				after := bytes.Clone(before)
				p, _ := parse(after)
				if !p.forge(r) {
					t.Fatal("not forged")
				}
				if !sound(after) || bytes.Equal(before[p.payload:], after[p.payload:]) || !bytes.Equal(before[:24], after[:24]) {
					t.Fatalf("% x became % x", before, after)
				}
				p, _ = parse(after)
				p.corrupt(r)
				if sound(after) && (proto != UDP || binary.BigEndian.Uint16(after[26:]) != 0) {
					t.Fatalf("corrupted, and sound: % x", after)
				}
			}
		}
		empty, _ := parse(datagram(proto, 1, 2, ""))
		if empty.forge(r) {
			t.Error("forged a packet without content")
		}
	}
}

// The luck of one wire is its own, and the same for the same seed.
func TestSeed(t *testing.T) {
	luck := func(seed uint64, from, to int) (out []fate) {
		w := newWire(seed, from, to)
		w.faults.Store(&[]*Fault{{effect: Effect{Drop: .3, Duplicate: .3, Jitter: 1e6}}})
		p, _ := parse(datagram(UDP, 1, 2, "x"))
		for range 100 {
			out = append(out, w.meet(p))
		}
		return out
	}
	equal := func(a, b []fate) bool {
		for i := range a {
			if a[i] != b[i] {
				return false
			}
		}
		return true
	}
	if !equal(luck(1, 2, 3), luck(1, 2, 3)) {
		t.Error("the same seed gives another luck")
	}
	if equal(luck(1, 2, 3), luck(1, 3, 2)) || equal(luck(1, 2, 3), luck(2, 2, 3)) {
		t.Error("another wire or seed gives the same luck")
	}
}

func TestValidate(t *testing.T) {
	for _, e := range []Effect{{Drop: -.1}, {Forge: 1.1}, {Delay: -1}, {Jitter: 1e18}} {
		if e.Validate() == nil {
			t.Errorf("%+v is taken", e)
		}
	}
	if err := Cut.Validate(); err != nil {
		t.Error(err)
	}
}
