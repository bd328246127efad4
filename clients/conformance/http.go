package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/ulid"
)

// Types of answers over HTTP.
const (
	asJSON    = "application/json"
	asProblem = "application/problem+json"
)

// spaceHeader has the space of an answer, over HTTP and over gRPC.
const spaceHeader = "Allocator-Space"

// maxText is how many IDs a request over HTTP may ask for.
const maxText = server.DefaultMaxTextCount

// reply answers one request over HTTP, until done is closed. Where it panics, net/http closes the connection.
func (n *scripted) reply(w http.ResponseWriter, r *http.Request, done <-chan struct{}) {
	var o outcome
	var answer []byte
	var err error
	code := http.StatusOK
	switch {
	case r.URL.Path == "/v1/watermark":
		n.now().name(w)
		send(w, http.StatusOK, asJSON, n.watermark())
		return
	case strings.HasPrefix(r.URL.Path, "/v1/workers"):
		o, code, answer, err = n.worker(r)
	case r.URL.Path == "/v1/ids" && r.Method == http.MethodPost:
		var q request
		if q, err = parse(r); err == nil {
			if o = n.decide(q, maxText); o.refuse == 0 {
				answer = n.answer(q, o)
			}
		}
	default:
		http.Error(w, "no such route: "+r.Method+" "+r.URL.Path, http.StatusNotFound)
		return
	}
	if err != nil {
		problem(w, outcome{refuse: node.InvalidFormat, detail: err.Error()})
		return
	}
	if o.refuse != 0 {
		if o.act == "space" {
			o.name(w)
		}
		problem(w, o)
		return
	}
	number, _ := strconv.Atoi(o.arg)
	switch o.act {
	case "late":
		select {
		case <-time.After(time.Duration(number) * time.Millisecond):
		case <-done:
		}
	case "hang":
		<-done
		panic(http.ErrAbortHandler)
	case "drop":
		panic(http.ErrAbortHandler)
	case "cut":
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		_, _ = w.Write(answer[:len(answer)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case "twice":
		twoAnswers(w, answer, done)
		return
	case "html":
		send(w, number, "text/html", []byte("<html><body>Bad Gateway</body></html>"))
		return
	case "text":
		answer = []byte("ready")
	case "unknown":
		send(w, http.StatusServiceUnavailable, asProblem, []byte(`{"type":"about:blank","title":"later","status":503,`+
			`"detail":"a later version has it","reason":"`+laterReason+`"}`))
		return
	case "huge":
		w.Header().Set("Content-Type", asJSON)
		_, err := io.WriteString(w, `{"ids":["`)
		for err == nil {
			_, err = io.WriteString(w, strings.Repeat("1", 1<<16))
			n.mu.Lock()
			n.wrote += 1 << 16
			n.mu.Unlock()
		}
		return
	}
	o.name(w)
	send(w, code, asJSON, answer)
}

// name says in the header of an answer which space its node is of.
func (o outcome) name(w http.ResponseWriter) {
	if id := o.space(); id != 0 {
		w.Header().Set(spaceHeader, fmt.Sprintf("%016x", id))
	}
}

// now returns what becomes of a request for the watermark: of the script it only has the space.
func (n *scripted) now() outcome {
	n.mu.Lock()
	defer n.mu.Unlock()
	return outcome{act: n.script[min(len(n.asked), len(n.script)-1)]}
}

// space returns the ID of the space that the node of an answer is of; 0: it has no name.
func (o outcome) space() uint64 {
	switch o.act {
	case "space":
		return 0xb
	case "unnamed":
		return 0
	}
	return 0xa
}

// twoAnswers writes an answer twice, and keeps the connection until done is closed: a client that sends its next
// request there gets no answer but the second one.
func twoAnswers(w http.ResponseWriter, answer []byte, done <-chan struct{}) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer func() { _ = c.Close() }()
	text := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s",
		asJSON, len(answer), answer)
	_, _ = io.WriteString(c, text+text)
	<-done
}

// parse reads a request for IDs, whose fields are in the query or in a JSON body.
func parse(r *http.Request) (q request, err error) {
	fields := struct {
		Count int
		As    string
		After json.RawMessage
	}{1, "flake", nil}
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	if err == nil && len(body) > 0 {
		err = json.Unmarshal(body, &fields)
	}
	if err != nil {
		return q, err
	}
	q.count, q.form = fields.Count, fields.As
	after := strings.Trim(string(fields.After), `"`)
	v := r.URL.Query()
	if v.Has("count") {
		if q.count, err = strconv.Atoi(v.Get("count")); err != nil {
			return q, err
		}
	}
	if v.Has("as") {
		q.form = v.Get("as")
	}
	if v.Has("after") {
		after = v.Get("after")
	}
	if after != "" {
		if q.after, err = anyID(after); err != nil {
			return q, err
		}
	}
	q.token = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if _, known := server.ParseForm(q.form); !known {
		return q, fmt.Errorf("there is no form %q", q.form)
	}
	return q, nil
}

// anyID returns the flake in an ID of any form.
func anyID(text string) (flake.ID, error) {
	switch len(text) {
	case 13:
		return flake.Parse(text)
	case 26:
		w, err := ulid.Parse(text)
		if err != nil {
			return 0, err
		}
		return w.Flake(flake.Default)
	case 36:
		w, err := ulid.ParseUUID(text)
		if err != nil {
			return 0, err
		}
		return w.Flake(flake.Default)
	}
	return flake.ParseInt(text)
}

// answer returns the body of an answer with IDs.
func (n *scripted) answer(q request, o outcome) []byte {
	form, _ := server.ParseForm(q.form)
	if o.act == "layout" {
		form ^= 1 // a flake in place of an integer, a UUID in place of a ULID, and so on
	}
	var ids []any
	for i, id := range o.ids {
		text := string(form.Append(nil, id, flake.Default, uint64(i)))
		if o.act == "numbers" {
			ids = append(ids, json.Number(strconv.FormatInt(id.Int64(), 10)))
		} else {
			ids = append(ids, text)
		}
	}
	return encode(map[string]any{"ids": ids, "node": fmt.Sprint("node-", n.sid), "sid": n.sid})
}

// problem answers with a refusal.
func problem(w http.ResponseWriter, o outcome) {
	wire := server.WireOf(o.refuse)
	p := map[string]any{
		"type":   "about:blank",
		"title":  wire.Title,
		"status": wire.Status(),
		"detail": o.detail,
		"reason": o.refuse.String(),
		"help":   wire.Help,
	}
	if o.refuse == node.InvalidCount {
		p["metadata"] = map[string]string{"limit": strconv.Itoa(o.limit)}
	}
	if ms := o.retry.Milliseconds(); ms > 0 {
		p["retry_after_ms"] = ms
		w.Header().Set("Retry-After", strconv.FormatInt((ms+999)/1000, 10))
	}
	send(w, wire.Status(), asProblem, encode(p))
}

// send writes a whole answer.
func send(w http.ResponseWriter, code int, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	_, _ = w.Write(body)
}

// encode returns v as JSON. v is made here, of maps, texts and numbers, which all have such a form.
func encode(v any) []byte {
	body, err := json.Marshal(v)
	if err != nil {
		panic("conformance: " + err.Error())
	}
	return body
}
