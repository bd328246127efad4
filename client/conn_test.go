package client_test

import (
	"errors"
	"testing"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/client"
)

// Calls over Conn go on to the next node as those of the client do, and end with its
// errors.
func TestConn(t *testing.T) {
	bad, good := newFake(t, 1), newFake(t, 2)
	c := dialTo(t, bad, good)
	service := pb.NewAllocatorServiceClient(c.Conn())
	call := func(count int32) error {
		res, err := service.Allocate(t.Context(), &pb.AllocateRequest{Count: count})
		if err == nil && res.GetCount() != count {
			t.Errorf("%d IDs of %d", res.GetCount(), count)
		}
		return err
	}
	bad.always(act{lose: true})
	if err := call(3); err != nil {
		t.Error(err)
	}
	before := good.asked.Load() + bad.asked.Load()
	if err := call(0); !errors.Is(err, &client.Refusal{Reason: client.InvalidCount}) {
		t.Errorf("a wrong count: %v", err)
	}
	if n := good.asked.Load() + bad.asked.Load() - before; n != 1 {
		t.Errorf("%d nodes were asked for what all refuse", n)
	}
	if _, err := service.AllocateStream(t.Context()); !errors.Is(err, client.ErrStream) {
		t.Errorf("a stream: %v", err)
	}
	fatal.If(t, c.Close())
	if err := call(1); !errors.Is(err, client.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
