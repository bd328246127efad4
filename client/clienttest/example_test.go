package clienttest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/client/clienttest"
)

// A test of a program while every node refuses.
func ExampleNode_Refuse() {
	test := func(t *testing.T) {
		node := clienttest.NewNode(clienttest.Options{})
		node.Refuse(client.Refusal{Reason: client.WindowExhausted})
		ids := clienttest.NewClient(t, client.Options{Timeout: 50 * time.Millisecond}, node)

		if _, err := ids.Next(t.Context()); !errors.Is(err, &client.Refusal{Reason: client.WindowExhausted}) {
			t.Error(err)
		}
		node.Serve()
		if _, err := ids.Next(t.Context()); err != nil {
			t.Error(err)
		}
	}
	_ = test
}
