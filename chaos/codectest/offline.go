package codectest

import (
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
)

// An Offline makes IDs in its own process.
type Offline[I any] interface {
	New() (I, error)
	Next() (I, error)
	At(ms int64) (I, error)
	NextAt(ms int64) (I, error)
}

// Seeded is a source of random bytes that repeats itself in every run.
func Seeded(n byte) io.Reader { return rand.NewChaCha8([32]byte{n}) }

// DefaultSources: without a clock and a source of its own, o has the machine's time and
// random bits that differ. It returns the last ID of the series.
func (k Kind[I, R]) DefaultSources(t *testing.T, o Offline[I], at int64, unix func(I) int64) I {
	before := time.Now().UnixMilli()
	a, err1 := o.New()
	b, err2 := o.Next()
	after := time.Now().UnixMilli()
	fatal.If(t, errors.Join(err1, err2))
	for _, id := range []I{a, b} {
		if ms := unix(id); ms < before || ms > after {
			t.Errorf("%v is of %d, not within %d and %d", id, ms, before, after)
		}
	}
	seen := map[I]bool{}
	for range 100 {
		id, err := o.At(at)
		fatal.If(t, err)
		if unix(id) != at {
			t.Errorf("at %d: %v", at, id)
		}
		seen[id] = true
	}
	if len(seen) < 90 { // 0.15 equal pairs are expected of 15 bits
		t.Errorf("%d different IDs of 100", len(seen))
	}
	return b
}

// Concurrent: goroutines share a generator: no ID twice, each sees its own rise, and the
// clock, which this one keeps without a lock, is read under the generator's. A millisecond
// may be full. It returns the last ID and the time and number of the clock's reads.
func (k Kind[I, R]) Concurrent(t *testing.T, t0 int64, full error,
	start func(now func() int64, entropy io.Reader) Offline[I]) (last I, ms, reads int64) {
	var busy atomic.Bool
	o := start(func() int64 {
		if busy.Swap(true) {
			t.Error("two goroutines read the clock at once")
		}
		runtime.Gosched() // Outside the lock, another goroutine now reads too.
		busy.Store(false)
		reads++
		return t0 + reads/50
	}, Seeded(2))
	const each = 2000
	var wg sync.WaitGroup
	made := make([][]I, 8)
	for g := range made {
		wg.Go(func() {
			for len(made[g]) < each {
				id, err := o.Next()
				switch {
				case errors.Is(err, full): // the clock goes on
				case err != nil:
					t.Error(err) // a regression, if the clock were read outside
					return
				default:
					made[g] = append(made[g], id)
				}
			}
		})
	}
	wg.Wait()
	for g := range made {
		if !slices.IsSortedFunc(made[g], k.Compare) {
			t.Errorf("goroutine %d saw IDs go down", g)
		}
	}
	all := slices.Concat(made...)
	slices.SortFunc(all, k.Compare)
	last = all[len(all)-1]
	if n := len(slices.Compact(all)); n != len(made)*each {
		t.Errorf("%d different IDs of %d", n, len(made)*each)
	}
	return last, t0 + reads/50, reads
}

// BitsToggle: every random bit is 1 about as often as 0, in At and where a millisecond of
// the series begins. random checks the rest of an ID that was made at ms.
func (k Kind[I, R]) BitsToggle(t *testing.T, o Offline[I], t0 int64, bits int,
	random func(t *testing.T, id I, ms int64) []byte) {
	const n = 4000 // standard deviation of a count: 31.6
	ones := [2][]int{make([]int, bits), make([]int, bits)}
	for i := range int64(n) {
		a, err1 := o.At(t0)
		b, err2 := o.NextAt(t0 + i)
		fatal.If(t, errors.Join(err1, err2))
		for k, r := range [][]byte{random(t, a, t0), random(t, b, t0+i)} {
			for bit := range bits {
				ones[k][bit] += int(r[len(r)-1-bit/8] >> (bit % 8) & 1)
			}
		}
	}
	for k := range ones {
		for bit, count := range ones[k] {
			if count < n/2-160 || count > n/2+160 { // 5 standard deviations
				t.Errorf("bit %d is set in %d of %d (At: 0, NextAt: 1; here %d)", bit, count, n, k)
			}
		}
	}
}
