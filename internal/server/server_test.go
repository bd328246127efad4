package server_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

// TestObserve: each request is timed once, under its surface.
func TestObserve(t *testing.T) {
	var seen []string
	env := servertest.New(t, func(c *servertest.Config) {
		c.Observe = func(surface string, took time.Duration) { seen = append(seen, fmt.Sprint(surface, took)) }
	})
	env.Do("POST", "/v1/ids", "")
	env.Do("POST", "/v1/ids?count=0", "")
	env.Do("GET", "/v1/ids/1", "")
	if want := []string{"http_ids0s", "http_ids0s", "http_decode0s"}; !slices.Equal(seen, want) {
		t.Errorf("got %v", seen)
	}
}

// TestParseOrder: the first wrong field is refused, and what was not given has a default.
func TestParseOrder(t *testing.T) {
	given := func(text string) server.Field { return server.Field{Text: text, Given: true} }
	all := server.Limits{Count: 10, Wide: true, Format: flake.Default}
	narrow := server.Limits{Count: 10, Format: flake.Default}
	safe := server.Limits{Count: 10, JSON: true, Format: flake.Format{Layout: flake.JS53, Epoch: flake.DefaultEpoch}}
	text := safe
	text.JSON = false
	unsafe := server.Limits{Count: 10, JSON: true, Format: flake.Default}
	for _, tc := range []struct {
		fields server.Fields
		limits server.Limits
		want   server.Order
		reason node.Reason
	}{
		{server.Fields{}, narrow, server.Order{Count: 1}, 0},
		{server.Fields{Count: given("10"), As: given("int"), After: given("0000000000001")}, narrow, server.Order{Count: 10, As: server.Int, After: 1}, 0},
		{server.Fields{As: given("ulid")}, all, server.Order{Count: 1, As: server.ULID}, 0},
		{server.Fields{As: given("uuid")}, all, server.Order{Count: 1, As: server.UUID}, 0},
		{server.Fields{As: given("ulid")}, narrow, server.Order{}, node.InvalidFormat},
		{server.Fields{As: given("uuid")}, narrow, server.Order{}, node.InvalidFormat},
		{server.Fields{As: given("")}, all, server.Order{}, node.InvalidFormat},
		{server.Fields{Count: given("0")}, all, server.Order{}, node.InvalidCount},
		{server.Fields{Count: given("11")}, all, server.Order{}, node.InvalidCount},
		{server.Fields{Count: given("+1")}, all, server.Order{}, node.InvalidCount},
		{server.Fields{Count: given("")}, all, server.Order{}, node.InvalidCount},
		{server.Fields{Count: given("x"), As: given("x"), After: given("x")}, all, server.Order{}, node.InvalidCount},
		{server.Fields{As: given("x"), After: given("x")}, all, server.Order{}, node.InvalidFormat},
		{server.Fields{As: given("number"), After: given("1000000000000")}, safe, server.Order{Count: 1, As: server.Number, After: 1_000_000_000_000}, 0},
		{server.Fields{As: given("number")}, text, server.Order{}, node.InvalidFormat},
		{server.Fields{As: given("number")}, unsafe, server.Order{}, node.InvalidFormat},
		{server.Fields{After: given("9007199254740992")}, safe, server.Order{}, node.InvalidID},
		{server.Fields{After: given("x")}, all, server.Order{}, node.InvalidID},
		{server.Fields{After: given("")}, all, server.Order{}, node.InvalidID},
	} {
		o, r := server.ParseOrder(tc.fields, tc.limits)
		reason := node.Reason(0)
		if r != nil {
			reason = r.Reason
		}
		if o != tc.want || reason != tc.reason {
			t.Errorf("%+v: %+v, %v; want %+v, %v", tc.fields, o, r, tc.want, tc.reason)
		}
	}
}
