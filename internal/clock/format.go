package clock

import (
	"fmt"
	"time"
)

// FormatOffset writes an offset and the uncertainty of it for people: "+0.1ms ±0.3ms".
// A sign always leads, the uncertainty is rounded up, and what counts in seconds
// is written in seconds.
func FormatOffset(offset, uncertainty time.Duration) string {
	sign := "+"
	if offset < 0 {
		sign = "" // it has one
	}
	return sign + short(offset) + " ±" + short(uncertainty+tenth-1-(uncertainty+tenth-1)%tenth)
}

const tenth = time.Millisecond / 10

func short(d time.Duration) string {
	switch a := d.Abs(); {
	case a < 10*time.Second:
		return fmt.Sprintf("%.1fms", float64(d)/float64(time.Millisecond))
	case a < time.Hour:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}
