package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/devtest"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/examples/internal/rig"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// One replica is stopped and replaced, and one is killed, while callers create orders at
// whichever replica answers. Every order has an ID of its own.
func TestReplicas(t *testing.T) {
	c := rig.NewCluster(t)
	program := rig.Build(t, "orders")
	start := func(name string) (*proc.Process, string) {
		at := loopback.Address()
		p := devtest.Start(t, []string{
			"ETCD=" + c.Etcd, "NAME=" + name, "SIDS=10-12", "GOSSIP=127.0.0.1:0", "LISTEN=" + at, "DRAIN=500ms",
			"ALLOCATOR_WORKER_SID_RANGE=16-31",
		}, program)
		p.Answers(t, http.StatusOK, "http://"+at+"/readyz")
		return p, "http://" + at
	}
	var replicas []*proc.Process
	var mu sync.Mutex // guards the next three
	var urls []string
	all, sids := []flake.ID{}, map[flake.SID]int{}
	for i := range 3 {
		p, url := start(fmt.Sprintf("orders-%d", i))
		replicas, urls = append(replicas, p), append(urls, url)
	}
	done := make(chan struct{})
	var callers sync.WaitGroup
	for caller := range 4 {
		callers.Go(func() {
			for n := caller; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				mu.Lock()
				now := slices.Clone(urls)
				mu.Unlock()
				id, err := order(now[n%len(now)])
				for try := 1; err != nil && try < len(now); try++ { // as a load balancer does
					id, err = order(now[(n+try)%len(now)])
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				all = append(all, id)
				sids[flake.Default.SID(id)]++
				mu.Unlock()
			}
		})
	}
	more := func(replicas int) {
		t.Helper()
		mu.Lock()
		clear(sids)
		mu.Unlock()
		wait.Until(t, fmt.Sprintf("100 orders each by %d sids", replicas), func() bool {
			if t.Failed() {
				t.FailNow()
			}
			mu.Lock()
			defer mu.Unlock()
			busy := 0
			for _, orders := range sids {
				if orders >= 100 {
					busy++
				}
			}
			return busy == replicas
		})
	}
	more(3)

	// SIGTERM: the replica gives its sid back, so that a new one has it within its first second.
	if err := replicas[0].Stop(wait.Most); err != nil {
		t.Errorf("the replica ended with %v", err)
	}
	began := time.Now()
	_, url := start("orders-3")
	if took := time.Since(began); took > 10*time.Second { // the lease of a killed one lasts for 15 s
		t.Errorf("the new replica was ready after %v: its predecessor kept the sid", took)
	}
	mu.Lock()
	urls[0] = url
	mu.Unlock()
	more(3)

	replicas[1].Kill()
	mu.Lock()
	urls = []string{urls[0], urls[2]}
	mu.Unlock()
	more(2)
	close(done)
	callers.Wait()
	slices.Sort(all)
	if n := len(all); len(slices.Compact(all)) != n {
		t.Errorf("%d orders do not have IDs of their own", n)
	}
	t.Logf("%d orders", len(all))
}

func TestRefuse(t *testing.T) {
	for _, tc := range []struct {
		err   error
		retry string
	}{
		{&client.Refusal{Reason: client.ClockSkew, RetryAfter: 1200 * time.Millisecond}, "2"},
		{&client.Refusal{Reason: client.EntropyOverflow, RetryAfter: time.Millisecond}, "1"},
		{&client.Refusal{Reason: client.HistoryRewound}, "1"},
		{errors.New("closed"), "1"},
	} {
		w := httptest.NewRecorder()
		refuse(w, tc.err)
		if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != tc.retry {
			t.Errorf("%v: %d, Retry-After %q", tc.err, w.Code, w.Header().Get("Retry-After"))
		}
	}
}

func order(url string) (flake.ID, error) {
	res, err := http.Post(url+"/orders", "application/json", nil)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		return 0, errors.New(res.Status)
	}
	var made struct{ ID flake.ID }
	return made.ID, json.NewDecoder(res.Body).Decode(&made)
}
