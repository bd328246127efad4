package inside

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/meet"
	"github.com/flakelease/allocator/internal/member"
)

// The cluster that a list founds differs from a restored one of the same members.
func TestClusterOf(t *testing.T) {
	var e config.Etcd
	i := &Inside{cfg: Config{Etcd: e}, join: []string{"10.0.0.1", "10.0.0.2"}}
	initial, token := i.founding()
	id, err := clusterOf(initial, token)
	if err != nil || id == 0 {
		t.Fatalf("%s, %s: %x, %v", initial, token, id, err)
	}
	if other, err := clusterOf(initial, "restored-1"); err != nil || other == id {
		t.Errorf("restored: %x, %v", other, err)
	}
	if _, err := clusterOf("a=:", token); err == nil {
		t.Error("a list without URLs founds a cluster")
	}
}

// A member that waits for others ends its waiting when a restore was prepared, and takes it over.
func TestDecidePrepared(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d := Dir(t.TempDir())
	i := &Inside{
		cfg:  Config{Log: slog.New(slog.DiscardHandler)},
		dir:  d,
		host: "127.0.0.1",
		ip:   "127.0.0.1",
		join: []string{"127.0.0.1", "localhost"}, // Nobody is there.
	}
	time.AfterFunc(askEvery/2, func() {
		if err := meet.WriteJSON(d.restoredMarker(), member.Data{Host: "a"}); err != nil {
			t.Error(err)
		}
	})
	if data, err := i.decide(ctx, nil); !errors.Is(err, errPrepared) || data != nil {
		t.Errorf("got %v, %v; want %v", data, err, errPrepared)
	}
	if err := d.takeRestored(time.Now()); err != nil || d.prepared() {
		t.Errorf("taken over: %v, prepared %v", err, d.prepared())
	}
}

// A member that begins starts without what is left of the data that it lost, and keeps that.
func TestBeginsWithoutLeftovers(t *testing.T) {
	d := Dir(t.TempDir())
	if err := os.MkdirAll(filepath.Dir(d.database()), 0o700); err != nil {
		t.Fatal(err)
	}
	i := &Inside{
		cfg:  Config{Log: slog.New(slog.DiscardHandler)},
		dir:  d,
		host: "127.0.0.1",
		ip:   "127.0.0.1",
		join: []string{"127.0.0.1"},
	}
	if data, err := i.decide(t.Context(), nil); err != nil || data == nil || data.Token == "" {
		t.Fatalf("got %+v, %v", data, err)
	}
	if _, err := os.Stat(d.data()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("etcd's directory: %v", err)
	}
	if kept, err := filepath.Glob(d.data() + "-lost-*/member/snap"); err != nil || len(kept) != 1 {
		t.Errorf("kept %v, %v", kept, err)
	}
}
