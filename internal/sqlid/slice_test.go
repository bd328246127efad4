package sqlid

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/userdb"
)

// TestFormatOf: a server that cannot have slices, and a schema that is not ours, are named with what to do.
func TestFormatOf(t *testing.T) {
	ours := commentOf(scalable)
	for _, c := range []struct {
		version  int
		recovery bool
		says     string
		want     string // in the error; "": none
	}{
		{150018, false, ours, ""},
		{140011, false, ours, "db is PostgreSQL 14: 15 or later"},
		{150000, true, ours, "db is a standby, and takes no writes: give the address of the primary"},
		{150000, false, "", "that is not ours"},
		{150000, false, comment + "scalable", "that is not ours"},
		{150000, false, comment + "round, epoch 2024-01-01T00:00:00Z", "was made by another version"},
		{150000, false, comment + "scalable, epoch soon", "was made by another version"},
	} {
		f, found, err := formatOf("db", c.version, c.recovery, &c.says)
		if c.want == "" && (err != nil || !found || f != scalable) ||
			c.want != "" && (!errors.Is(err, userdb.ErrSetup) || !strings.Contains(fmt.Sprint(err), c.want)) {
			t.Errorf("%d, %v, %q: %v, %v", c.version, c.recovery, c.says, f, err)
		}
	}
	if _, found, err := formatOf("db", 150000, false, nil); found || err != nil {
		t.Errorf("without a schema: %v", err)
	}
}

// TestCut: slices of a worker are disjoint and rise, begin no earlier than asked and less than a unit later, and each
// word of them is an ID of the worker in the slice's time.
func TestCut(t *testing.T) {
	for _, name := range flake.Layouts() {
		l, err := flake.ParseLayout(name)
		if err != nil || l.SIDBits() == 0 {
			continue
		}
		f := flake.Format{Layout: l, Epoch: flake.DefaultEpoch}
		s := Shape{Format: f, SID: flake.SID(l.Holders() - 1)}
		r := rand.New(rand.NewPCG(1, 2))
		now, after := int64(flake.DefaultEpoch)+1_000_000_007, int64(0)
		for i := range 1000 {
			now += r.Int64N(3000) - 500
			every := time.Duration(r.Int64N(2000)) * time.Millisecond
			if i%10 == 0 {
				every = 0
			}
			got, err := s.Cut(now, after, every)
			begin := max(now, after)
			if err != nil || got.FromMs < begin || got.FromMs >= begin+l.Unit() || got.ToMs-got.FromMs < max(every.Milliseconds(), 1) ||
				got.ToMs-got.FromMs > every.Milliseconds()+2*l.Unit() {
				t.Fatalf("%s: %+v of %d, %d, %v: %v", name, got, now, after, every, err)
			}
			first, last := got.First, got.Stop-s.Step()+int64(s.SID)
			if first&(s.Step()-1) != int64(s.SID) || first >= got.Stop || last < first ||
				f.UnixMilli(flake.ID(first)) != got.FromMs || f.UnixMilli(flake.ID(last)) != got.ToMs-l.Unit() {
				t.Fatalf("%s: words %d to %d of %+v", name, first, last, got)
			}
			after = got.ToMs
		}
		if got, err := s.Cut(f.Epoch-1_000_000, 0, time.Second); err != nil || got.FromMs != f.Epoch {
			t.Errorf("%s: before the epoch: %+v, %v", name, got, err)
		}
		if _, err := s.Cut(f.Epoch+(l.MaxTimestamp()+1)*l.Unit(), 0, time.Second); err == nil {
			t.Errorf("%s: a slice after the end of the layout", name)
		}
	}
}
