package embed_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/flakelease/allocator/embed"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
)

// BenchmarkNext is a program's call, against real etcd and with gossip; random
// steps of a byte, until demand runs ahead of the clock. See node.BenchmarkNext for
// what is below it.
func BenchmarkNext(b *testing.B) {
	c := config.Default()
	c.Space, c.Etcd.Endpoints = "bench", []string{shared}
	if _, _, err := daemon.Init(b.Context(), c, daemon.Beginning{Fresh: true}, slog.New(slog.DiscardHandler)); err != nil {
		b.Fatal(err)
	}
	a, err := embed.Open(b.Context(), program(c, "one"))
	if err != nil {
		b.Fatal(err)
	}
	defer a.Close()
	ctx := context.Background()
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := a.Next(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("1000 into a slice", func(b *testing.B) {
		dst := make([]flake.ID, 1000)
		b.ReportAllocs()
		for b.Loop() {
			if err := a.NextN(ctx, dst); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("wide", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := a.NextULID(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
}
