package lease

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
)

var released = flag.String("released", "", "write what a release of this version stores into testdata/released: docs/RELEASING.md")

// aRecord is a record of a release: what it means, and how it is read from its stored form.
type aRecord struct {
	kind string
	raw  string
	read func(raw string) (any, error)
	want any
}

func recordOf[T any](kind string, want T) aRecord {
	return aRecord{kind, Encode(want), func(raw string) (any, error) { return Decode[T](raw) }, want}
}

// recordsOf010 has every kind of record with every field, as they were in 0.1.0. A field that
// a later version adds is not in it: the record of a release has what that release wrote.
func recordsOf010() []aRecord {
	const instance = Instance("0f6e2a52-6a52-4a55-9a3c-6f2d1f7c0001")
	return []aRecord{
		recordOf("config", Space{Layout: flake.Scalable, Epoch: 1_704_067_200_000, Pool: "5f7c6c9c-3f0f-4c53-8a11-27e4f7d1a001"}),
		recordOf("config", Space{Layout: flake.Fleet, Epoch: 1_288_834_974_657, Pool: "5f7c6c9c-3f0f-4c53-8a11-27e4f7d1a001", Part: SIDRange{From: 512, To: 768}}),
		recordOf("era", Era{Number: 2, Floor: 1_764_000_000_000, Cluster: 14_841_639_068_965_178_418}),
		recordOf("accepted-time", AcceptedTime{Era: 2, Until: 1_764_000_500_000, Nonce: "n-1", By: "op@host", At: 1_764_000_000_100}),
		recordOf("holder", Holder{Instance: instance, Node: "node-1"}),
		recordOf("holder", Holder{Instance: instance, Node: "orders-7", Worker: true, Owner: "checkout"}),
		recordOf("window", Window{
			Era: 2, Term: 4, Instance: instance, Node: "node-1", Nonce: "n-2", Base: 1_764_000_001_000, Ceil: 1_764_000_031_000,
			State: Active, Wall: 1_764_000_001_003, Gossip: true, Floor: 1_764_000_001_000,
			Prior: Prior{Floor: 1_763_999_000_000, Ceil: 1_763_999_030_000, Node: "node-9"},
		}),
		recordOf("window", Window{Era: 1, Term: 1, Instance: instance, Node: "node-1", Nonce: "n-3", Base: 5, Ceil: 9, State: Released, Wall: 7}),
		recordOf("window", Window{Era: 1, Term: 3, Instance: instance, Node: Operator, Nonce: "n-4", Ceil: 99, State: Quarantined, Wall: 7, Reason: "a clock was a year ahead"}),
		recordOf("window", Window{Era: 1, Term: 3, Instance: instance, Node: Operator, Nonce: "n-5", Ceil: 99, State: Reserved, Wall: 7, Reason: "the old generator"}),
		recordOf("window", Window{
			Era: 2, Term: 8, Instance: instance, Node: "orders-7", Nonce: "n-6", Base: 10, Ceil: 40, State: Active, Wall: 11,
			Worker: true, Owner: "checkout", Since: 10, Floor: 12,
		}),
		recordOf("ledger", LedgerLine{Term: 4, Instance: instance, Node: "node-1", Era: 2, Since: 1_764_000_001_000}),
		recordOf("ledger", LedgerLine{Term: 8, Instance: instance, Node: "orders-7", Era: 2, Since: 10, Worker: true}),
		recordOf("node", Registration{
			Instance: instance, Node: "node-1", Version: "v0.1.0", GRPC: "10.0.0.7:9000", HTTP: "10.0.0.7:8080", Gossip: "10.0.0.7:7946",
			Console: "http://10.0.0.7:7947", SIDRange: "0-15", Started: 1_764_000_000_000,
		}),
		recordOf("mark", Mark{
			Era: 2, At: 1_764_000_000_500, Nonce: "n-7", Node: "node-1", Wall: 1_764_000_001_000, Uncovered: "5,7-9",
			Rests:   Blocker{SID: 3, Node: "node-3", Why: BlockedVanished, Floor: 1, Ceil: 2},
			Blocked: []Blocker{{SID: 4, Node: "orders-7", Why: BlockedSilent, Floor: 3, Ceil: 4, Worker: true}},
		}),
	}
}

// releases has the records of each release, by the name of its directory. A release gets the
// list of the one before, and what it stores besides.
var releases = map[string][]aRecord{"0.1.0": recordsOf010()}

// What each release stored in etcd is read by this one, and means what it meant. A change that
// breaks this keeps nodes of the release before it, and of this one, from running beside each
// other: it needs another version of the record.
func TestReleasedRecords(t *testing.T) {
	if *released != "" {
		var out strings.Builder
		for _, r := range releases[*released] {
			out.WriteString(r.kind + " " + r.raw + "\n")
		}
		fatal.If(t, os.WriteFile(filepath.Join(releasedDir, *released, "records.txt"), []byte(out.String()), 0o644))
	}
	dirs, err := os.ReadDir(releasedDir)
	if err != nil || len(dirs) == 0 {
		t.Fatalf("no releases: %v", err)
	}
	for _, dir := range dirs {
		text, err := os.ReadFile(filepath.Join(releasedDir, dir.Name(), "records.txt"))
		fatal.If(t, err)
		lines, records := strings.Split(strings.TrimSpace(string(text)), "\n"), releases[dir.Name()]
		if len(lines) != len(records) {
			t.Errorf("release %s has %d records, and the test knows %d", dir.Name(), len(lines), len(records))
			continue
		}
		for i, line := range lines {
			kind, raw, _ := strings.Cut(line, " ")
			got, err := records[i].read(raw)
			if kind != records[i].kind || err != nil || !reflect.DeepEqual(got, records[i].want) {
				t.Errorf("release %s, line %d, a %s: %v\ngot  %+v\nwant %+v", dir.Name(), i+1, kind, err, got, records[i].want)
			}
		}
	}
}

const releasedDir = "../../testdata/released"

// No kind of key is forgotten.
func TestReleasedKinds(t *testing.T) {
	for release, records := range releases {
		for _, want := range []string{"config", "era", "accepted-time", "mark", "node", "holder", "window", "ledger"} {
			if !slices.ContainsFunc(records, func(r aRecord) bool { return r.kind == want }) {
				t.Errorf("release %s: no record of kind %s", release, want)
			}
		}
	}
}
