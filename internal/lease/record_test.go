package lease

import (
	"errors"
	"fmt"
	"hash/crc32"
	"reflect"
	"strings"
	"testing"

	"github.com/flakelease/allocator/flake"
)

var (
	aSpace         = Space{Layout: flake.Fleet, Epoch: 1_704_067_200_000, Pool: "0c9e0b8e-63a5-4f3b-8d2c-5a4c1b2f7e10"}
	anEra          = Era{Number: 2, Floor: 1_800_000_000_000, Cluster: 1<<64 - 1}
	anAcceptedTime = AcceptedTime{Era: 2, Until: 1_800_000_000_000, Nonce: "x", By: "ann@ops-1", At: 1_799_996_400_000}
	aHolder        = Holder{Instance: "i", Node: "n"}
	aWindow        = Window{
		Era: 2, Term: 41, Instance: "i", Node: "n", Nonce: "x",
		Base: 1_800_000_000_000, Ceil: 1_800_000_030_000, State: Active, Wall: 1_800_000_000_001,
	}
	aLedgerLine   = LedgerLine{Term: 41, Instance: "i", Node: "n", Era: 2, Since: 1_800_000_000_000}
	aRegistration = Registration{Instance: "i", Node: "n", Version: "v1", GRPC: "a:1", HTTP: "a:2", Gossip: "a:3", Console: "http://a:4"}
)

// seal gives body the version and checksum of a record.
func seal(body string) string {
	return fmt.Sprintf("%s %08x %s", recordVersion, crc32.Checksum([]byte(body), castagnoli), body)
}

func TestSpaceID(t *testing.T) {
	for space, want := range map[Space]uint64{
		{Pool: aSpace.Pool, Named: true}: 0x0c9e0b8e63a54f3b, {Pool: aSpace.Pool}: 0, {Named: true}: 0, {Pool: "pool-1", Named: true}: 0,
		{Pool: "fc9e0b8e0-63a5-4f3b", Named: true}: 0,
	} {
		if got := space.ID(); got != want {
			t.Errorf("%+v: %x, want %x", space, got, want)
		}
	}
}

// The stored form is a format: these lines are in etcds out there.
func TestRecordForms(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{Encode(aSpace), seal(`{"layout":"fleet","epoch":1704067200000,"pool":"0c9e0b8e-63a5-4f3b-8d2c-5a4c1b2f7e10"}`)},
		{Encode(Space{Layout: flake.Twitter, Pool: "p", Named: true}), seal(`{"layout":"twitter","epoch":0,"pool":"p","named":true}`)},
		{Encode(anEra), seal(`{"number":2,"floor":1800000000000,"cluster":"18446744073709551615"}`)},
		{Encode(anAcceptedTime), seal(`{"era":2,"until":1800000000000,"nonce":"x","by":"ann@ops-1","at":1799996400000}`)},
		{Encode(aHolder), `a1 e19d19cf {"instance":"i","node":"n"}`},
		{Encode(aWindow), seal(`{"era":2,"term":41,"instance":"i","node":"n","nonce":"x","base":1800000000000,` +
			`"ceil":1800000030000,"state":"active","wall":1800000000001}`)},
		{Encode(quarantined()), seal(`{"era":2,"term":41,"instance":"i","node":"n","nonce":"x","base":1800000000000,` +
			`"ceil":1800000030000,"state":"quarantined","wall":1800000000001,"reason":"disk of node 7","by":"ann@ops-1"}`)},
		{anEra.Begun(), "era 2 began"},
		{Era{Number: 3, By: "ann@ops-1\n"}.Begun(), "ann@ops-1\ufffd began era 3"},
		{Encode(aLedgerLine), seal(`{"term":41,"instance":"i","node":"n","era":2,"since":1800000000000}`)},
		{Encode(aRegistration), seal(`{"instance":"i","node":"n","version":"v1","grpc":"a:1","http":"a:2","gossip":"a:3","console":"http://a:4"}`)},
	} {
		if tc.got != tc.want {
			t.Errorf("got  %s\nwant %s", tc.got, tc.want)
		}
	}
}

func quarantined() Window {
	w := aWindow
	w.State, w.Reason, w.By = Quarantined, "disk of node 7", "ann@ops-1"
	return w
}

func roundTrip[T comparable](t *testing.T, want T) {
	t.Helper()
	if got, err := Decode[T](Encode(want)); err != nil || got != want {
		t.Errorf("%T: got %+v, %v, want %+v", want, got, err, want)
	}
}

func TestRecordsRoundTrip(t *testing.T) {
	roundTrip(t, aSpace)
	roundTrip(t, anEra)
	roundTrip(t, anAcceptedTime)
	roundTrip(t, aHolder)
	roundTrip(t, aWindow)
	roundTrip(t, quarantined())
	roundTrip(t, aLedgerLine)
	roundTrip(t, aRegistration)
	long := aWindow
	long.Node, long.Instance = strings.Repeat("n", 63), Instance(strings.Repeat("i", 36))
	if n := len(Encode(long)); n > 400 {
		t.Errorf("a window takes %d bytes, want at most 400", n)
	}
}

// Any single bit that changes must show.
func TestDecodeNoticesEveryBit(t *testing.T) {
	good := Encode(aWindow)
	for i := range good {
		for bit := range 8 {
			bad := []byte(good)
			bad[i] ^= 1 << bit
			w, err := Decode[Window](string(bad))
			if err == nil && w == aWindow && strings.EqualFold(string(bad), good) {
				continue // a checksum's hex digit in the other case says the same
			}
			if err == nil || w != (Window{}) {
				t.Errorf("bit %d of byte %d changed: got %+v, %v", bit, i, w, err)
			}
		}
	}
	for n := range good {
		if w, err := Decode[Window](good[:n]); err == nil || w != (Window{}) {
			t.Errorf("first %d bytes: got %+v, %v", n, w, err)
		}
	}
}

// Incident T30 (what could not be read was read as 0), docs/INCIDENTS.md.
func TestDecodeRefuses(t *testing.T) {
	with := func(change func(*Window)) string {
		w := aWindow
		change(&w)
		return Encode(w)
	}
	for _, tc := range []struct {
		name, raw string
		want      error
	}{
		{"empty", "", ErrVersion},
		{"zero", "0", ErrVersion},
		{"next version", "a2" + Encode(aWindow)[2:], ErrVersion},
		{"no checksum", "a1 {}", ErrMalformed},
		{"short checksum", "a1 1234 {}", ErrMalformed},
		{"signed checksum", "a1 +1234567 {}", ErrMalformed},
		{"wrong checksum", "a1 00000000 {}", ErrChecksum},
		{"no body", seal(""), ErrMalformed},
		{"null", seal("null"), ErrMalformed},
		{"array", seal("[]"), ErrMalformed},
		{"two bodies", seal(`{} {}`), ErrMalformed},
		{"empty body", seal("{}"), ErrMalformed},
		{"too long", seal(`{"nonce":"` + strings.Repeat("x", maxRecord) + `"}`), ErrMalformed},
		{"era 0", with(func(w *Window) { w.Era = 0 }), ErrMalformed},
		{"term 0", with(func(w *Window) { w.Term = 0 }), ErrMalformed},
		{"no instance", with(func(w *Window) { w.Instance = "" }), ErrMalformed},
		{"no nonce", with(func(w *Window) { w.Nonce = "" }), ErrMalformed},
		{"negative base", with(func(w *Window) { w.Base = -1 }), ErrMalformed},
		{"ceiling below base", with(func(w *Window) { w.Ceil = w.Base - 1 }), ErrMalformed},
		{"state", with(func(w *Window) { w.State = "lent" }), ErrMalformed},
		{"no state", with(func(w *Window) { w.State = "" }), ErrMalformed},
		{"a worker since before 1970", with(func(w *Window) { w.Worker, w.Since = true, -1 }), ErrMalformed},
		{"a worker since after its base", with(func(w *Window) { w.Worker, w.Since = true, w.Base+1 }), ErrMalformed},
	} {
		if w, err := Decode[Window](tc.raw); !errors.Is(err, tc.want) || w != (Window{}) {
			t.Errorf("%s: got %+v, %v, want %v", tc.name, w, err, tc.want)
		}
	}
	if _, err := Decode[Window](with(func(w *Window) { w.Ceil = w.Base })); err != nil {
		t.Errorf("an empty window: %v", err)
	}
	if _, err := Decode[Window](with(func(w *Window) { w.Worker, w.Since = true, w.Base })); err != nil {
		t.Errorf("a worker since its base: %v", err)
	}
	for _, era := range []Era{{Number: 0}, {Number: -1}, {Number: 1, Floor: -1}} {
		if got, err := Decode[Era](Encode(era)); !errors.Is(err, ErrMalformed) || got != (Era{}) {
			t.Errorf("era %+v: got %+v, %v", era, got, err)
		}
	}
	for _, a := range []AcceptedTime{{Until: 1, Nonce: "x"}, {Era: 1, Nonce: "x"}, {Era: 1, Until: -1, Nonce: "x"}, {Era: 1, Until: 1}} {
		if got, err := Decode[AcceptedTime](Encode(a)); !errors.Is(err, ErrMalformed) || got != (AcceptedTime{}) {
			t.Errorf("accepted time %+v: got %+v, %v", a, got, err)
		}
	}
	if _, err := Decode[Space](seal(`{"layout":"roomy","epoch":1,"pool":"p"}`)); !errors.Is(err, ErrMalformed) {
		t.Errorf("unknown layout: got %v", err)
	}
	if _, err := Decode[Space](seal(`{"epoch":1,"pool":"p"}`)); !errors.Is(err, ErrMalformed) {
		t.Errorf("no layout: got %v", err)
	}
	if _, err := Decode[Space](Encode(Space{Layout: flake.Scalable})); !errors.Is(err, ErrMalformed) {
		t.Errorf("space without a pool: got %v", err)
	}
	if _, err := Decode[LedgerLine](seal("null")); !errors.Is(err, ErrMalformed) {
		t.Errorf("tenure from null: got %v", err)
	}
	if _, err := Decode[Registration](seal("{}")); !errors.Is(err, ErrMalformed) {
		t.Errorf("registration without an instance: got %v", err)
	}
	if _, err := Decode[Holder](Encode(Holder{Node: "n"})); !errors.Is(err, ErrMalformed) {
		t.Errorf("holder without an instance: got %v", err)
	}
}

// FuzzDecode feeds any bytes to all records: as they come, and as the body of a
// record whose checksum is right.
func FuzzDecode(f *testing.F) {
	for _, raw := range []string{Encode(aSpace), Encode(anEra), Encode(anAcceptedTime), Encode(aHolder), Encode(aWindow), Encode(aLedgerLine),
		Encode(aRegistration), Encode(Act{Action: "a", By: "b", At: 1, Nonce: "n"}), "", "a1", "a1 ", "a2 x", "a1 00000000 {}", "{}", "null", `{"cluster":"x"}`, `{"era":1e400}`} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		for _, raw := range []string{raw, seal(raw)} {
			decodeAny[Space](t, raw)
			decodeAny[Era](t, raw)
			decodeAny[AcceptedTime](t, raw)
			decodeAny[Holder](t, raw)
			decodeAny[Window](t, raw)
			decodeAny[LedgerLine](t, raw)
			decodeAny[Registration](t, raw)
			decodeAny[Act](t, raw)
		}
	})
}

// decodeAny checks that Decode gives either a record that survives being stored
// again, or one of its three errors and nothing else.
func decodeAny[T comparable](t *testing.T, raw string) {
	t.Helper()
	var zero T
	got, err := Decode[T](raw)
	if err != nil {
		if got != zero || !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrVersion) && !errors.Is(err, ErrChecksum) {
			t.Errorf("%T from %q: got %+v, %v", zero, raw, got, err)
		}
		return
	}
	again, err := Decode[T](Encode(got))
	if err != nil || !reflect.DeepEqual(again, got) {
		t.Errorf("%T from %q: %+v came back as %+v, %v", zero, raw, got, again, err)
	}
}

// An operation that no step carries out has a name all the same, and is not written.
func TestUnknownOp(t *testing.T) {
	op := Expire + 1
	if err := (Txn{Op: op, Lease: 1}).Check(); op.String() != "unknown" || !errors.Is(err, ErrTxn) {
		t.Errorf("%v: %v", op, err)
	}
}
