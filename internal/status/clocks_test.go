package status_test

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/lease"
)

// reported is what node-a, whose clock is wrong, knows of node-b and node-c.
func reported() clock.Report {
	return clock.Report{
		Gate: clock.GateStats{
			Verdict: clock.Verdict{State: clock.Skewed, Phase: clock.Shut, Limit: 250},
			Judgement: clock.Judgement{
				Finding: clock.SelfFalse, Registered: 5, Quorum: 3, Agree: 1, Disagree: 2, Ambiguous: 1, Silent: 1,
				Known: true, Offset: -1500 * time.Millisecond, Uncertainty: 300*time.Microsecond + 1,
				Falsetickers: []string{"node-c"},
			},
			Shuts: 2, Unverified: 3 * time.Second,
		},
		Anchor: clock.AnchorStats{
			StepsForward: 4, StepsBack: 5, Pending: true, Blocked: true, Held: 700 * time.Millisecond, Slewing: 100 * time.Millisecond,
			Suspends: 6, Stalls: 7,
		},
		Kernel: clock.Kernel{Known: true, Synchronized: true, MaxError: 8*time.Millisecond + 1},
		Peers: []clock.PeerReport{
			{Name: "node-b", Instance: "b-1", Fresh: true, Offset: -1499 * time.Millisecond, Error: 200*time.Microsecond + 1,
				Wall: -1498 * time.Millisecond, RTT: 400 * time.Microsecond, Age: 2 * time.Second, SID: 3, Verdict: clock.Open},
			{Name: "node-c", Instance: "c-1", Offset: 9 * time.Second, Error: time.Second, RTT: time.Millisecond, Age: 40 * time.Second,
				SID: -1, Verdict: clock.Skewed},
			{Name: "node-d", Instance: "d-1", SID: -1, Verdict: clock.Unverified}, // registered, and never heard
		},
		Gossip: 4, Address: "10.0.0.1:7946",
	}
}

const (
	ownClock = `{"state":"skewed","phase":"shut","finding":"self_false","known":true,"offset_us":-1500000,"uncertainty_us":301,` +
		`"limit_us":250000,"registered":5,"quorum":3,"agree":1,"disagree":2,"ambiguous":1,"silent":1,"falsetickers":["node-c"],` +
		`"shuts":2,"unverified_us":3000000,"steps_forward":4,"steps_back":5,"step_pending":true,"step_blocked":true,"held_us":700000,` +
		`"suspends":6,"stalls":7,"kernel":{"known":true,"synchronized":true,"max_error_us":8001},"gossip_members":4,"gossip_address":"10.0.0.1:7946"}`
	clockOfA = `{"verdict":"skewed","sid":7,"fresh":true,"offset_us":0,"error_us":0,"wall_offset_us":600000,"rtt_us":0,"age_us":0,"self":true,"falseticker":true}`
	clockOfB = `{"verdict":"open","sid":3,"fresh":true,"offset_us":-1499000,"error_us":201,"wall_offset_us":-1498000,"rtt_us":400,"age_us":2000000,"self":false,"falseticker":false}`
	clockOfC = `{"verdict":"skewed","sid":-1,"fresh":false,"offset_us":9000000,"error_us":1000000,"wall_offset_us":0,"rtt_us":1000,"age_us":40000000,"self":false,"falseticker":true}`
)

// TestClusterShowsClocks: both surfaces tell the same, bounds are rounded up, and
// a node never heard has no clock.
func TestClusterShowsClocks(t *testing.T) {
	env := servertest.New(t, func(c *servertest.Config) { c.Clocks = reported })
	env.Dir.View = clusterOfTwo()
	env.Dir.View.Nodes = append(env.Dir.View.Nodes,
		lease.Registration{Instance: "a-1", Node: "node-a"}, lease.Registration{Instance: "d-1", Node: "node-d"},
		lease.Registration{Instance: "e-1", Node: "node-e"})
	want := []string{clockOfA, clockOfB, clockOfC, "", ""}

	var got struct {
		Nodes []struct{ Clock json.RawMessage }
		Self  struct {
			Verdict string
			Clock   json.RawMessage
		}
	}
	fatal.If(t, json.NewDecoder(env.Do("GET", "/v1/cluster", "").Body).Decode(&got))
	if string(got.Self.Clock) != ownClock {
		t.Errorf("own clock\ngot  %s\nwant %s", got.Self.Clock, ownClock)
	}
	if len(got.Nodes) != len(want) {
		t.Fatalf("%d nodes, want %d", len(got.Nodes), len(want))
	}
	for i := range want {
		if string(got.Nodes[i].Clock) != want[i] {
			t.Errorf("clock of node %d\ngot  %s\nwant %s", i, got.Nodes[i].Clock, want[i])
		}
	}

	res, err := pb.NewAdminServiceClient(env.Dial()).GetCluster(t.Context(), &pb.GetClusterRequest{})
	fatal.If(t, err)
	if got := fields(t, res.Self.Clock); got != sorted(t, ownClock) {
		t.Errorf("own clock, gRPC\ngot  %s\nwant %s", got, sorted(t, ownClock))
	}
	for i := range want {
		if want[i] == "" {
			if res.Nodes[i].Clock != nil {
				t.Errorf("clock of node %d, gRPC: %v, want none", i, res.Nodes[i].Clock)
			}
			continue
		}
		if got := fields(t, res.Nodes[i].Clock); got != sorted(t, want[i]) {
			t.Errorf("clock of node %d, gRPC\ngot  %s\nwant %s", i, got, sorted(t, want[i]))
		}
	}
}

// fields returns a message in the names of the HTTP contract, numbers as numbers.
func fields(t *testing.T, m proto.Message) string {
	t.Helper()
	b, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	fatal.If(t, err)
	return sorted(t, string(b))
}

// sorted returns JSON with its keys in order, and integers that are written as
// strings as numbers.
func sorted(t *testing.T, text string) string {
	t.Helper()
	var v any
	fatal.If(t, json.Unmarshal([]byte(text), &v))
	b, err := json.Marshal(plainNumbers(v))
	fatal.If(t, err)
	return string(b)
}

func plainNumbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for key := range v {
			v[key] = plainNumbers(v[key])
		}
	case string:
		var n json.Number
		if json.Unmarshal([]byte(v), &n) == nil && v != "" {
			f, _ := n.Float64()
			return f
		}
	}
	return v
}

// Before the first evaluation nothing is allowed, and lists are lists.
func TestClusterBeforeTheFirstJudgement(t *testing.T) {
	env := servertest.New(t, func(c *servertest.Config) { c.Clocks = func() clock.Report { return clock.Report{Gossip: 1} } })
	env.Dir.Err = servertest.ErrAway
	b, err := io.ReadAll(env.Do("GET", "/v1/cluster", "").Body)
	fatal.If(t, err)
	for _, want := range []string{`"clock":{"state":"unverified","phase":"starting","finding":"unconfirmed","known":false,`, `"falsetickers":[],`} {
		if !strings.Contains(string(b), want) {
			t.Errorf("%s\nhas no %s", b, want)
		}
	}
}
