package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/flakelease/allocator/internal/dev/loopback"
)

// ErrOneProcessor is the error of Cores on a machine that has no second processor for the client.
var ErrOneProcessor = errors.New("services: one processor alone: a node and its client need one each")

// Cores measures a node on 1, 2, 4 and more processors, as far as the machine leaves another one for the client, and
// writes a table: what a node answers, and the processor time of a request.
func Cores(ctx context.Context, allocator, self string, p Plan, out io.Writer) error {
	all := runtime.NumCPU()
	if all < 2 {
		return ErrOneProcessor
	}
	cases := eachListener()
	fmt.Fprint(out, "| a node's processors | | IDs a second | … for each processor | processor time a request, µs |\n"+
		"|--:|---|--:|--:|--:|\n")
	for n := 1; n < all; n *= 2 {
		results, err := pinned(ctx, allocator, self, n, cases, p)
		if err != nil {
			return err
		}
		for _, r := range results {
			ids := r.spread(Sample.ids).Median
			fmt.Fprintf(out, "| %d | %s, %s | %s | %s | %s |\n", n, r.Group, r.Name, Count(ids), Count(ids/float64(n)),
				micros(r.spread(Sample.cpu).Median))
		}
	}
	return nil
}

// pinned runs cases against one node that has the first n processors, while the client and etcd have the others.
func pinned(ctx context.Context, allocator, self string, n int, cases []Case, p Plan) ([]Result, error) {
	e, err := newEnv(allocator, self)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	others := func() error { return pin(n, runtime.NumCPU()) }
	for _, step := range []func() error{
		others,
		func() error { return e.startEtcd(ctx) },
		func() error { return pin(0, n) },
		func() error { return e.startNode(ctx, 0, loopback.Address()) },
		others,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return Run(ctx, e, cases, p)
}

// pin lets all threads of this process, and what it starts, run on some processors alone.
func pin(from, to int) error {
	var set unix.CPUSet
	for cpu := range to - from {
		set.Set(from + cpu)
	}
	threads, err := filepath.Glob("/proc/self/task/*")
	for _, path := range threads {
		id, _ := strconv.Atoi(filepath.Base(path))
		if failed := unix.SchedSetaffinity(id, &set); failed != nil && !errors.Is(failed, unix.ESRCH) {
			err = errors.Join(err, failed)
		}
	}
	return err
}
