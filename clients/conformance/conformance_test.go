package main

import (
	"regexp"
	"strings"
	"testing"
)

// TestGo holds package client to the table.
func TestGo(t *testing.T) {
	var out strings.Builder
	failed, err := check(t.Context(), []string{"go"}, "go", regexp.MustCompile(""), &out)
	if err != nil || failed > 0 {
		t.Errorf("%d situations failed, %v\n%s", failed, err, &out)
	}
	t.Log(out.String())
}
