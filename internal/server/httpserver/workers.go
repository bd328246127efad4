package httpserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/quota"
	"github.com/flakelease/allocator/internal/worker"
)

// The path of workers. A call that extends one is its path and extendSuffix.
const (
	workersPath  = "/v1/workers"
	extendSuffix = ":extend"
)

// handleHeader has the handle of a worker: never a URL, which proxies log.
const handleHeader = "Worker-Handle"

// workerJSON is the answer to an acquisition or an extension.
type workerJSON struct {
	ID        string `json:"id"`
	Worker    uint32 `json:"worker"`
	Term      int64  `json:"term"`
	Name      string `json:"name"`
	NotBefore int64  `json:"not_before_unix_ms"`
	NotAfter  int64  `json:"not_after_unix_ms"`
	ExtendAt  int64  `json:"extend_at_unix_ms"`
	Now       int64  `json:"now_unix_ms"`
	Handle    string `json:"handle"`
	Floor     int64  `json:"floor_unix_ms,omitempty"`
}

func workerOf(w worker.Worker) workerJSON {
	return workerJSON{
		ID: w.Handle.ID(), Worker: uint32(w.Handle.SID), Term: w.Handle.Term, Name: w.Name,
		NotBefore: int64(w.NotBefore), NotAfter: int64(w.NotAfter), ExtendAt: int64(w.ExtendAt), Now: int64(w.Now),
		Handle: w.Handle.String(), Floor: int64(w.Floor),
	}
}

func (h *handler) serveAcquire(w http.ResponseWriter, r *http.Request) {
	h.serveWorker(w, r, http.StatusCreated, func(c access.Caller) (any, error) {
		var q struct {
			Name       string `json:"name"`
			Secret     string `json:"secret"`
			Clock      int64  `json:"clock_unix_ms"`
			TellsFloor bool   `json:"tells_floor"`
		}
		if bad := readJSON(w, r, &q, true); bad != nil {
			return nil, bad
		}
		got, err := h.service.Workers().Acquire(r.Context(), c, worker.Acquire{
			Name:       q.Name,
			Secret:     q.Secret,
			Clock:      clock.Millis(q.Clock),
			TellsFloor: q.TellsFloor,
		})
		return workerOf(got), err
	})
}

func (h *handler) serveExtend(w http.ResponseWriter, r *http.Request) {
	id, ok := strings.CutSuffix(r.PathValue("worker"), extendSuffix)
	if !ok {
		h.serveNotFound(w, r)
		return
	}
	h.serveWorker(w, r, http.StatusOK, func(c access.Caller) (any, error) {
		var q struct {
			NotAfter int64 `json:"not_after_unix_ms"`
			Floor    int64 `json:"floor_unix_ms"`
		}
		if bad := readJSON(w, r, &q, false); bad != nil {
			return nil, bad
		}
		got, err := h.service.Workers().Extend(r.Context(), c, id, handleOf(r), worker.Extend{
			NotAfter: clock.Millis(q.NotAfter),
			Floor:    clock.Millis(q.Floor),
		})
		return workerOf(got), err
	})
}

func (h *handler) serveRelease(w http.ResponseWriter, r *http.Request) {
	h.serveWorker(w, r, http.StatusOK, func(c access.Caller) (any, error) {
		until, bad := usedUntil(r.URL.RawQuery)
		if bad != nil {
			return nil, bad
		}
		at, err := h.service.Workers().Release(r.Context(), c, r.PathValue("worker"), handleOf(r), until)
		return struct {
			Reusable int64 `json:"reusable_from_unix_ms"`
		}{int64(at)}, err
	})
}

// serveWorker makes a worker's call, which its connection pays for, and answers.
func (h *handler) serveWorker(w http.ResponseWriter, r *http.Request, status int,
	call func(access.Caller) (any, error)) {
	began, conn := h.service.Begin(), connOf(r.Context())
	conn.Charge(quota.CostWrite)
	res, err := call(h.caller(r))
	h.name(w.Header()) // A node of another space refuses too: it does not know the worker.
	if err != nil {
		h.fail(w, r, server.HTTPWorker, err, began)
		return
	}
	h.service.Done(server.HTTPWorker, nil, began)
	conn.Valid()
	SendJSON(w, status, "application/json", "no-store", res)
}

// handleOf returns the handle in a request; "" unless there is exactly one.
func handleOf(r *http.Request) string {
	if all := r.Header.Values(handleHeader); len(all) == 1 {
		return all[0]
	}
	return ""
}

// usedUntil reads ?used_until_unix_ms=N; 0: not given.
func usedUntil(query string) (int64, *fault) {
	v, err := url.ParseQuery(query)
	given := v["used_until_unix_ms"]
	switch {
	case err != nil || len(v) > 1 || len(v) == 1 && len(given) != 1:
		return 0, malformed("the query is malformed: send used_until_unix_ms once, or nothing")
	case len(given) == 0:
		return 0, nil
	}
	n, err := strconv.ParseInt(given[0], 10, 64)
	if err != nil {
		return 0, malformed("used_until_unix_ms is not a number of Unix milliseconds")
	}
	return n, nil
}

// readJSON reads the body of r, one JSON object with no other members than those of
// target. Nothing of it is in the fault: it may have a secret.
func readJSON(w http.ResponseWriter, r *http.Request, target any, required bool) *fault {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		bad := malformed("the body exceeds %d bytes", maxBody)
		bad.status = http.StatusRequestEntityTooLarge
		return bad
	}
	switch {
	case err != nil:
		return malformed("the body could not be read: send it again")
	case len(body) == 0 && !required:
		return nil
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		bad := malformed("the body is not application/json: say so in Content-Type")
		bad.status = http.StatusUnsupportedMediaType
		return bad
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if !json.Valid(body) || bytes.TrimSpace(body)[0] != '{' || d.Decode(target) != nil {
		return malformed("the body is not a JSON object with the members of this call: GET /openapi.yaml describes it")
	}
	return nil
}
