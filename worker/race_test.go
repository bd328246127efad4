package worker

import "testing"

// A time that an extension makes permissible just while Permit is asked for it is counted
// as used when Permit returns.
func TestPermitDuringExtension(t *testing.T) {
	const begin, extensions = 1_000_000, 2_000
	w := &Worker{unit: 1, lost: make(chan struct{}), demand: make(chan struct{}, 1)}
	w.notAfter.Store(begin)
	permitted := make(chan int64)
	go func() {
		defer close(permitted)
		for ms := int64(begin); ms < begin+extensions; {
			if w.Permit(ms) == nil {
				if used := w.used.Load(); used <= ms {
					t.Errorf("permitted %d, and used until %d", ms, used)
					return
				}
				ms++
			}
			select {
			case permitted <- ms:
			default:
			}
		}
	}()
	for to := int64(begin + 1); to <= begin+extensions; to++ {
		if _, asks := <-permitted; !asks { // it failed
			return
		}
		w.extend(to)
	}
	for range permitted { // until it has asked for all
	}
}
