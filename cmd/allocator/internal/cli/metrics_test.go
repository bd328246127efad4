package cli

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

// What stands by for another process is healthy.
func TestProblem(t *testing.T) {
	other := errors.New("another one works")
	for want, all := range map[error][]error{nil: {nil, fmt.Errorf("db: %w", other)}, io.EOF: {nil, other, io.EOF, io.ErrClosedPipe}} {
		c := Collector[error]{Err: func(err error) error { return err }, Other: other, All: func(yield func(error, ...string)) {
			for _, err := range all {
				yield(err)
			}
		}}
		if got := c.problem(); !errors.Is(got, want) {
			t.Errorf("%v: %v, want %v", all, got, want)
		}
	}
}
