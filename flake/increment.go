package flake

import (
	"fmt"
	"io"
)

// maxZeroDraws bounds how often Increment draws again after a zero. A working
// source yields 32 zero bytes in a row with probability 2^−256, and 32 zeros of
// 3 bits (layout fleet) with 2^−96.
const maxZeroDraws = 32

// fleetStep masks a draw in the layout fleet: steps are 1 to 7. With whole bytes
// its 10 bits would be used up after 8 IDs of a millisecond.
const fleetStep = 7

// InitialSize returns how many bytes a millisecond's first draw has: as many as
// the entropy field touches, so 2 for scalable and fleet and 3 for standalone.
// It is 0 for an unknown layout.
func (l Layout) InitialSize() int { return (l.EntropyBits() + 7) / 8 }

// MaxEntropySize returns how many bytes the draw of a step may have: 2 for
// scalable, 3 for standalone and 1 for fleet. It is 0 for an unknown layout.
//
// Source: Ulid-Flake reference implementations, range of the entropy size;
// fleet's is ours.
func (l Layout) MaxEntropySize() int {
	if l == Fleet {
		return 1
	}
	return l.InitialSize()
}

// InitialEntropy returns the entropy of a millisecond's first ID, made of
// InitialSize random bytes, big endian: their low bits, as many as the field
// has. It returns ErrLayout, or ErrEntropySize for another number of bytes.
//
// Source: Ulid-Flake reference implementations.
func (f Format) InitialEntropy(random []byte) (uint32, error) {
	if !f.Layout.known() {
		return 0, fmt.Errorf("%w %d", ErrLayout, uint8(f.Layout))
	}
	if len(random) != f.Layout.InitialSize() {
		return 0, fmt.Errorf("%w: %d bytes, layout %v takes %d", ErrEntropySize, len(random), f.Layout, f.Layout.InitialSize())
	}
	return f.initialEntropy(random), nil
}

func (f Format) initialEntropy(random []byte) uint32 {
	return bigEndian(random) & (1<<f.Layout.EntropyBits() - 1)
}

// Increment returns the ID that follows prev in the same millisecond and with
// the same sid: its entropy is larger by a number of size bytes read from draw.
// A zero is thrown away and drawn again, so the ID is always greater. In the
// layout fleet the low 3 bits of the byte are the number.
//
// size is 1 to MaxEntropySize bytes. Increment returns ErrLayout,
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
	if !f.Layout.known() {
		return 0, fmt.Errorf("%w %d", ErrLayout, uint8(f.Layout))
	}
	if size < 1 || size > f.Layout.MaxEntropySize() {
		return 0, fmt.Errorf("%w: %d, layout %v takes 1 to %d", ErrEntropySize, size, f.Layout, f.Layout.MaxEntropySize())
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
	if f.Entropy(prev)+step > 1<<f.Layout.EntropyBits()-1 {
		return 0, fmt.Errorf("%w: %d + %d", ErrMonotonicOverflow, f.Entropy(prev), step)
	}
	return prev + ID(step)<<f.Layout.SIDBits(), nil
}

// drawStep reads big-endian numbers of len(b) bytes from r until one is not
// zero; b is scratch.
func (f Format) drawStep(r io.Reader, b []byte) (uint32, error) {
	for range maxZeroDraws {
		if _, err := io.ReadFull(r, b); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrEntropySource, err)
		}
		v := bigEndian(b)
		if f.Layout == Fleet {
			v &= fleetStep
		}
		if v != 0 {
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
