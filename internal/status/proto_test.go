package status

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/node"
)

// fill sets everything in v, each field to another value. n counts the values.
func fill(v reflect.Value, n *int64) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range v.Fields() {
			fill(f, n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf(fmt.Sprint("text ", *n)), reflect.ValueOf(*n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(*n)
		if v.Type() == reflect.TypeFor[node.Reason]() { // JSON has names
			v.SetInt(1 + *n%int64(len(node.Reasons)))
		}
	case reflect.Uint64:
		v.SetUint(uint64(*n))
	case reflect.String:
		v.SetString(fmt.Sprint("text ", *n))
	default:
		panic(fmt.Sprintf("no value for %v", v.Type()))
	}
}

// TestRoundTrip: nothing is lost between a node and its caller, on the wire or in JSON.
func TestRoundTrip(t *testing.T) {
	var want Cluster
	n := int64(0)
	fill(reflect.ValueOf(&want).Elem(), &n)
	if n < 100 {
		t.Fatalf("%d values", n)
	}
	wire, err := proto.Marshal(ToProto(want))
	fatal.If(t, err)
	var res pb.GetClusterResponse
	fatal.If(t, proto.Unmarshal(wire, &res))
	if got := FromProto(&res); !reflect.DeepEqual(got, want) {
		t.Errorf("gRPC: got %+v\nwant %+v", got, want)
	}
	text, err := json.Marshal(want)
	fatal.If(t, err)
	var got Cluster
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("JSON: %v, got %+v\nwant %+v", err, got, want)
	}
}

// TestEmptyRoundTrip: what is absent stays absent, and lists are lists.
func TestEmptyRoundTrip(t *testing.T) {
	c := FromProto(ToProto(Cluster{Nodes: []Node{{Clock: &PeerClock{}, Report: &Report{}}, {}}}))
	if n := c.Nodes; n[0].Clock == nil || n[0].Report == nil || n[1].Clock != nil || n[1].Report != nil || c.Self.Clock != nil {
		t.Errorf("%+v", c)
	}
	text, err := json.Marshal(FromProto(nil))
	if err != nil || strings.Contains(string(text), "null") {
		t.Errorf("%s, %v", text, err)
	}
}

// TestForeignTextsArePrintable: no text of another machine can command a terminal.
func TestForeignTextsArePrintable(t *testing.T) {
	c := FromProto(&pb.GetClusterResponse{
		Space: "a\x1b[2J",
		Nodes: []*pb.Node{{Name: "\u202e", Refusing: 99}},
		Self:  &pb.NodeStatus{Refused: map[string]int64{"X\n": 1}, Clock: &pb.Clock{Falsetickers: []string{"\a"}}},
	})
	got := fmt.Sprintf("%q %q %v %v %q", c.Space, c.Nodes[0].Name, c.Nodes[0].Refusing, c.Self.Refused, c.Self.Clock.Falsetickers)
	if want := "\"a\ufffd[2J\" \"\ufffd\" 99 map[X\ufffd:1] [\"\ufffd\"]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestForgottenFields: a field that only one side has ends the program.
func TestForgottenFields(t *testing.T) {
	message := (*pb.KernelClock)(nil).ProtoReflect().Descriptor()
	for want, v := range map[string]any{
		"Zone has no field zone in allocator.v1.KernelClock": struct {
			Zone string `json:"zone"`
		}{},
		"KernelClock.max_error_us has no field in struct": struct {
			A bool `json:"known"`
			B bool `json:"synchronized"`
		}{},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
			}()
			shapeOf(reflect.TypeOf(v), message)
		}()
	}
}
