package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/flakelease/allocator/client"
)

func Example() {
	c, err := client.New(client.Options{Targets: []string{"allocator-0:9000", "allocator-1:9000"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	id, err := c.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(id, id.Int64())
}

func ExampleClient_Block() {
	c, err := client.New(client.Options{Targets: []string{"localhost:9000"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	b, err := c.Block(context.Background(), 1000)
	if err != nil {
		log.Fatal(err)
	}
	for i := range b.Count {
		wide, err := b.ULID(i)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(b.At(i), wide, wide.UUID())
	}
}

func ExampleRefusal() {
	c, err := client.New(client.Options{Targets: []string{"localhost:9000"}})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	_, err = c.Next(context.Background())
	var refusal *client.Refusal
	switch {
	case errors.Is(err, &client.Refusal{Reason: client.AfterTooFar}):
		fmt.Println("the last ID is ahead of every node's clock")
	case errors.As(err, &refusal):
		fmt.Println(refusal.Reason, refusal.Node, refusal.RetryAfter)
	case errors.Is(err, client.ErrUnavailable):
		fmt.Println("no node answers")
	}
}
