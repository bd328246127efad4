package services

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// TestClients: the clients that were written for this understand the servers
// they are used with, and count what comes.
func TestClients(t *testing.T) {
	serve := func(kind string) string {
		addr := freeAddr()
		ended := make(chan error, 1)
		go func() { ended <- Serve(kind, addr) }()
		for end := time.Now().Add(startTimeout); ; time.Sleep(5 * time.Millisecond) {
			if c, err := net.Dial("tcp", addr); err == nil {
				_ = c.Close()
				return addr
			}
			select {
			case err := <-ended:
				t.Fatal(kind, err)
			default:
			}
			if time.Now().After(end) {
				t.Fatalf("%s does not answer", kind)
			}
		}
	}
	tcp, http, limits, grpc := serve("tcp"), serve("http"), serve("http-limits"), serve("grpc")
	for name, open := range map[string]func() (Caller, error){
		"tcp 4":     func() (Caller, error) { return tcpCaller(tcp, 4) },
		"http 4":    func() (Caller, error) { return httpCaller(http, 4) },
		"limits 4":  func() (Caller, error) { return httpCaller(limits, 4) },
		"unary 4":   func() (Caller, error) { return unaryCaller(grpc, 4) },
		"stream 4":  func() (Caller, error) { return streamCaller(grpc, 4, 1) },
		"stream, 4": func() (Caller, error) { return streamCaller(grpc, 1, 4) },
	} {
		c, err := open()
		if err != nil {
			t.Fatal(name, err)
		}
		for range 3 {
			if n, err := c.Do(); n != 4 || err != nil {
				t.Errorf("%s: %d, %v", name, n, err)
			}
		}
		c.Close()
	}
}

func TestReplies(t *testing.T) {
	for in, want := range map[string]error{
		":5\r\n": nil, ":\r\n": nil, "$13\r\n02MVQDZ9NFSQ0\r\n": nil, "*2\r\n$13\r\n02MVQDZ9NFSQ0\r\n$10\r\n0123456789\r\n": nil, "+OK\r\n": nil, "$2\r\nab\r\n": nil, "*2\r\n$1\r\na\r\n:1\r\n": nil,
		"-ENTROPY_OVERFLOW too fast\r\n": ErrRefused,
	} {
		r := bufio.NewReader(strings.NewReader(in))
		if err := skipReply(r); !errors.Is(err, want) {
			t.Errorf("%q: %v", in, err)
		}
		if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("%q was not read to its end", in)
		}
	}
	// Also where it comes in pieces.
	for n := 1; n < 6; n++ {
		r := bufio.NewReader(iotest.OneByteReader(strings.NewReader("$13\r\n02MVQDZ9NFSQ0\r\n:12\r\n")))
		if _, err := r.Peek(n); err != nil || skipReply(r) != nil || skipReply(r) != nil || r.Buffered() != 0 {
			t.Errorf("in pieces: %v, %d bytes left", err, r.Buffered())
		}
	}
	for _, in := range []string{"$13\r\n02MV", "-ERR no\r\n", "$-1\r\n", "?\r\n", "$5\r\nab", ""} {
		if err := skipReply(bufio.NewReader(strings.NewReader(in))); err == nil {
			t.Errorf("%q passed", in)
		}
	}
}

// TestLoad: what is counted lies within the slice, and refusals apart.
func TestLoad(t *testing.T) {
	n := 0
	c := Caller{Do: func() (int, error) {
		time.Sleep(time.Millisecond)
		if n++; n%2 == 0 {
			return 0, ErrRefused
		}
		return 10, nil
	}}
	s, err := measure(t.Context(), []Caller{c}, 1, 1, 20*time.Millisecond, 200*time.Millisecond, func() time.Duration { return 0 })
	if err != nil || s.IDs > 10_000 || s.IDs < 1 || s.Refused < 0.3 || s.Refused > 0.7 || s.P50 < 900*time.Microsecond {
		t.Errorf("%+v, %v", s, err)
	}
	broken := Caller{Do: func() (int, error) { return 0, io.ErrUnexpectedEOF }}
	if _, err := measure(t.Context(), []Caller{broken}, 1, 1, time.Millisecond, time.Millisecond, func() time.Duration { return 0 }); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

// TestGoals: each goal names cases that there are, and is judged by its rounds.
func TestGoals(t *testing.T) {
	ids := map[string]bool{}
	for _, c := range Cases() {
		if ids[c.ID()] || c.Ours != (c.Mode != "") || c.Callers < 1 {
			t.Errorf("%+v", c)
		}
		ids[c.ID()] = true
	}
	for _, g := range Goals {
		if !ids[g.Case] || g.Peer != "" && !ids[g.Peer] || g.AtLeast <= 0 {
			t.Errorf("%+v", g)
		}
	}
	result := func(name string, p99 time.Duration, rates ...float64) Result {
		r := Result{Case: Case{Group: Single, Name: name}}
		for _, v := range rates {
			r.Samples = append(r.Samples, Sample{IDs: v, P99: p99})
		}
		return r
	}
	results := []Result{result("a", 5, 100, 300, 200), result("b", 4, 100, 100, 100)}
	goal := Goal{Case: Single + ": a", Peer: Single + ": b", AtLeast: 2}
	if v := Judge(goal, results); !v.Met || v.Got != (Spread{1, 2, 3}) {
		t.Errorf("%+v", v)
	}
	goal.P99 = true
	if v := Judge(goal, results); v.Met {
		t.Errorf("later, and met: %+v", v)
	}
	if v := Judge(Goal{Case: goal.Case, AtLeast: 201}, results); v.Met || !v.Measured {
		t.Errorf("%+v", v)
	}
	if v := Judge(Goal{Case: "none"}, results); v.Met || v.Measured {
		t.Errorf("%+v", v)
	}
}

func TestCount(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1 000", 1234567.4: "1 234 567"} {
		if got := Count(v); got != want {
			t.Errorf("%v: %q", v, got)
		}
	}
}
