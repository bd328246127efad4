// Package copies does what go vet must forbid: it copies a tenure.
package copies

import "github.com/flakelease/allocator/internal/gen"

func assigned(t *gen.Tenure) *gen.Tenure {
	c := *t
	return &c
}

func passed(t gen.Tenure) *gen.Tenure { return &t }
