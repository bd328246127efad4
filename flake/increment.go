package flake

import (
	"fmt"
	"io"
)

// maxZeroDraws bounds how often Increment draws again after a zero. A working
// source yields 16 zero bytes in a row with probability 2^−128.
const maxZeroDraws = 16

// MaxEntropySize returns how many bytes one draw may have: as many as the
// entropy field touches, so 2 for scalable and fleet and 3 for standalone.
//
// Source: Ulid-Flake reference implementations, range of the entropy size.
func (l Layout) MaxEntropySize() int { return (l.EntropyBits() + 7) / 8 }

// InitialEntropy returns the entropy of a millisecond's first ID, made of
// MaxEntropySize random bytes, big endian: their low bits, as many as the field
// has. It returns ErrLayout, or ErrEntropySize for another number of bytes.
//
// Source: Ulid-Flake reference implementations.
func (f Format) InitialEntropy(random []byte) (uint32, error) {
	if !f.Layout.known() {
		return 0, fmt.Errorf("%w %d", ErrLayout, uint8(f.Layout))
	}
	if len(random) != f.Layout.MaxEntropySize() {
		return 0, fmt.Errorf("%w: %d bytes, layout %v takes %d", ErrEntropySize, len(random), f.Layout, f.Layout.MaxEntropySize())
	}
	return bigEndian(random) & (1<<f.Layout.EntropyBits() - 1), nil
}

// Increment returns the ID that follows prev in the same millisecond and with
// the same sid: its entropy is larger by a number of size bytes read from draw.
// A zero is thrown away and drawn again, so the ID is always greater.
//
// size is 1 to MaxEntropySize bytes. Increment returns ErrLayout,
// ErrEntropySize, ErrRange for a negative prev, ErrEntropySource if draw fails
// or yields nothing but zeros (joined with draw's own error), and
// ErrMonotonicOverflow if the entropy does not fit any more: wait for the next
// millisecond. The ID is then zero; what was read from draw is used up.
//
// This is the specification's generator for one process, for offline tools. It
// coordinates with nobody, and two processes that use it may make the same ID.
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
	step, err := drawStep(draw, size)
	if err != nil {
		return 0, err
	}
	if f.Entropy(prev)+step > 1<<f.Layout.EntropyBits()-1 {
		return 0, fmt.Errorf("%w: %d + %d", ErrMonotonicOverflow, f.Entropy(prev), step)
	}
	return prev + ID(step)<<f.Layout.SIDBits(), nil
}

// drawStep reads big-endian numbers of size bytes from r until one is not zero.
func drawStep(r io.Reader, size int) (uint32, error) {
	b := make([]byte, size)
	for range maxZeroDraws {
		if _, err := io.ReadFull(r, b); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrEntropySource, err)
		}
		if v := bigEndian(b); v != 0 {
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
