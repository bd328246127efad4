package feed

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/text"
)

// observed returns a feed with n events, "started" and "serving" among them.
func observed(t *testing.T, cfg Config, n int) *Feed {
	t.Helper()
	cfg.Boot = "boot"
	f := New(cfg)
	for i := range n - 1 {
		s := State{Node: node.Stats{Name: "n1"}}
		if i%2 == 1 {
			s.Refusing = refusing(node.ClockSkew)
		}
		f.Observe(s)
	}
	return f
}

// numbers reads a stream to its end: the numbers of its events, and what it missed.
func numbers(t *testing.T, s *Stream) (list []string, missed *Missed) {
	t.Helper()
	for {
		b, _, err := s.Next()
		fatal.If(t, err)
		if b.Missed != nil {
			missed = b.Missed
		}
		if b.Empty() {
			return list, missed
		}
		for _, e := range b.Entries {
			list = append(list, e.Event.ID)
		}
	}
}

// An act is shown as anybody with access to etcd wrote it: on one line, and bounded.
func TestAct(t *testing.T) {
	f := New(Config{Boot: "boot"})
	e := f.Act(9, "n1", lease.Act{Action: "quarantine sid 7", By: "ann@db-1", Reason: "bad clock", At: 1000, Nonce: "n"})
	if got, want := string(JSON(e)), `{"id":"","at_unix_ms":9,"node":"n1","kind":"operator_acted","sid":-1,"message":"ann@db-1: quarantine sid 7: bad clock",`+
		`"attributes":{"act":"n","action":"quarantine sid 7","at":"1970-01-01T00:00:01Z","by":"os-user","caller":"ann@db-1","from":"etcd","why":"bad clock"}}`; got != want {
		t.Errorf("got\n%s, want\n%s", got, want)
	}
	long := strings.Repeat("\x1b\n", 2000)
	e = f.Act(9, "n1", lease.Act{Action: long, By: long, Reason: long, Nonce: long})
	for name, value := range e.Attributes {
		if len(value) > 3*maxText || text.Printable(value) != value {
			t.Errorf("%s: %q", name, value)
		}
	}
	if events, _ := f.Latest(9); len(events) != 2 || len(e.Message) > 3*maxText || events[1].ID != "boot-2" {
		t.Errorf("%+v", events)
	}
}

func TestResume(t *testing.T) {
	for _, tc := range []struct {
		name        string
		entries     int
		from        From
		first, last string // IDs; "": none
		missed      int64  // 0: nothing
	}{
		{"all that are kept", 50, From{}, "boot-51", "boot-100", 0},
		{"from now on", 50, From{New: true}, "", "", 0},
		{"after one that is kept", 50, From{After: "boot-60"}, "boot-61", "boot-100", 0},
		{"after the oldest", 50, From{After: "boot-50"}, "boot-51", "boot-100", 0},
		{"after one that is gone", 50, From{After: "boot-40"}, "boot-51", "boot-100", 10},
		{"after the latest", 50, From{After: "boot-100"}, "", "", 0},
		{"after one of the future", 50, From{After: "boot-101"}, "boot-51", "boot-100", -1},
		{"after one of another process", 50, From{After: "other-60"}, "boot-51", "boot-100", -1},
		{"after nonsense", 50, From{After: "boot-\n"}, "boot-51", "boot-100", -1},
		{"after 0", 200, From{After: "boot-0"}, "boot-1", "boot-100", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := observed(t, Config{Entries: tc.entries}, 100)
			s, err := f.Open(tc.from)
			fatal.If(t, err)
			defer s.Close()
			got, missed := numbers(t, s)
			switch {
			case tc.first == "" && len(got) > 0, tc.first != "" && (len(got) == 0 || got[0] != tc.first || got[len(got)-1] != tc.last):
				t.Errorf("got %v, want %s to %s", got, tc.first, tc.last)
			case tc.missed == 0 && missed != nil, tc.missed != 0 && (missed == nil || missed.Count != tc.missed):
				t.Errorf("missed %+v, want %d", missed, tc.missed)
			}
		})
	}
}

// A stream that is not read while the ring goes round is told how many it missed, and
// goes on with the oldest that is kept.
func TestSlowStream(t *testing.T) {
	f := observed(t, Config{Entries: 10}, 5)
	s, err := f.Open(From{})
	fatal.If(t, err)
	if got, missed := numbers(t, s); len(got) != 5 || missed != nil {
		t.Fatalf("%v, %+v", got, missed)
	}
	for i := range 25 {
		r := refusing(node.ClockSkew)
		if i%2 == 0 {
			r = refusing(node.NoSID)
		}
		f.Observe(State{Node: node.Stats{Name: "n1"}, Refusing: r})
	}
	got, missed := numbers(t, s)
	if missed == nil || missed.Count != 15 || len(got) != 10 || got[9] != "boot-30" {
		t.Errorf("%v, %+v", got, missed)
	}
}

// The ring is bounded in entries and in bytes.
func TestRingIsBounded(t *testing.T) {
	one := len(JSON(observed(t, Config{}, 50).entries[40].Event))
	for _, cfg := range []Config{{Entries: 7}, {Bytes: 7*one + one/2}} {
		f := observed(t, cfg, 500)
		if n := len(f.entries); n < 5 || n > 8 || f.entries[n-1].Event.ID != "boot-500" {
			t.Errorf("%+v: %d entries", cfg, n)
		}
		sum := 0
		for _, e := range f.entries {
			sum += len(e.JSON)
		}
		if sum != f.bytes {
			t.Errorf("%+v: %d bytes, counted %d", cfg, sum, f.bytes)
		}
	}
}

// TestEndComesLast: at the end of the process a stream has all events first, however many.
func TestEndComesLast(t *testing.T) {
	const events = 2*maxBatch + 5
	f := observed(t, Config{}, events)
	s, err := f.Open(From{})
	fatal.If(t, err)
	defer s.Close()
	f.End()
	got := 0
	for err == nil {
		var b Batch
		b, _, err = s.Next()
		got += len(b.Entries)
	}
	if got != events || !errors.Is(err, ErrEnded) {
		t.Errorf("%d events of %d, then %v", got, events, err)
	}
}

func TestStreamsAreBounded(t *testing.T) {
	f := New(Config{Boot: "b", Streams: 3})
	var open []*Stream
	for range 3 {
		s, err := f.Open(From{Snapshots: true})
		fatal.If(t, err)
		open = append(open, s)
	}
	if _, err := f.Open(From{}); !errors.Is(err, ErrFull) {
		t.Fatalf("a fourth: %v", err)
	}
	open[0].Close()
	if n, _ := f.Watching(); n != 2 {
		t.Errorf("%d watch", n)
	}
	if _, err := f.Open(From{}); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	f.End()
	if _, _, err := open[1].Next(); !errors.Is(err, ErrEnded) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := f.Open(From{}); !errors.Is(err, ErrEnded) {
		t.Errorf("opened after the end: %v", err)
	}
}

// TestStreamsOfAClient: one client has a part of the streams, and operators have theirs
// besides: the oldest ends for a new one.
func TestStreamsOfAClient(t *testing.T) {
	f := New(Config{Boot: "b"})
	var last *Stream
	for i := range perClient + 1 {
		s, err := f.Open(From{Client: "reader"})
		if (err == nil) != (i < perClient) {
			t.Fatalf("stream %d: %v", i, err)
		}
		if err == nil {
			last = s
		}
	}
	for i := range 1000 {
		if _, err := f.Open(From{Client: strconv.Itoa(i)}); (err == nil) != (i < defaultStreams-perClient) {
			t.Fatalf("client %d: %v", i, err)
		}
	}
	last.Close()
	if _, err := f.Open(From{Client: "reader"}); err != nil {
		t.Errorf("after one was closed: %v", err)
	}
	ann, err := f.Open(From{Client: "ann", Operator: true})
	fatal.If(t, err)
	defer ann.Close()
	var pages []*Stream
	for range operators - 1 {
		s, err := f.Open(From{Client: "reader", Operator: true, Snapshots: true})
		fatal.If(t, err)
		pages = append(pages, s)
	}
	_, changed, _ := pages[0].Next()
	if s, err := f.Open(From{Operator: true}); err != nil {
		t.Errorf("one more page: %v", err)
	} else {
		defer s.Close()
	}
	<-changed
	if _, _, err := pages[0].Next(); !errors.Is(err, ErrFull) {
		t.Errorf("the oldest page of who has most: %v", err)
	}
	if _, _, err := ann.Next(); err != nil {
		t.Errorf("the only page of another client: %v", err)
	}
	if _, _, err := pages[1].Next(); err != nil {
		t.Errorf("the next one: %v", err)
	}
	for _, s := range pages {
		s.Close()
	}
	if n, _ := f.Watching(); n != 0 || len(f.pages) != 2 {
		t.Errorf("%d watch, %d pages are open", n, len(f.pages))
	}
}

// A stream gets each snapshot once, and none that is older than itself.
func TestSnapshots(t *testing.T) {
	f := New(Config{Boot: "b"})
	f.SetSnapshot("old")
	s, _ := f.Open(From{Snapshots: true})
	plain, _ := f.Open(From{})
	next := func(s *Stream) string { b, _, _ := s.Next(); text, _ := b.Snapshot.(string); return text }
	if got := next(s); got != "" {
		t.Errorf("an old one: %q", got)
	}
	_, changed, _ := s.Next()
	f.SetSnapshot("1")
	select {
	case <-changed:
	default:
		t.Error("not told")
	}
	if got := next(s) + next(s) + next(plain); got != "1" {
		t.Errorf("got %q", got)
	}
	if late, _ := f.Open(From{Snapshots: true}); next(late) != "1" {
		t.Error("a second stream does not get the first one's")
	}
	f = New(Config{Boot: "b"})
	first, _ := f.Open(From{Snapshots: true})
	second, _ := f.Open(From{Snapshots: true})
	f.SetSnapshot("2")
	if next(first) != "2" || next(second) != "2" {
		t.Error("streams that were opened before the first snapshot do not get it")
	}
}

// TestEtcdFails: the time is that of the latest observation, if etcd fails in it.
func TestEtcdFails(t *testing.T) {
	f := New(Config{Boot: "b"})
	for _, tc := range []struct {
		fails bool
		now   clock.Millis
		since int64
	}{{false, 1000, 0}, {true, 2000, 2000}, {true, 3000, 2000}, {false, 4000, 0}, {true, 5000, 5000}} {
		f.Observe(State{EtcdFails: tc.fails, EtcdSince: clock.Millis(tc.since), Node: node.Stats{Now: tc.now}})
		if got := f.EtcdFails(); got != tc.since {
			t.Errorf("at %d: since %d, want %d", tc.now, got, tc.since)
		}
	}
}

// TestObserve: whoever waits is woken by what happened, by a snapshot and by the end, and by
// nothing else.
func TestObserve(t *testing.T) {
	f := New(Config{Boot: "b"})
	s, err := f.Open(From{})
	fatal.If(t, err)
	woken := func(do func()) bool {
		_, changed, _ := s.Next()
		do()
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	state := State{Node: node.Stats{Name: "n1"}}
	for i, want := range []bool{true, false, false} {
		var happened bool
		if got := woken(func() { happened = len(f.Observe(state)) > 0 }); got != want || happened != want {
			t.Errorf("observation %d: woken %v, happened %v, want %v", i, got, happened, want)
		}
	}
	if !woken(f.End) {
		t.Error("not woken by the end")
	}
}

func TestLatest(t *testing.T) {
	f := observed(t, Config{Entries: 5}, 20)
	for n, want := range map[int]int{0: 0, 1: 1, 4: 4, 5: 5, 6: 5, 1000: 5} {
		events, after := f.Latest(n)
		if len(events) != want || after != "boot-20" {
			t.Errorf("of the latest %d: %d, after %s", n, len(events), after)
		}
		for i, e := range events {
			if e.ID != fmt.Sprintf("boot-%d", 20-want+1+i) {
				t.Errorf("of the latest %d: number %d is %s", n, i, e.ID)
			}
		}
	}
	if events, after := New(Config{Boot: "b"}).Latest(3); len(events) != 0 || after != "b-0" {
		t.Errorf("of none: %v, %s", events, after)
	}
}

// TestAllBytesAreUsed: what fits exactly is kept.
func TestAllBytesAreUsed(t *testing.T) {
	all := observed(t, Config{}, 50)
	if n := len(observed(t, Config{Bytes: all.bytes}, 50).entries); n != 50 {
		t.Errorf("%d of 50 entries", n)
	}
	if n := len(observed(t, Config{Bytes: all.bytes - 1}, 50).entries); n != 49 {
		t.Errorf("%d entries where 49 fit", n)
	}
}

// TestPagesGiveWay: each page above the limit ends another one.
func TestPagesGiveWay(t *testing.T) {
	f := New(Config{Boot: "b"})
	var pages []*Stream
	for range operators + 3 {
		s, err := f.Open(From{Client: "ann", Operator: true})
		fatal.If(t, err)
		pages = append(pages, s)
	}
	for i, s := range pages {
		if _, _, err := s.Next(); errors.Is(err, ErrFull) != (i < 3) {
			t.Errorf("page %d: %v", i, err)
		}
	}
}

// TestPlacesAreGivenBack: a client has as many streams as it has not closed.
func TestPlacesAreGivenBack(t *testing.T) {
	f := New(Config{Boot: "b"})
	var open []*Stream
	add := func() error {
		s, err := f.Open(From{Client: "ann"})
		if err == nil {
			open = append(open, s)
		}
		return err
	}
	for range perClient {
		fatal.If(t, add())
	}
	open[0].Close()
	if open = open[1:]; add() != nil || !errors.Is(add(), ErrFull) {
		t.Errorf("%d streams are open", len(open))
	}
	for _, s := range open {
		s.Close()
	}
}

// Streams are opened, read and closed while events come.
func TestConcurrentStreams(t *testing.T) {
	f := New(Config{Boot: "b", Entries: 16})
	done := make(chan error, 8)
	for range cap(done) {
		s, err := f.Open(From{Snapshots: true})
		fatal.If(t, err)
		go func() {
			defer s.Close()
			last, missed := 0, int64(0)
			for {
				b, changed, err := s.Next()
				if err != nil {
					done <- nil
					return
				}
				if b.Missed != nil {
					missed += b.Missed.Count
				}
				for _, e := range b.Entries {
					var n int
					fmt.Sscanf(e.Event.ID, "b-%d", &n)
					if int64(n) != int64(last)+missed+1 && last != 0 {
						done <- fmt.Errorf("%d after %d, %d missed", n, last, missed)
						return
					}
					last, missed = n, 0
				}
				if b.Empty() {
					<-changed
				}
			}
		}()
	}
	for i := range 2000 {
		s := State{Node: node.Stats{Name: "n"}}
		if i%2 == 0 {
			s.Refusing = refusing(node.NoSID)
		}
		f.Observe(s)
		f.SetSnapshot("{}")
	}
	f.End()
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
