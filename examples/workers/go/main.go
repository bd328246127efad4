// Ids prints IDs of bwmarrin/snowflake.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strings"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/worker"
	"github.com/flakelease/allocator/worker/legacy"
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
	ids, err := legacy.OpenSnowflake(ctx, worker.Config{Name: "example-go", Client: client.Options{Targets: nodes}})
	if err != nil {
		return err
	}
	defer func() {
		if err := ids.Close(); err != nil {
			log.Print(err)
		}
	}()
	for range count {
		id, err := ids.Generate()
		if err != nil {
			return err
		}
		fmt.Println(id)
	}
	return nil
}
