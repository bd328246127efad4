package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// ask runs one client against a server that answers as told, for so many calls,
// and returns the history and what was found broken.
func ask(t *testing.T, c Client, calls int64, answer http.HandlerFunc) (ops []history.Op, broken []error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) >= calls {
			cancel()
		}
		answer(w, r)
	}))
	defer srv.Close()
	node := func(name string) *Node {
		return &Node{Name: name, HTTP: strings.TrimPrefix(srv.URL, "http://"), MayAnswer: func() func() string { return func() string { return name + "#1" } }}
	}
	c.Via, c.Nodes = HTTP, []*Node{node("n1")}
	var out bytes.Buffer
	began := time.Now()
	l := &Load{History: history.NewWriter(&out, history.WriterConfig{Now: func() clock.Mono { return clock.Mono(time.Since(began)) }}), Format: flake.Default,
		Dial: new(net.Dialer).DialContext, Broken: func(err error) { broken = append(broken, err) }}
	l.Run(ctx, 7, c)
	if err := l.History.Flush(); err != nil {
		t.Fatal(err)
	}
	for r := history.NewReader(&out); ; {
		var op history.Op
		if err := r.Read(&op); errors.Is(err, io.EOF) {
			return ops, broken
		} else if err != nil {
			t.Fatal(err)
		}
		ops = append(ops, op)
	}
}

func lines(first flake.ID, count int, stride flake.ID) (out string) {
	for i := range count {
		out += (first + flake.ID(i)*stride).String() + "\n"
	}
	return out
}

func id(t *testing.T, ms int64) flake.ID {
	t.Helper()
	id, err := flake.Default.Make(flake.Default.Epoch+ms, 5, 3)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAnswersBecomeHistory(t *testing.T) {
	at := int64(1000)
	var after []string
	ops, broken := ask(t, Client{Counts: []int{3, 1}, Session: "s"}, 2, func(w http.ResponseWriter, r *http.Request) {
		after = append(after, r.URL.Query().Get("after"))
		n := 1
		if r.URL.Query().Get("count") == "3" {
			n = 3
		}
		at += 10
		fmt.Fprint(w, lines(id(t, at), n, 32))
	})
	if len(broken) > 0 {
		t.Errorf("found broken: %v", broken)
	}
	if len(ops) != 4 || ops[0].Type != history.Invoke || ops[1].Type != history.OK || ops[1].Run != "n1#1" || ops[1].Process != "7" {
		t.Fatalf("history %+v", ops)
	}
	if got, want := ops[1].Block, (history.Block{First: id(t, 1010), Count: 3, Stride: 32}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// The second call of the session names the last ID of the first.
	if want := ops[1].Block.Last(); ops[2].After != want || after[0] != "" || after[1] != want.String() {
		t.Errorf("after %v in the history and %q on the wire, want %v", ops[2].After, after, want)
	}
}

func TestRefusalsAndCuts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		answer http.HandlerFunc
		want   history.Op
	}{
		{"refused", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"reason":"NO_SID"}`)
		}, history.Op{Type: history.Fail, Reason: "NO_SID", Retry: 2 * time.Second}},
		{"cut off before an answer", func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		}, history.Op{Type: history.Info, Reason: "connection"}},
		{"cut off in a refusal", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"reason":`)
		}, history.Op{Type: history.Info, Reason: "connection"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ops, broken := ask(t, Client{Counts: []int{1}}, 1, tc.answer)
			if len(broken) > 0 {
				t.Errorf("found broken: %v", broken)
			}
			if len(ops) < 2 || ops[1].Type != tc.want.Type || ops[1].Reason != tc.want.Reason || ops[1].Retry != tc.want.Retry {
				t.Errorf("history %+v, want %+v", ops, tc.want)
			}
		})
	}
}

// What breaks the interface's promise is told, and nothing of it is counted.
func TestBrokenContracts(t *testing.T) {
	for name, answer := range map[string]string{
		"too few":       lines(id(t, 1000), 2, 32),
		"too many":      lines(id(t, 1000), 4, 32),
		"a gap":         lines(id(t, 1000), 3, 64),
		"the same":      lines(id(t, 1000), 3, 0),
		"no ID at all":  "hello\n",
		"not above":     lines(1, 3, 32),
		"no answer":     "",
		"a page of web": "<html>\n",
	} {
		t.Run(name, func(t *testing.T) {
			first := true
			_, broken := ask(t, Client{Counts: []int{3}, Session: "s"}, 2, func(w http.ResponseWriter, _ *http.Request) {
				if first && name == "not above" {
					first = false
					fmt.Fprint(w, lines(id(t, 900), 3, 32))
					return
				}
				fmt.Fprint(w, answer)
			})
			if len(broken) == 0 || !errors.Is(broken[0], errContract) {
				t.Errorf("found broken: %v", broken)
			}
		})
	}
}
