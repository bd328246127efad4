package cluster

import (
	"errors"
	"reflect"
	"testing"

	"github.com/google/uuid"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/agreement"
)

var aReport = report{Instance: anInstance, Nonce: 7, Said: []byte("all is well")}

func TestReportCodec(t *testing.T) {
	if got, err := decode(appendReport(nil, aReport)); err != nil || !reflect.DeepEqual(got, aReport) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := decode(appendAsk(nil, ask(aPing))); err != nil || got != ask(aPing) {
		t.Errorf("%+v, %v", got, err)
	}
	for name, n := range map[string]int{"cut": headSize - 1, "too long": maxMessage + 1} {
		if _, err := decode(append(appendReport(nil, aReport), make([]byte, maxMessage)...)[:n]); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A report counts once, if it was asked for, of whom it was asked, and in time.
func TestTakeReport(t *testing.T) {
	other := uuid.New()
	table := aTable(anInstance, other)
	table.peers[anInstance].asks.nonce = 7
	for _, tc := range []struct {
		name string
		r    report
		came int64
		want fault
	}{
		{"of nobody", report{Instance: uuid.New(), Nonce: 7}, 1, notMember},
		{"not asked for", report{Instance: other, Nonce: 7}, 1, unknown},
		{"without a nonce", report{Instance: other}, 1, unknown},
		{"another nonce", report{Instance: anInstance, Nonce: 8}, 1, unknown},
		{"late", aReport, int64(maxRoundTrip) + 1, stale},
		{"in time", aReport, 5, none},
		{"again", aReport, 6, unknown},
	} {
		if got := table.takeReport(tc.r, tc.came); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, faultNames[got], faultNames[tc.want])
		}
	}
	if p := table.peers[anInstance]; string(p.said) != string(aReport.Said) || p.saidAt != 5 || table.peers[other].said != nil {
		t.Errorf("%+v", p)
	}
}

// TestOwes: a peer owes an answer from the first request on that it has not answered, while it is
// asked. Nobody asks while nobody looks, and then it owes nothing.
func TestOwes(t *testing.T) {
	const second = int64(1e9)
	p := peer{reportOwed: 10 * second, asks: query{at: 12 * second}}
	for now, want := range map[int64]int64{
		12 * second:                 2 * second,
		12*second + askedLately:     2*second + askedLately,
		12*second + askedLately + 1: 0,
		3600 * second:               0,
	} {
		if got := p.owes(now); got != want {
			t.Errorf("%d s later it owes %d, want %d", (now-p.asks.at)/second, got, want)
		}
	}
	if got := (&peer{asks: query{at: 12 * second}}).owes(13 * second); got != 0 {
		t.Errorf("one that answered owes %d", got)
	}
}

// TestAskBeforeGossip: pages ask peers that etcd has listed while gossip is still to start.
func TestAskBeforeGossip(t *testing.T) {
	c, err := New(aConfig())
	fatal.If(t, err)
	other := uuid.NewString()
	c.SetPeers([]agreement.Peer{{Node: "other", Instance: other, Gossip: "127.0.0.1:7946", Ask: true}})
	c.AskReports(32)
	if s := c.Observe(); s.SendFailures != 1 {
		t.Errorf("%d messages were not sent, want 1", s.SendFailures)
	}
	if r, ok := c.Reports()[other]; !ok || r.Said != nil {
		t.Errorf("the peer is listed, and has not reported: %+v, %v", r, ok)
	}
}
