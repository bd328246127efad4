// Package output keeps what programs and nodes print, for tests.
package output

import (
	"strings"
	"sync"
)

// Text is a writer that can be read while it is written. The zero value is empty.
type Text struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

// Write adds p.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// String returns all that was written.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
