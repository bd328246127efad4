package client_test

import (
	"errors"
	"testing"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
)

// Calls over Conn go on to the next node as those of the client do, and end with its
// errors.
func TestConn(t *testing.T) {
	bad, good := newFake(t, 1), newFake(t, 2)
	c, err := client.New(client.Options{Targets: []string{bad.addr, good.addr}, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	service := pb.NewAllocatorServiceClient(c.Conn())
	call := func(count int32) error {
		res, err := service.Allocate(t.Context(), &pb.AllocateRequest{Count: count})
		if err == nil && res.GetCount() != count {
			t.Errorf("%d IDs of %d", res.GetCount(), count)
		}
		return err
	}
	if err := call(1); err != nil { // both are connected some time after this
		t.Fatal(err)
	}
	for _, a := range []act{{refuse: client.Starting, retry: time.Millisecond}, {lose: true}} {
		before := bad.asked.Load()
		bad.always(a)
		for bad.asked.Load() == before {
			if err := call(3); err != nil {
				t.Fatalf("%+v: %v", a, err)
			}
		}
	}
	before := good.asked.Load() + bad.asked.Load()
	if err := call(0); !errors.Is(err, &client.Refusal{Reason: client.InvalidCount}) {
		t.Errorf("a wrong count: %v", err)
	}
	bad.always(act{})
	if n := good.asked.Load() + bad.asked.Load() - before; n > 2 { // the first may have been lost
		t.Errorf("%d nodes were asked for what all refuse", n)
	}
	good.always(act{refuse: client.ClockSkew})
	bad.always(act{refuse: client.ClockSkew})
	if err := call(1); !errors.Is(err, &client.Refusal{Reason: client.ClockSkew}) {
		t.Errorf("all refuse: %v", err)
	}
	if _, err := service.AllocateStream(t.Context()); !errors.Is(err, client.ErrStream) {
		t.Errorf("a stream: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := call(1); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
