package keeper_test

import (
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/lease"
)

// TestWatch: whoever waits on the channel sees each phase that lasts, is woken for
// changes alone, and is not woken again after the last one.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := initialized(t)
		b := newBench("n1", mem, bubbleClock{time.Now()}, 30*time.Second)
		before, changed := b.keeper.Watch()
		if before.Phase != lease.Connecting {
			t.Errorf("before Run: phase %v, want connecting", before.Phase)
		}
		select {
		case <-changed:
			t.Error("the channel is closed before anything changed")
		default:
		}
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				held, last := false, before
				for last.Phase != lease.Stopped {
					now, changed := b.keeper.Watch()
					if reflect.DeepEqual(now, last) {
						<-changed
						if now, _ = b.keeper.Watch(); reflect.DeepEqual(now, last) {
							t.Errorf("woken without a change: %+v", now)
						}
					}
					last, held = now, held || now.Held
				}
				if !held {
					t.Error("no status with a sid held was seen")
				}
			})
		}
		fatal.If(t, b.run(func() { pass(mem, 10*time.Second) }))
		all.Wait()
		last, changed := b.keeper.Watch()
		if last.Phase != lease.Stopped {
			t.Errorf("after Run: phase %v, want stopped", last.Phase)
		}
		select {
		case <-changed:
			t.Error("the channel of the last status is closed")
		default:
		}
	})
}

// TestWatchIdle: passes of the loop that change nothing wake nobody.
func TestWatchIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &hanging{Store: initialized(t)}
		store.set(true)
		b := newBench("n1", store, bubbleClock{time.Now()}, 30*time.Second)
		err := b.run(func() {
			synctest.Wait()
			_, changed := b.keeper.Watch()
			ticked := b.keeper.Ticked()
			time.Sleep(900 * time.Millisecond) // the call to the store fails after 1 s
			b.keeper.SetGate(lease.Gate{Open: true})
			synctest.Wait()
			if b.keeper.Ticked() == ticked {
				t.Fatal("the loop made no pass")
			}
			select {
			case <-changed:
				t.Error("woken without a change")
			default:
			}
		})
		fatal.If(t, err)
	})
}
