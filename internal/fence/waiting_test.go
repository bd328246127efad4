package fence

import (
	"fmt"
	"strings"
	"testing"
)

// holdersOf reads "3/7 -1/900": a name that begins with -1 is that of a prepared transaction.
func holdersOf(s string) (out []Holder) {
	for i, name := range strings.Fields(s) {
		name, prepared, is := strings.Cut(name, "=")
		h := Holder{Transaction: name, PID: 100 + i, Prepared: prepared}
		if is || strings.HasPrefix(name, "-1/") {
			h.PID = 0
		}
		out = append(out, h)
	}
	return out
}

func TestWaiting(t *testing.T) {
	for name, looks := range map[string][]string{
		"nobody":                        {" -> "},
		"until the last one":            {"3/7 4/2 -> 3/7 4/2", "4/2 -> 4/2", " -> "},
		"not for those that come":       {"3/7 -> 3/7", "3/7 5/1 -> 3/7", "5/1 -> "},
		"not for the next of a process": {"3/7 -> 3/7", "3/8 -> "},
		"prepared before":               {"-1/900 -> -1/900", "-1/900 5/1 -> -1/900", "5/1 -> "},
		"prepared meanwhile":            {"3/7 -> 3/7", "-1/900 -> -1/900", "-1/900 -1/901 -> -1/900", "-1/901 -> "},
		"one ends as others prepare":    {"3/7 4/2 -> 3/7 4/2", "4/2 -1/900 -1/901 -> 4/2 -1/900 -1/901", "-1/901 -> -1/901", " -> "},
		"seen twice as it is prepared":  {"3/7 -> 3/7", "3/7 -1/900 -> 3/7", "-1/900 -> -1/900", " -> "},
		"prepared, then a crash":        {"3/15=x -> 3/15", "-1/768=x -1/769=y -> -1/768", "-1/769=y -> "},
		"prepared ones without end":     {"-1/900 -> -1/900", "-1/900 -1/901 -> -1/900", "-1/902 -> "},
	} {
		t.Run(name, func(t *testing.T) {
			var w waiting
			for i, look := range looks {
				now, want, _ := strings.Cut(look, "->")
				got := ""
				for _, h := range w.see(holdersOf(now)) {
					got += " " + h.Transaction
				}
				if got, want := strings.TrimSpace(got), strings.TrimSpace(want); got != want {
					t.Fatalf("%s: waits for %q, want %q", fmt.Sprint("look ", i), got, want)
				}
			}
		})
	}
}
