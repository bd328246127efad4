package server

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The type of a problem leads to a section with the reason's own codes.
func TestRunbookHasTheCodes(t *testing.T) {
	b, err := os.ReadFile("../../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	for reason, w := range wires {
		want := fmt.Sprintf("\n#### %s\n<a id=\"%s\"></a>*%d, %s.*", reason, reason, w.http, w.grpc)
		if !strings.Contains(string(b), want) {
			t.Errorf("docs/OPERATIONS.md has no section %s with %q", reason, fmt.Sprintf("*%d, %s.*", w.http, w.grpc))
		}
	}
}
