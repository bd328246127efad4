package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/internal/node"
)

// interval is for how long a number is lent, from now.
const interval = time.Minute

// lease is what a worker says in a call, or what a node knows of a worker. Times are Unix ms.
type lease struct {
	call   string // acquire, extend or release; "": none
	secret string
	handle string
	term   int
	begins int64
	ends   int64
	first  int64 // the end before any extension
	clock  int64 // what the caller's clock shows
	used   int64 // up to where a worker that is given back was used
}

// lend notes a call of a worker and decides what becomes of it.
func (n *scripted) lend(ask lease) (o outcome, answer *pb.Worker) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o = n.next(request{lease: ask})
	number, _ := strconv.Atoi(o.arg)
	now, l := time.Now().UnixMilli(), &n.lent
	switch {
	case o.refuse != 0:
		return o, nil
	case ask.call != "acquire" && (l.term == 0 || ask.handle != l.handle || o.act == "space" && number == 0):
		o.refuse, o.detail = node.UnknownWorker, "nobody holds it"
		return o, nil
	case ask.call == "release":
		l.used, l.handle = ask.used, ""
		return o, &pb.Worker{NotAfterUnixMs: ask.used}
	case ask.call == "acquire" && (l.handle == "" || l.secret != ask.secret):
		*l = lease{secret: ask.secret, term: l.term + 1, begins: now - 1000}
		l.handle = fmt.Sprintf("w1.17.%d.%s", l.term, l.secret)
		if o.act == "ahead" {
			l.begins = now + int64(number)
		}
	}
	l.ends = max(l.ends, l.begins, now+interval.Milliseconds())
	if ask.call == "acquire" {
		l.first = l.ends
	}
	every := interval / 3
	if number > 0 && o.act != "ahead" && o.act != "late" {
		every = time.Duration(number) * time.Millisecond
	}
	w := &pb.Worker{
		Id: fmt.Sprint("17-", l.term), Worker: 17, Term: int64(l.term), Name: "conformance", Handle: l.handle,
		NotBeforeUnixMs: l.begins, NotAfterUnixMs: l.ends, NowUnixMs: now, ExtendAtUnixMs: now + every.Milliseconds(),
	}
	switch o.act {
	case "other":
		w.Id, w.Handle, w.NotAfterUnixMs = "18-1", "w1.18.1.x", l.ends+interval.Milliseconds()
	case "back":
		w.NotAfterUnixMs = l.begins + 1
	}
	return o, w
}

// held returns the worker as the node knows it.
func (n *scripted) held() lease {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lent
}

// worker serves a call of a worker over HTTP.
func (n *scripted) worker(r *http.Request) (o outcome, code int, answer []byte, err error) {
	ask := lease{call: "acquire", handle: r.Header.Get("Worker-Handle")}
	code = http.StatusOK
	switch rest := strings.TrimPrefix(r.URL.Path, "/v1/workers"); {
	case r.Method == http.MethodPost && rest == "":
		var q struct {
			Name, Secret string
			Clock        int64 `json:"clock_unix_ms"`
			TellsFloor   bool  `json:"tells_floor"`
		}
		d := json.NewDecoder(r.Body)
		d.DisallowUnknownFields()
		if err = d.Decode(&q); err == nil && (q.Name == "" || r.Header.Get("Content-Type") != "application/json") {
			err = fmt.Errorf("name %q, content %q", q.Name, r.Header.Get("Content-Type"))
		}
		ask.secret, ask.clock, code = q.Secret, q.Clock, http.StatusCreated
	case r.Method == http.MethodPost && strings.HasSuffix(rest, ":extend"):
		var q struct {
			NotAfter int64 `json:"not_after_unix_ms"`
		}
		err = json.NewDecoder(r.Body).Decode(&q)
		ask.call, ask.ends = "extend", q.NotAfter
	case r.Method == http.MethodDelete:
		ask.call = "release"
		if used := r.URL.Query().Get("used_until_unix_ms"); used != "" {
			ask.used, err = strconv.ParseInt(used, 10, 64)
		}
	default:
		err = fmt.Errorf("there is no %s %s", r.Method, r.URL.Path)
	}
	if err != nil {
		return o, code, nil, err
	}
	o, w := n.lend(ask)
	switch {
	case o.refuse != 0:
	case ask.call == "release":
		answer = encode(map[string]any{"reusable_from_unix_ms": w.NotAfterUnixMs})
	default:
		answer = encode(map[string]any{
			"id": w.Id, "worker": w.Worker, "term": w.Term, "name": w.Name, "handle": w.Handle,
			"not_before_unix_ms": w.NotBeforeUnixMs, "not_after_unix_ms": w.NotAfterUnixMs,
			"extend_at_unix_ms": w.ExtendAtUnixMs, "now_unix_ms": w.NowUnixMs,
		})
	}
	return o, code, answer, nil
}

// lendOver serves it over gRPC.
func (n *scripted) lendOver(ctx context.Context, ask lease) (*pb.Worker, error) {
	o, w := n.lend(ask)
	if o.refuse != 0 {
		_ = o.nameOver(ctx) // It fails without a call alone.
		return nil, statusOf(o.refusal())
	}
	if err := n.carry(ctx, o); err != nil {
		return nil, err
	}
	return w, o.nameOver(ctx)
}

// AcquireWorker lends a number.
func (n *scripted) AcquireWorker(ctx context.Context, r *pb.AcquireWorkerRequest) (*pb.Worker, error) {
	return n.lendOver(ctx, lease{call: "acquire", secret: r.GetSecret(), clock: r.GetClockUnixMs()})
}

// ExtendWorker lends it for longer.
func (n *scripted) ExtendWorker(ctx context.Context, r *pb.ExtendWorkerRequest) (*pb.Worker, error) {
	return n.lendOver(ctx, lease{call: "extend", handle: r.GetHandle(), ends: r.GetNotAfterUnixMs()})
}

// ReleaseWorker takes it back.
func (n *scripted) ReleaseWorker(ctx context.Context, r *pb.ReleaseWorkerRequest) (*pb.ReleaseWorkerResponse, error) {
	w, err := n.lendOver(ctx, lease{call: "release", handle: r.GetHandle(), used: r.GetUsedUntilUnixMs()})
	return &pb.ReleaseWorkerResponse{ReusableFromUnixMs: w.GetNotAfterUnixMs()}, err
}
