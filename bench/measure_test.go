package bench

import (
	"strings"
	"testing"
	"time"
)

func TestSpreadAndDivide(t *testing.T) {
	if lo, mid, hi := spread([]float64{9, 1, 4, 2}); lo != 1 || mid != 3 || hi != 9 {
		t.Errorf("spread: %v %v %v", lo, mid, hi)
	}
	if got := divide([]float64{6, 9}, []float64{2, 3}); got[0] != 3 || got[1] != 3 {
		t.Errorf("divide: %v", got)
	}
	if n := calibrate(func(n int) { time.Sleep(time.Duration(n) * time.Millisecond) }, 20*time.Millisecond); n < 1 || n > 20 {
		t.Errorf("calibrate: %d operations of a millisecond or more fill 20", n)
	}
}

// TestReportOfSome: a selection of cases without one of ours is reported too.
func TestReportOfSome(t *testing.T) {
	var some []Case
	for _, c := range Cases() {
		if c.Library == "rs/xid" {
			some = append(some, c)
		}
	}
	times := Measure(some, 2, time.Microsecond)
	var b strings.Builder
	times.Tables(&b)
	times.GoalRows(&b)
	if got := strings.Count(b.String(), "| rs/xid | "); got != len(some) || len(some) < 3 {
		t.Errorf("%d rows of %d cases:\n%s", got, len(some), b.String())
	}
	if got := strings.Count(b.String(), "not measured"); got != len(Goals) {
		t.Errorf("%d goals not measured, of %d", got, len(Goals))
	}
}
