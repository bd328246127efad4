package bench

import (
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
