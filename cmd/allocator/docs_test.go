package main

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

func TestReferenceIsCurrent(t *testing.T) {
	const path = "../../docs/reference/cli.md"
	want := reference(newRoot(&cli.App{}))
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is out of date: run go test ./cmd/allocator -run Reference -update\n%s", path, diff)
	}
}

// The command prints the page that is committed.
func TestDocsPrintsTheReference(t *testing.T) {
	want, err := os.ReadFile("../../docs/reference/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, out, _ := allocator("docs", "cli"); out != string(want) {
		t.Error("allocator docs cli prints another page than docs/reference/cli.md")
	}
}
