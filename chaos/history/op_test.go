package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/clock"
)

// everyOp returns an op of each kind, with each field set somewhere.
func everyOp() []Op {
	sid := int64(7)
	return []Op{
		{Time: 0, Process: Harness, Type: Info, F: FSetup, Setup: &Setup{Layout: "scalable", EpochMs: 5, StartMs: 6,
			MaxSkewMs: 250, MaxLeadMs: 250, WindowMs: 30_000, Profile: "smoke", Seed: "9", Nodes: []string{"n1"},
			Faults: []string{"kill"}, NotRun: []string{"partition: no namespaces"}, Versions: []string{"go1.26"}}},
		{Time: 1, Process: "3", Type: Invoke, F: FAllocate, Block: Block{Count: 100}, After: 1<<62 + 1, Node: "n1", Run: "n1#0", Session: "s\"1", Via: "grpc"},
		{Time: 1, Process: "4", Type: Invoke, F: FAllocate},
		{Time: 2, Process: "3", Type: OK, F: FAllocate, Block: Block{First: 1<<62 + 33, Count: 100, Stride: 32}, Node: "n1", Run: "n1#0"},
		{Time: 3, Process: "4", Type: Fail, F: FAllocate, Reason: "NO_SID", Retry: 20 * time.Millisecond},
		{Time: 4, Process: "client é", Type: Info, F: FAllocate, Reason: "deadline\n"},
		{Time: 5, Process: Sampler, Type: Info, F: FSample, Node: "n1", Sample: &Sample{Instance: "i", State: "serving", Reason: "r",
			SID: &sid, Term: 3, LeadMs: 4, TTLMs: 5, OffsetMs: -1.5, ErrorMs: .25, SelfMs: 3, Verdict: "open", Issued: 9, Refused: 8, Members: 3, Tick: 1, Heap: 1}},
		{Time: 6, Process: Etcd, Type: Info, F: FWindow, Node: "n1", Window: &Window{SID: 7, Rev: 8, Term: 9, Base: 10, Ceil: 11, Released: true, Instance: "i", Deleted: true, Unreadable: true}},
		{Time: 7, Process: Etcd, Type: Info, F: FHolder, Node: "n1", Holder: &Holder{SID: 7, Rev: 8, Instance: "i", Lease: 1 << 60, Deleted: true}},
		{Time: 8, Process: Etcd, Type: Info, F: FLeader, Node: "etcd-2"},
		{Time: 9, Process: Nemesis, Type: Info, F: "clock-step", Fault: &Fault{Phase: FaultStart, ID: 1, Class: "clock", Targets: []string{"n1"},
			Amount: -3_600_000_000_000, Unit: "ns", Effect: "e", Must: "CLOCK_SKEW", DeadlineMs: 4000, May: []string{"*"}, SettleMs: 1}},
	}
}

// Every field survives being written and read, and every line is a JSON object
// with the five fields that Jepsen's tools look for.
func TestOpsSurvive(t *testing.T) {
	var b bytes.Buffer
	w := NewWriter(&b, WriterConfig{})
	want := everyOp()
	for _, op := range want {
		if at, err := w.Write(op); err != nil || at != op.Time {
			t.Fatalf("write %+v: %d, %v", op, at, err)
		}
	}
	fatal.If(t, w.Flush())
	if lines, n := w.Size(); lines != int64(len(want)) || n != int64(b.Len()) {
		t.Errorf("size: %d lines, %d bytes of %d", lines, n, b.Len())
	}
	for line := range strings.Lines(b.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		for _, name := range []string{"process", "type", "f", "value", "time"} {
			if _, ok := m[name]; !ok {
				t.Errorf("%s has no %s", line, name)
			}
		}
		if v, ok := m["value"].(map[string]any); ok && m["type"] == "ok" {
			if _, text := v["first"].(string); !text {
				t.Errorf("%s: an ID that is no string", line)
			}
		}
	}
	r := NewReader(&b)
	var got []Op
	for {
		var op Op
		if err := r.Read(&op); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got = append(got, op)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestReaderRefuses(t *testing.T) {
	const good = `{"process":1,"type":"fail","f":"allocate","value":null,"time":7}` + "\n"
	for _, tc := range []struct {
		name, line string
		want       error
	}{
		{"good", good, io.EOF},
		{"blank lines", "\n  \r\n" + good, io.EOF},
		{"fields it does not know", `{"index":{"a":[1,-2.5e+3,{}],"b":true},"process":1,"type":"fail","f":"allocate","time":7,"x":null}` + "\n", io.EOF},
		{"no object", "[]\n", ErrValue},
		{"two objects", strings.Replace(good, "\n", "{}\n", 1), ErrSyntax},
		{"a NUL", strings.Replace(good, "\n", "\x00\n", 1), ErrSyntax},
		{"leading zero", strings.Replace(good, ":7", ":07", 1), ErrSyntax},
		{"no time", strings.Replace(good, `,"time":7`, "", 1), ErrValue},
		{"time before the run", strings.Replace(good, ":7", ":-7", 1), ErrValue},
		{"time that is too large", strings.Replace(good, ":7", ":9223372036854775808", 1), ErrValue},
		{"no such type", strings.Replace(good, "fail", "maybe", 1), ErrValue},
		{"no such f", strings.Replace(good, "allocate", "read", 1), ErrValue},
		{"process with a fraction", strings.Replace(good, ":1,", ":1.5,", 1), ErrValue},
		{"an ok without a block", strings.Replace(good, "fail", "ok", 1), ErrValue},
		{"a block without IDs", `{"process":1,"type":"ok","f":"allocate","value":{"first":"1","count":0,"stride":1},"time":7}` + "\n", ErrValue},
		{"a block past 63 bits", `{"process":1,"type":"ok","f":"allocate","value":{"first":"9223372036854775800","count":2,"stride":32},"time":7}` + "\n", ErrValue},
		{"a block whose end wraps around", `{"process":1,"type":"ok","f":"allocate","value":{"first":"1","count":576460752303423489,"stride":32},"time":7}` + "\n", ErrValue},
		{"a negative ID", `{"process":1,"type":"ok","f":"allocate","value":{"first":"-1","count":2,"stride":32},"time":7}` + "\n", ErrValue},
		{"an endless retry", strings.Replace(good, `"time"`, `"retry_ms":9223372036854775807,"time"`, 1), ErrValue},
		{"a fault without a phase", `{"process":"nemesis","type":"info","f":"kill","value":{"id":1},"time":7}` + "\n", ErrValue},
		{"a fault without a value", `{"process":"nemesis","type":"info","f":"kill","value":null,"time":7}` + "\n", ErrValue},
		{"a window of text", `{"process":"etcd","type":"info","f":"window","value":{"sid":"x"},"time":7}` + "\n", ErrValue},
		{"a layout nobody knows", `{"process":"harness","type":"info","f":"setup","value":{"layout":"round"},"time":7}` + "\n", ErrValue},
		{"back in time", good + strings.Replace(good, ":7", ":6", 1), ErrOrder},
		{"cut short", good + good[:20], ErrTruncated},
		{"cut before its newline", good + good[:len(good)-1], ErrTruncated},
		{"too long", `{"x":"` + strings.Repeat("x", MaxLine) + "\"}\n", ErrLong},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := NewReader(strings.NewReader(tc.line))
			var op Op
			var err error
			for err == nil {
				err = r.Read(&op)
			}
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			var line *LineError
			if tc.want != io.EOF && (!errors.As(err, &line) || line.Line != r.Line() || line.Line < 1) {
				t.Errorf("%v names no line; the reader is at %d", err, r.Line())
			}
			if again := r.Read(&op); !errors.Is(again, tc.want) {
				t.Errorf("then %v", again)
			}
		})
	}
}

func TestWriterRefuses(t *testing.T) {
	ok := Op{Time: 5, Process: "1", Type: Fail, F: FAllocate}
	t.Run("what no reader takes", func(t *testing.T) {
		var b bytes.Buffer
		w := NewWriter(&b, WriterConfig{})
		for _, spoil := range []func(*Op){
			func(op *Op) { op.Process = "" },
			func(op *Op) { op.Type = 9 },
			func(op *Op) { op.F = "nothing" },
			func(op *Op) { op.Type = OK },
			func(op *Op) { op.Process = Nemesis },
			func(op *Op) { op.F = FWindow },
			func(op *Op) { op.F = FHolder },
			func(op *Op) { op.F = FSample },
			func(op *Op) { op.F = FSetup },
		} {
			op := ok
			spoil(&op)
			if _, err := w.Write(op); !errors.Is(err, ErrValue) {
				t.Errorf("%+v: %v", op, err)
			}
		}
		if _, err := w.Write(ok); err != nil {
			t.Errorf("a good op after them: %v", err)
		}
	})
	t.Run("back in time", func(t *testing.T) {
		w := NewWriter(io.Discard, WriterConfig{})
		early := ok
		early.Time = -1
		if _, err := w.Write(early); !errors.Is(err, ErrOrder) {
			t.Error(err)
		}
		early.Time = 4
		if _, err := w.Write(ok); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(early); !errors.Is(err, ErrOrder) {
			t.Error(err)
		}
	})
	t.Run("over the limit", func(t *testing.T) {
		var b bytes.Buffer
		w := NewWriter(&b, WriterConfig{Limit: 100})
		var err error
		n := 0
		for ; err == nil && n < 100; n++ { // whatever the limit does
			_, err = w.Write(ok)
		}
		if !errors.Is(err, ErrFull) || n != 2 {
			t.Errorf("op %d: %v", n, err)
		}
		if err := w.Flush(); !errors.Is(err, ErrFull) {
			t.Error(err)
		}
		if b.Len() == 0 || b.Len() > 100 || !strings.HasSuffix(b.String(), "}\n") {
			t.Errorf("wrote %q", b.String())
		}
	})
	t.Run("a disk that is gone", func(t *testing.T) {
		w := NewWriter(gone{}, WriterConfig{})
		_, _ = w.Write(ok)
		if err := w.Flush(); !errors.Is(err, io.ErrClosedPipe) {
			t.Error(err)
		}
		if _, err := w.Write(ok); !errors.Is(err, io.ErrClosedPipe) {
			t.Error(err)
		}
	})
}

type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// Many clients at once: no line is torn, times never fall, and a reader who follows
// the run sees what is on the disk.
func TestWriterIsShared(t *testing.T) {
	var b bytes.Buffer
	var tick clock.Mono
	var seen []Op
	w := NewWriter(&b, WriterConfig{
		Now:  func() clock.Mono { tick++; return tick ^ 1 }, // two steps forward, one back
		Each: func(op *Op) { seen = append(seen, *op) },
	})
	var group sync.WaitGroup
	for c := range 8 {
		group.Go(func() {
			for i := range 100 {
				if _, err := w.Write(Op{Process: fmt.Sprint(c), Type: Invoke, F: FAllocate, Block: Block{Count: int64(i)}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	fatal.If(t, w.Flush())
	r := NewReader(&b)
	var got []Op
	for {
		var op Op
		if err := r.Read(&op); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		got = append(got, op)
	}
	if diff := cmp.Diff(seen, got); diff != "" || len(got) != 800 {
		t.Errorf("%d ops: %s", len(got), diff)
	}
}
