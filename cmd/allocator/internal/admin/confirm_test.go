package admin

import (
	"bytes"
	"strings"
	"testing"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

func TestAsk(t *testing.T) {
	for answer, want := range map[string]int{"yes\n": 0, " yes \n": 0, "y\n": cli.ExitInvalid, "\n": cli.ExitInvalid, "": cli.ExitUsage, "yes": cli.ExitUsage} {
		var out bytes.Buffer
		a := &cli.App{In: strings.NewReader(answer), Err: &out}
		err := ask(a, "Really?")
		got := 0
		if exit, ok := err.(*cli.ExitError); ok {
			got = exit.Code
		}
		if got != want || !strings.HasPrefix(out.String(), "Really? Type yes: ") {
			t.Errorf("%q: %d, %v", answer, got, err)
		}
	}
}

func TestTimeFlag(t *testing.T) {
	for text, want := range map[string]int64{
		"2026-02-01T12:00:00Z": 1769947200000, "2026-02-01T12:00:00.0001Z": 1769947200001, "2026-02-01T13:00:00+01:00": 1769947200000,
		"2026-02-01": 1769904000000, "2026-02-01T12:00:00": 1769947200000, "1960-01-01": 0, "soon": 0, "": 0,
	} {
		var f timeFlag
		if err := f.Set(text); (err == nil) != (want != 0) || int64(f) != want {
			t.Errorf("%q: %d, %v, want %d", text, f, err, want)
		}
	}
}
