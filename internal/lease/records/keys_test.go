package records

import (
	"strings"
	"testing"

	"github.com/flakelease/allocator/flake"
)

// Keys are a format: a change strands every record in every etcd. Spaces in one etcd have no key in common, be
// the name of one the beginning of another's.
//
// Incident T31 (two clusters on one etcd), docs/INCIDENTS.md.
func TestKeys(t *testing.T) {
	const k Keys = "/allocator/default/"
	for _, tc := range []struct{ got, want string }{
		{k.Config(), "/allocator/default/config"},
		{k.Era(), "/allocator/default/era"},
		{k.Node("i-1"), "/allocator/default/node/i-1"},
		{k.Holder(7), "/allocator/default/holder/7"},
		{k.Window(1023), "/allocator/default/window/1023"},
		{k.Ledger(0, 12), "/allocator/default/ledger/0/00000000000000000012"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
	first, end := k.Watched()
	for key, want := range map[string]bool{
		k.Config(): true, k.Era(): true, k.Holder(0): true, k.Holder(4194303): true,
		k.Node("x"): true, string(k) + acts + "1-x": true, k.Window(0): false, k.Ledger(0, 1): true,
		strings.Replace(k.Holder(1), "default", "other", 1): false,
	} {
		if got := first <= key && key < end; got != want {
			t.Errorf("%s watched: got %v, want %v", key, got, want)
		}
	}
	for _, other := range []Keys{"/allocator/default1/", "/allocator/default-1/", "/allocator/default.1/"} {
		if key := other.Config(); string(k) <= key && key < after(string(k)) {
			t.Errorf("%s has the key %s of %s", k, key, other)
		}
	}
	if n := after(k.ledgerOf(1)); k.Ledger(10, 1) < n && k.Ledger(10, 1) >= k.ledgerOf(1) {
		t.Error("the ledger of sid 1 takes in that of sid 10")
	}
	for _, s := range []string{"", "01", "+1", "-1", "1 ", "4194304", "0x1", "1_0"} {
		if sid, ok := parseSID(s); ok {
			t.Errorf("sid %q was read as %d", s, sid)
		}
	}
	for _, sid := range []flake.SID{0, 9, 31, 1023, 4194303} {
		if got, ok := parseSID(sidName(sid)); !ok || got != sid {
			t.Errorf("sid %d came back as %d, %v", sid, got, ok)
		}
	}
}
