package worker_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/worker"
)

// snowflakes is a generator of the program's own.
type snowflakes struct{ worker int64 }

func (s snowflakes) generate() (id, unixMilli int64) {
	unixMilli = time.Now().UnixMilli()
	return (unixMilli-1288834974657)<<22 | s.worker<<12, unixMilli
}

// A Snowflake generator with a worker number that nobody else has.
func Example() {
	w, err := worker.Open(context.Background(), worker.Config{
		Name:   "orders",
		Client: client.Options{Targets: []string{"allocator-0:9000", "allocator-1:9000"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer w.Close() // the number is free for the next program
	g := snowflakes{worker: w.Number()}

	id, ms := g.generate()
	if err := w.Permit(ms); err != nil { // with the ID's own time, after it was made
		log.Fatal(err) // the ID must not be used
	}
	fmt.Println(id)
}
