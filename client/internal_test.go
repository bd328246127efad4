package client

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
)

// TestReasons: a refusal on a stream has the reason that its number stands for, and one of
// a later version the number.
func TestReasons(t *testing.T) {
	for number, name := range pb.Reason_name {
		want := Reason(strings.TrimPrefix(name, "REASON_"))
		if got := refusalIn(&pb.Refusal{Reason: pb.Reason(number)}, "n").Reason; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for number, want := range map[pb.Reason]Reason{10_000: "10000", -1: "-1"} {
		if got := refusalIn(&pb.Refusal{Reason: number}, "n").Reason; got != want {
			t.Errorf("reason %d is %q, want %q", number, got, want)
		}
	}
}

// TestRefusalOf: an error without a reason of a node is a refusal if it is about credentials alone.
func TestRefusalOf(t *testing.T) {
	for err, want := range map[error]Reason{
		nil: "", io.EOF: "", status.Error(codes.Unavailable, ""): "", status.Error(codes.Unauthenticated, ""): Unauthenticated,
		status.Error(codes.PermissionDenied, ""): PermissionDenied,
	} {
		if r := RefusalOf(err, "n"); (r != nil) != (want != "") || r != nil && (r.Reason != want || r.Node != "n") {
			t.Errorf("%v: %+v, want %q", err, r, want)
		}
	}
}

// TestDefaults: what is not set has its default, and what is set stays, whatever the caller does with its
// targets afterwards.
func TestDefaults(t *testing.T) {
	targets := []string{"a:1"}
	o, err := Options{Targets: targets}.withDefaults()
	if targets[0] = "b:1"; err != nil || !slices.Equal(o.Targets, []string{"a:1"}) || o.Timeout != DefaultTimeout ||
		o.AttemptTimeout != DefaultAttemptTimeout || o.MaxAge != DefaultMaxAge {
		t.Errorf("%+v, %v", o, err)
	}
	set := Options{
		Targets:        []string{"[::1]:1"},
		Mode:           Prefetch,
		After:          1,
		Timeout:        -1,
		AttemptTimeout: 2,
		MaxAge:         3,
	}
	if o, err := set.withDefaults(); err != nil || o.Timeout != -1 || o.AttemptTimeout != 2 || o.MaxAge != 3 {
		t.Errorf("%+v, %v", o, err)
	}
	for m, name := range map[Mode]string{Coalesce: "coalesce", Prefetch: "prefetch", Prefetch + 1: "mode(3)"} {
		if m.String() != name {
			t.Errorf("%v is not %s", m, name)
		}
	}
}

// TestUptime: time goes on in suspend too, never goes back, and needs few reads of the boot clock.
func TestUptime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, asleep, reads := time.Now(), time.Duration(0), 0
		u := newUptime(func() time.Duration { reads++; return time.Hour + time.Since(begun) + asleep })
		for _, tc := range []struct {
			awake, asleep, want time.Duration
			reads               int
		}{
			{0, 0, 0, 1}, {time.Second, 0, time.Second, 2}, {suspendCheck - 1, time.Minute, time.Second + suspendCheck - 1, 2},
			{1, 0, time.Minute + time.Second + suspendCheck, 3}, {time.Second, -time.Hour, time.Minute + 2*time.Second + suspendCheck, 4},
		} {
			time.Sleep(tc.awake)
			asleep += tc.asleep
			for range 2 {
				if now := u.now(); now != tc.want || reads != tc.reads {
					t.Errorf("%+v: %v after %d reads", tc, now, reads)
				}
			}
		}
	})
	synctest.Test(t, func(t *testing.T) {
		u := newUptime(func() time.Duration { return 0 }) // There is no such clock.
		if time.Sleep(time.Second); u.now() != time.Second {
			t.Errorf("%v", u.now())
		}
	})
}

// TestRandom: random bits are not used twice, nor kept.
func TestRandom(t *testing.T) {
	e := &entropy{used: randomBytes}
	if v := e.next(); v == 0 || slices.ContainsFunc(e.bits[:e.used], func(b byte) bool { return b != 0 }) {
		t.Errorf("%x is kept", e.bits[:e.used])
	}
	seen := map[uint64]bool{}
	for range 3 * randomBytes {
		v := random()
		if seen[v] {
			t.Fatalf("%x twice", v)
		}
		seen[v] = true
	}
}

// TestNotPassed: a wait that ends says where the watermark is, and what held it back by the latest answer.
func TestNotPassed(t *testing.T) {
	c := &Client{}
	if err := c.notPassed(io.EOF, 5); err != io.EOF {
		t.Errorf("no watermark is known: %v", err)
	}
	for _, tc := range []struct{ text, says string }{
		{"", "has not passed 0000000000005, and is at 0000000000003: EOF"},
		{"a is silent", "is at 0000000000003: a is silent: EOF"},
		{"b is silent", "is at 0000000000003: b is silent: EOF"},
	} {
		w := Watermark{UnixMilli: 1, ID: 3}
		if tc.text != "" {
			w.BlockedBy = []WatermarkBlocker{{Text: tc.text}}
		}
		c.raiseMark(w)
		if err := c.notPassed(io.EOF, 5); !strings.HasSuffix(err.Error(), tc.says) || !errors.Is(err, io.EOF) {
			t.Errorf("%v, want %s", err, tc.says)
		}
	}
}
