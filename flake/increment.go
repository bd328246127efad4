package flake

import (
	"fmt"
	"io"
)

// maxZeroDraws bounds how often Increment draws again after a zero. A working
// source yields 32 zero bytes in a row with probability 2^−256, and 32 zeros of
// 3 bits (layout fleet) with 2^−96.
const maxZeroDraws = 32

// smallEntropy is the width of an entropy field, in bits, below which a step has
// fewer bits than a byte: seven fewer than the field, so that a unit of time has
// room for some 200 IDs. With whole bytes the 10 bits of fleet would be used up after 8.
const smallEntropy = 15

// InitialSize returns how many bytes a random entropy has: as many as the field
// touches, so 2 for scalable and fleet and 3 for standalone.
func (l Layout) InitialSize() int { return (int(l.SequenceBits()) + 7) / 8 }

// MaxEntropySize returns how many bytes the draw of a step may have: 2 for
// scalable, 3 for standalone, 1 for fleet, and 0 for layouts that count.
//
// Source: Ulid-Flake reference implementations, range of the entropy size;
// that of small fields is ours.
func (l Layout) MaxEntropySize() int {
	switch {
	case !l.Random():
		return 0
	case l.SequenceBits() < smallEntropy:
		return 1
	}
	return l.InitialSize()
}

// MaxStep returns the largest step that size bytes draw, and 0 for size 0 and for
// layouts that count: their step is always 1. A size above MaxEntropySize counts as that.
func (l Layout) MaxStep(size int) uint32 {
	switch {
	case !l.Random() || size < 1:
		return 0
	case l.SequenceBits() < smallEntropy:
		return 1<<max(int(l.SequenceBits())-7, 1) - 1
	}
	return 1<<(8*min(size, l.MaxEntropySize())) - 1
}

// InitialEntropy returns an entropy made of InitialSize random bytes, big endian:
// their low bits, as many as the field has. It returns ErrLayout, or ErrEntropySize
// for another number of bytes.
//
// Source: Ulid-Flake reference implementations.
func (f Format) InitialEntropy(random []byte) (uint32, error) {
	if err := f.Layout.Validate(); err != nil {
		return 0, err
	}
	if len(random) != f.Layout.InitialSize() {
		return 0, fmt.Errorf("%w: %d bytes, layout %v takes %d",
			ErrEntropySize, len(random), f.Layout, f.Layout.InitialSize())
	}
	return f.initialEntropy(random), nil
}

func (f Format) initialEntropy(random []byte) uint32 {
	return bigEndian(random) & (1<<f.Layout.SequenceBits() - 1)
}

// Increment returns the ID that follows prev in the same millisecond and with
// the same sid: its entropy is larger by a number of size bytes read from draw.
// A zero is thrown away and drawn again, so the ID is always greater. In the
// layout fleet the low 3 bits of the byte are the number.
//
// size is 1 to MaxEntropySize bytes; in a layout that counts it is 0 and the step 1.
// Increment returns ErrLayout,
// ErrEntropySize, ErrRange for a negative prev, ErrEntropySource if draw fails
// or yields nothing but zeros (joined with draw's own error), and
// ErrMonotonicOverflow if the entropy does not fit any more: wait for the next
// millisecond. The ID is then zero; what was read from draw is used up.
//
// This is the specification's generator for one process, for offline tools. It
// does not coordinate: two processes that use it may make the same ID.
// Offline is a generator that keeps prev and the clock for its caller.
//
// Source: Ulid-Flake specification, "Monotonicity"; the sizes and the second
// draw are those of its implementations.
func (f Format) Increment(prev ID, size int, draw io.Reader) (ID, error) {
	if err := f.Layout.Validate(); err != nil {
		return 0, err
	}
	if most := f.Layout.MaxEntropySize(); size < min(1, most) || size > most {
		return 0, fmt.Errorf("%w: %d, layout %v takes %d to %d", ErrEntropySize, size, f.Layout, min(1, most), most)
	}
	if prev < 0 {
		return 0, negative(prev)
	}
	step, err := f.drawStep(draw, make([]byte, size))
	if err != nil {
		return 0, err
	}
	return f.advance(prev, step)
}

// advance returns prev with step added to its entropy, or ErrMonotonicOverflow.
func (f Format) advance(prev ID, step uint32) (ID, error) {
	if f.Entropy(prev)+step > 1<<f.Layout.SequenceBits()-1 {
		return 0, fmt.Errorf("%w: %d + %d", ErrMonotonicOverflow, f.Entropy(prev), step)
	}
	return prev + ID(step)<<f.Layout.entropyShift(), nil
}

// drawStep reads big-endian numbers of len(b) bytes from r until one is not
// zero; b is scratch. Without bytes the step is 1.
func (f Format) drawStep(r io.Reader, b []byte) (uint32, error) {
	if len(b) == 0 {
		return 1, nil
	}
	mask := f.Layout.MaxStep(len(b))
	for range maxZeroDraws {
		if _, err := io.ReadFull(r, b); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrEntropySource, err)
		}
		if v := bigEndian(b) & mask; v != 0 {
			return v, nil
		}
	}
	return 0, fmt.Errorf("%w: %d zeros in a row", ErrEntropySource, maxZeroDraws)
}

// bigEndian returns the number in at most 4 bytes.
func bigEndian(b []byte) uint32 {
	var v uint32
	for _, c := range b {
		v = v<<8 | uint32(c)
	}
	return v
}
