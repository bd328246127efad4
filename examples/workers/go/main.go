// Ids prints IDs of bwmarrin/snowflake.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"

	"github.com/bwmarrin/snowflake"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/worker"
)

func main() {
	nodes := flag.String("addr", "127.0.0.1:9000", "gRPC addresses of nodes")
	count := flag.Int("count", 10, "how many IDs")
	flag.Parse()
	if err := run(context.Background(), strings.Split(*nodes, ","), *count); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, nodes []string, count int) error {
	w, err := worker.Open(ctx, worker.Config{Name: "example-go", Client: client.Options{Targets: nodes}})
	if err != nil {
		return err
	}
	defer func() {
		if err := w.Close(); err != nil {
			log.Print(err)
		}
	}()
	ids, err := snowflake.NewNode(w.Number()) // Set snowflake.Epoch, NodeBits and StepBits before.
	if err != nil {
		return err
	}
	for range count {
		id := ids.Generate()
		// After it was made: an ID whose time is outside of the worker's interval is dropped.
		if err := w.Permit(id.Time()); err != nil {
			return err
		}
		fmt.Println(id)
	}
	return nil
}
