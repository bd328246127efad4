package maelstrom

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
)

// patience is what a busy machine may take for what ought to be done at once.
const patience = 30 * time.Second

// desk is a session whose other side the test plays by hand.
type desk struct {
	*testing.T
	in    *io.PipeWriter
	lines chan string // of stdout
	ended chan error
	stop  context.CancelFunc
}

func newDesk(t *testing.T) *desk {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ctx, stop := context.WithCancel(context.Background())
	d := &desk{T: t, in: inW, lines: make(chan string, 1000), ended: make(chan error, 1), stop: stop}
	go func() {
		err := Run(ctx, Config{Window: MinWindow, Version: "test", Logger: slog.New(slog.DiscardHandler)}, inR, outW)
		_ = outW.Close()
		d.ended <- err
	}()
	go func() {
		for s := bufio.NewScanner(outR); s.Scan(); {
			d.lines <- s.Text()
		}
		close(d.lines)
	}()
	t.Cleanup(func() { _ = inW.Close(); stop() })
	return d
}

func (d *desk) say(format string, args ...any) {
	d.Helper()
	if _, err := fmt.Fprintf(d.in, format+"\n", args...); err != nil {
		d.Fatal(err)
	}
}

// reply is a message of the node, as far as tests look at it.
type reply struct {
	Src, Dest string
	Body      struct {
		Type      string
		MsgID     int64  `json:"msg_id"`
		InReplyTo *int64 `json:"in_reply_to"`
		Code      Code
		Text      string
		Reason    string
		ID        string
	}
}

func (d *desk) hear() reply {
	d.Helper()
	select {
	case line, ok := <-d.lines:
		if !ok {
			d.Fatal("stdout has ended")
		}
		var r reply
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			d.Fatalf("%q: %v", line, err)
		}
		return r
	case <-time.After(patience):
		d.Fatal("nothing was said")
	}
	return reply{}
}

// hearTo returns the next message to somebody, and passes over others.
func (d *desk) hearTo(dest string) reply {
	d.Helper()
	for {
		if r := d.hear(); r.Dest == dest {
			return r
		}
	}
}

func TestMalformedInput(t *testing.T) {
	d := newDesk(t)
	for _, tc := range []struct {
		line string
		code Code // -1: nothing can be answered
		id   int64
	}{
		{"not JSON", -1, 0},
		{`{"src":"c1","dest":"n1","body":{"type":"generate","msg_id":"x"}}`, -1, 0},
		{`{"dest":"n1","body":{"msg_id":4}}`, -1, 0},
		{`{"src":"c1","body":{"msg_id":4,"type":"generate"}}`, -1, 0}, // as whom?
		{`{"src":"c1","dest":"n1","body":{"type":5,"in_reply_to":3,"msg_id":1}}`, -1, 0},
		{`{"src":"c1","dest":"n1","body":{"type":"read_ok","in_reply_to":3}}`, -1, 0},
		{`{"src":"c1","dest":"n1","body":{"type":"error","msg_id":3,"code":13}}`, -1, 0},
		{`{"src":"c1","dest":"n1","body":{"type":"echo"}}`, -1, 0},
		{`{"src":"c1","dest":"n1","body":{"msg_id":5}}`, MalformedRequest, 5},
		{`{"src":"c1","dest":"n1","body":{"type":[],"msg_id":6}}`, MalformedRequest, 6},
		{`{"src":"c1","dest":"n1","body":{"type":"echo","msg_id":7}}`, NotSupported, 7},
		{`{"src":"c1","dest":"n1","body":{"type":"generate","msg_id":8}}`, TemporarilyUnavailable, 8},
		{`{"src":"c1","dest":"n1","body":{"type":"init","msg_id":9}}`, MalformedRequest, 9},
		{`{"src":"c1","dest":"n1","body":{"type":"init","msg_id":10,"node_id":4}}`, MalformedRequest, 10},
		{`{"src":"c1","dest":"n1","body":{"type":"init","msg_id":11,"node_id":""}}`, MalformedRequest, 11},
	} {
		d.say("%s", tc.line)
		if tc.code < 0 {
			continue // the next answer shows that there was none to this
		}
		r := d.hear()
		if r.Src != "n1" || r.Dest != "c1" || r.Body.Type != "error" || r.Body.Code != tc.code || r.Body.InReplyTo == nil || *r.Body.InReplyTo != tc.id || r.Body.Text == "" {
			t.Errorf("%s: answered %+v, want error %d", tc.line, r, tc.code)
		}
	}
	_ = d.in.Close()
	if err := <-d.ended; err != nil {
		t.Errorf("at the end of stdin: %v", err)
	}
}

// play answers what a node asks lin-kv, from a KV in memory, and returns the
// first message that goes elsewhere.
func (d *desk) play(kv KV) reply {
	d.Helper()
	for {
		select {
		case line := <-d.lines:
			var m struct {
				Src, Dest string
				Body      struct {
					kvRequest
					InReplyTo *int64 `json:"in_reply_to"`
				}
			}
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				d.Fatalf("%q: %v", line, err)
			}
			if m.Dest != linKVName {
				var r reply
				_ = json.Unmarshal([]byte(line), &r)
				return r
			}
			d.serve(kv, m.Src, m.Body.kvRequest)
		case <-time.After(patience):
			d.Fatal("nothing was said")
		}
	}
}

func (d *desk) serve(kv KV, src string, req kvRequest) {
	d.Helper()
	body := map[string]any{"in_reply_to": req.MsgID}
	var err error
	if req.Type == "read" {
		body["type"] = "read_ok"
		body["value"], err = kv.Read(context.Background(), req.Key)
	} else {
		body["type"] = "cas_ok"
		err = kv.CAS(context.Background(), req.Key, *req.From, *req.To)
	}
	var e *Error
	if errors.As(err, &e) {
		body["type"], body["code"] = "error", e.Code
	} else if err != nil {
		d.Fatal(err)
	}
	line, err := encode(linKVName, src, body)
	if err != nil {
		d.Fatal(err)
	}
	if _, err := d.in.Write(line); err != nil {
		d.Fatal(err)
	}
}

func TestInitAndGenerate(t *testing.T) {
	d, kv := newDesk(t), newMemoryKV()
	d.say(`{"src":"c0","dest":"n3","body":{"type":"init","msg_id":1,"node_id":"n3","node_ids":["n3"]}}`)
	if r := d.play(kv); r.Src != "n3" || r.Dest != "c0" || r.Body.Type != "init_ok" || *r.Body.InReplyTo != 1 {
		t.Fatalf("init: answered %+v", r)
	}
	v, err := View(kv.values[spaceKey])
	if err != nil || len(v.Nodes) != 1 || v.Nodes[0].Node != "n3" || len(v.Sids) != 1 || !v.Sids[0].Holder.Exists() {
		t.Errorf("when init was answered the space was %+v, %v, want sid 0 held by n3", v, err)
	}
	d.say(`{"src":"c1","dest":"n3","body":{"type":"generate","msg_id":7}}`)
	r := d.play(kv)
	id, err := flake.Parse(r.Body.ID)
	if r.Src != "n3" || r.Dest != "c1" || r.Body.Type != "generate_ok" || *r.Body.InReplyTo != 7 || err != nil || len(r.Body.ID) != flake.TextLen {
		t.Fatalf("generate: answered %+v, %v", r, err)
	}
	if w := v.Sids[0].Window.Value; id.Time().Before(w.Base.Time()) || flake.Default.SID(id) != 0 {
		t.Errorf("%v is of %v and sid %d, want a millisecond of the window from %v of sid 0", id, id.Time(), flake.Default.SID(id), w.Base.Time())
	}
	// Without a msg_id nobody could be told the ID.
	d.say(`{"src":"c1","dest":"n3","body":{"type":"generate"}}`)
	d.say(`{"src":"c0","dest":"n3","body":{"type":"init","msg_id":2,"node_id":"n3","node_ids":["n3"]}}`)
	if r := d.play(kv); r.Body.Type != "init_ok" || *r.Body.InReplyTo != 2 {
		t.Errorf("init sent twice: answered %+v", r)
	}
	d.say(`{"src":"c0","dest":"n3","body":{"type":"init","msg_id":3,"node_id":"n4","node_ids":["n4"]}}`)
	if r := d.play(kv); r.Body.Code != PreconditionFailed || *r.Body.InReplyTo != 3 {
		t.Errorf("init as another node: answered %+v", r)
	}
	// Asked to end, it answers on, with refusals, and gives the sid back.
	d.stop()
	go func() { // Run ends while this waits for more
		for line := range d.lines {
			var m struct {
				Src, Dest string
				Body      kvRequest
			}
			if json.Unmarshal([]byte(line), &m) == nil && m.Dest == linKVName {
				d.serve(kv, m.Src, m.Body)
			}
		}
	}()
	if err := <-d.ended; err != nil {
		t.Errorf("asked to end: %v", err)
	}
	v, err = View(kv.values[spaceKey])
	if err != nil || len(v.Nodes) != 0 || v.Sids[0].Holder.Exists() || v.Sids[0].Window.Value.State != "released" {
		t.Errorf("after the end the space is %+v, %v, want no node and the sid released", v, err)
	}
}

// What was asked before stdin ended is answered.
func TestEndOfInput(t *testing.T) {
	d, kv := newDesk(t), newMemoryKV()
	d.say(`{"src":"c0","dest":"n1","body":{"type":"init","msg_id":1,"node_id":"n1","node_ids":["n1"]}}`)
	d.play(kv)
	const asked = 200
	for i := range asked {
		d.say(`{"src":"c1","dest":"n1","body":{"type":"generate","msg_id":%d}}`, i)
	}
	_ = d.in.Close()
	got := 0
	for line := range d.lines {
		if strings.Contains(line, "generate_ok") {
			got++
		}
	}
	if err := <-d.ended; err != nil || got != asked {
		t.Errorf("%d of %d requests were answered before the end, %v", got, asked, err)
	}
}

// A lin-kv that does not answer: init is answered in time all the same, and
// requests are refused, definitely and with a reason.
func TestNoStore(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.say(`{"src":"c0","dest":"n1","body":{"type":"init","msg_id":1,"node_id":"n1","node_ids":["n1"]}}`)
	if r := d.hearTo("c0"); r.Body.Type != "init_ok" {
		t.Fatalf("init: answered %+v", r)
	}
	d.say(`{"src":"c1","dest":"n1","body":{"type":"generate","msg_id":2}}`)
	if r := d.hearTo("c1"); r.Body.Code != TemporarilyUnavailable || r.Body.Reason != "STARTING" || *r.Body.InReplyTo != 2 {
		t.Errorf("generate: answered %+v, want error 11 with STARTING", r)
	}
}

// Answers to an earlier process of the same node must not pass for answers to
// this one.
func TestStaleAnswers(t *testing.T) {
	t.Parallel()
	first := newDesk(t)
	first.say(`{"src":"c0","dest":"n1","body":{"type":"init","msg_id":1,"node_id":"n1","node_ids":["n1"]}}`)
	second := newDesk(t)
	second.say(`{"src":"c0","dest":"n1","body":{"type":"init","msg_id":1,"node_id":"n1","node_ids":["n1"]}}`)
	a, b := first.hearTo(linKVName), second.hearTo(linKVName)
	if d := a.Body.MsgID - b.Body.MsgID; d > -1_000_000 && d < 1_000_000 {
		t.Errorf("two processes of one node begin with msg_id %d and %d: the answers of one would pass for the other's", a.Body.MsgID, b.Body.MsgID)
	}
	if a.Body.MsgID < 1 || a.Body.MsgID > 1<<53 {
		t.Errorf("msg_id %d is not exact in every JSON reader", a.Body.MsgID)
	}
}

func TestStdoutFails(t *testing.T) {
	in, w := io.Pipe()
	defer func() { _ = w.Close() }()
	broken, out := io.Pipe()
	gone := errors.New("gone")
	_ = broken.CloseWithError(gone)
	ended := make(chan error, 1)
	go func() {
		ended <- Run(context.Background(), Config{Window: MinWindow, Logger: slog.New(slog.DiscardHandler)}, in, out)
	}()
	fmt.Fprintln(w, `{"src":"c1","dest":"n1","body":{"type":"echo","msg_id":7}}`)
	if err := <-ended; !errors.Is(err, gone) {
		t.Errorf("got %v, want the error of stdout", err)
	}
}

func TestValidate(t *testing.T) {
	for window, ok := range map[time.Duration]bool{0: false, time.Second - 1: false, time.Second: true, time.Hour: true, time.Hour + 1: false} {
		if err := (Config{Window: window}).Validate(); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "window") {
			t.Errorf("window %v: %v", window, err)
		}
	}
}
