// Command run measures everything and writes docs/BENCHMARKS.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/flakelease/allocator/bench/services"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	serve := flag.String("serve", "", "be a server that others are measured beside: tcp, http, grpc or etcd")
	addr := flag.String("addr", "", "where to serve")
	binary := flag.String("allocator", "", "the allocator binary to measure")
	out := flag.String("o", "", "file to write the report to, besides stdout")
	rounds := flag.Int("rounds", 5, "how often each case is measured")
	slice := flag.Duration("slice", time.Second, "how long a service is measured in a round")
	only := flag.String("only", "", "measure only cases whose group and name have this in them")
	flag.Parse()
	if *serve != "" {
		return services.Serve(*serve, *addr)
	}
	if *binary == "" || *rounds < 1 || *slice <= 0 || flag.NArg() > 0 {
		flag.Usage()
		return errors.New("-allocator is required")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	began := time.Now()
	w, err := services.Start(ctx, *binary, self)
	if err != nil {
		return err
	}
	defer w.Close()
	for _, m := range w.Missing {
		fmt.Fprintln(os.Stderr, "not run:", m)
	}
	var cases []services.Case
	for _, c := range services.Cases() {
		if strings.Contains(c.ID(), *only) {
			cases = append(cases, c)
		}
	}
	results, err := services.Run(ctx, w, cases, services.Plan{
		Rounds: *rounds, Warm: *slice / 5, Slice: *slice, Seed: uint64(began.UnixNano()),
		Tell: func(line string) { fmt.Fprintln(os.Stderr, line) },
	})
	if err != nil {
		return err
	}
	services.GoalRows(os.Stdout, results)
	services.Tables(os.Stdout, results)
	_ = out
	return nil
}
