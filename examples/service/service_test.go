package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/devtest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/proc"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/client/clienttest"
	"github.com/flakelease/allocator/examples/internal/rig"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// Nodes are killed and a replica is replaced while callers create orders: none sees an
// error, no ID is there twice, and each caller's IDs rise though its calls go to both replicas.
func TestOrdersThroughFaults(t *testing.T) {
	c := rig.NewCluster(t)
	program := rig.Build(t, "service")
	replicas := make([]*proc.Process, 2)
	urls := make([]string, 2)
	for i := range replicas {
		at := loopback.Address()
		urls[i] = "http://" + at
		replicas[i] = devtest.Start(t, []string{"NODES=" + strings.Join(c.GRPC, ","), "LISTEN=" + at, "DRAIN=500ms", "TIMEOUT=1m"}, program)
		replicas[i].Answers(t, http.StatusOK, urls[i]+"/readyz")
	}

	var mu sync.Mutex // guards the next two
	var all []flake.ID
	healthy := slices.Clone(urls)
	done := make(chan struct{})
	var callers sync.WaitGroup
	for caller := range 4 {
		callers.Go(func() {
			var last flake.ID
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				mu.Lock()
				url := healthy[(caller+n)%len(healthy)]
				mu.Unlock()
				made, err := create(fmt.Sprintf("%s/orders?after=%v", url, last))
				if err != nil || made.ID <= last || made.Item != "tea" {
					t.Errorf("order %v after %v: %v", made, last, err)
					return
				}
				last = made.ID
				mu.Lock()
				all = append(all, last)
				mu.Unlock()
			}
		})
	}
	more := func() {
		t.Helper()
		mu.Lock()
		from := len(all)
		mu.Unlock()
		wait.Until(t, "500 orders since the last fault", func() bool {
			if t.Failed() {
				t.FailNow()
			}
			mu.Lock()
			defer mu.Unlock()
			return len(all)-from >= 500
		})
	}
	more()
	c.Nodes[0].Kill()
	more()
	if res, err := http.Get(urls[1] + "/metrics"); err != nil || !strings.Contains(body(t, res), "allocator_client_ids_total") {
		t.Errorf("metrics: %v", err)
	}
	// A load balancer stops sending requests to a replica that is not ready.
	stopped := make(chan error)
	go func() { stopped <- replicas[0].Stop(wait.Most) }()
	for {
		res, err := http.Get(urls[0] + "/readyz")
		fatal.If(t, err)
		body(t, res)
		if res.StatusCode == http.StatusServiceUnavailable {
			break
		}
	}
	mu.Lock()
	healthy = urls[1:]
	mu.Unlock()
	if err := <-stopped; err != nil {
		t.Errorf("the replica ended with %v", err)
	}
	more()
	close(done)
	callers.Wait()

	slices.Sort(all)
	if n := len(all); len(slices.Compact(all)) != n {
		t.Errorf("%d of %d orders share an ID", n-len(slices.Compact(all)), n)
	}
	t.Logf("%d orders", len(all))
}

func TestAnswers(t *testing.T) {
	node := clienttest.NewNode(clienttest.Options{})
	h := newOrders(clienttest.NewClient(t, client.Options{Timeout: wait.Most}, node))
	future, err := flake.Default.Make(node.Now().Add(time.Hour).UnixMilli(), 0, 0)
	fatal.If(t, err)
	for _, tc := range []struct { // in this order: those that are not refused share a client
		name, method, url, body string
		refusal                 client.Refusal
		code                    int
		retry                   string
	}{
		{"no JSON", "POST", "/orders", "tea", client.Refusal{}, 400, ""},
		{"an ID chosen by the caller", "POST", "/orders", `{"id": "01M7WXJFQFE3F"}`, client.Refusal{}, 400, ""},
		{"after is no ID", "POST", "/orders?after=7", `{}`, client.Refusal{}, 400, ""},
		{"after is of the future", "POST", "/orders?after=" + future.String(), `{}`, client.Refusal{}, 409, ""},
		{"the future of one caller is not the others'", "POST", "/orders", `{}`, client.Refusal{}, 201, ""},
		{"unknown order", "GET", "/orders/01M7WXJFQFE3F", "", client.Refusal{}, 404, ""},
		{"refused for a time", "POST", "/orders", `{}`, client.Refusal{Reason: client.ClockSkew, RetryAfter: 1200 * time.Millisecond}, 503, "2"},
		{"refused", "POST", "/orders", `{}`, client.Refusal{Reason: client.HistoryRewound}, 503, "1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h
			if tc.refusal.Reason != "" {
				node := clienttest.NewNode(clienttest.Options{})
				node.Refuse(tc.refusal)
				h = newOrders(clienttest.NewClient(t, client.Options{Timeout: time.Second}, node))
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(tc.method, tc.url, strings.NewReader(tc.body)))
			if w.Code != tc.code || w.Header().Get("Retry-After") != tc.retry {
				t.Errorf("%d, Retry-After %q: %s", w.Code, w.Header().Get("Retry-After"), w.Body)
			}
		})
	}
}

func create(url string) (order, error) {
	res, err := http.Post(url, "application/json", bytes.NewBufferString(`{"item": "tea"}`))
	if err != nil {
		return order{}, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusCreated {
		b, _ := io.ReadAll(res.Body)
		return order{}, fmt.Errorf("%s: %s", res.Status, b)
	}
	var made order
	return made, json.NewDecoder(res.Body).Decode(&made)
}

func body(t *testing.T, res *http.Response) string {
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}
