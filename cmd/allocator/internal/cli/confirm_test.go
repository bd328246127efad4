package cli

import (
	"bytes"
	"strings"
	"testing"
)

func TestAsk(t *testing.T) {
	for answer, want := range map[string]int{"yes\n": 0, " yes \n": 0, "y\n": ExitInvalid, "\n": ExitInvalid, "": ExitUsage, "yes": ExitUsage} {
		var out bytes.Buffer
		a := &App{In: strings.NewReader(answer), Err: &out}
		err := ask(a, "Really?")
		got := 0
		if exit, ok := err.(*ExitError); ok {
			got = exit.Code
		}
		if got != want || !strings.HasPrefix(out.String(), "Really? Type yes: ") {
			t.Errorf("%q: %d, %v", answer, got, err)
		}
	}
}
