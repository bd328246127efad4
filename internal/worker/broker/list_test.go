package broker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// TestList: calls share reads of the space, and one that needs a fresh one gets a read that began
// after it asked.
func TestList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, reads := time.Now(), int64(0)
		l := list{
			load: func() (lease.View, error) {
				reads++
				v := lease.View{Revision: reads}
				time.Sleep(100 * time.Millisecond)
				return v, nil
			},
			now: func() clock.Mono { return clock.Mono(time.Since(began)) },
		}
		got := make(chan int64, 10)
		get := func(fresh bool) {
			go func() {
				v, err := l.get(t.Context(), fresh)
				if err != nil {
					t.Error(err)
				}
				got <- v.Revision
			}()
			synctest.Wait()
		}
		get(false)
		get(false) // shares the read under way
		get(true)  // needs the next
		get(true)
		time.Sleep(time.Second)
		sum := int64(0)
		for range 4 {
			sum += <-got
		}
		if sum != 1+1+2+2 || reads != 2 {
			t.Errorf("%d reads, revisions of %d in all", reads, sum)
		}
		get(false) // the last began 0.9 s ago
		if v := <-got; v != 2 || reads != 2 {
			t.Errorf("revision %d, %d reads", v, reads)
		}
		time.Sleep(100 * time.Millisecond)
		get(false)
		if v := <-got; v != 3 {
			t.Errorf("after %v: revision %d", listFresh, v)
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		if _, err := l.get(gone, true); err == nil {
			t.Error("a caller that left got a view")
		}
		time.Sleep(time.Second)
	})
}
