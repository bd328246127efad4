// Legacy is a program with a Snowflake library, for the harness: it appends the IDs that it
// uses to a file, eight bytes each, until SIGTERM.
//
// It gets its worker number itself, with package worker, or from the runner that started it.
// With -permit it asks about each ID before it uses it: package worker, or the runner's file.
// Without, it goes on with its number whatever happens.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/bwmarrin/snowflake"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/worker"
)

const (
	pause = time.Millisecond
	burst = 64 // IDs after each pause
)

func main() {
	dir := flag.String("dir", "", "where the file of IDs is made, as NAME-PID.ids")
	name := flag.String("name", "", "name of the file, and of the worker")
	addr := flag.String("addr", "", "nodes; empty: a runner has the worker")
	permit := flag.Bool("permit", false, "ask about each ID")
	flag.Parse()
	if err := run(*dir, *name, *addr, *permit); err != nil {
		fmt.Println("ended:", err)
		os.Exit(1)
	}
}

func run(dir, name, addr string, permit bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	next, end, err := open(ctx, name, addr, permit)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("%s-%d.ids", name, os.Getpid())),
		os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	refused := false
	for ctx.Err() == nil {
		time.Sleep(pause)
		var ids []byte
		for range burst {
			id, err := next()
			if (err != nil) != refused {
				refused = !refused
				fmt.Println("refused:", err)
			}
			if errors.Is(err, worker.ErrLost) {
				return errors.Join(err, f.Close())
			}
			if err == nil {
				ids = binary.LittleEndian.AppendUint64(ids, uint64(id))
			}
		}
		if _, err := f.Write(ids); err != nil {
			return err
		}
	}
	return errors.Join(end(), f.Close())
}

// open returns what makes IDs, and what ends it.
func open(ctx context.Context, name, addr string,
	permit bool) (next func() (snowflake.ID, error), end func() error, err error) {
	if addr == "" {
		next, err := underRunner(permit)
		return next, func() error { return nil }, err
	}
	w, err := worker.Open(ctx, worker.Config{Name: name, Client: client.Options{Targets: strings.Split(addr, ",")}})
	if err != nil {
		return nil, nil, err
	}
	number(w.Number())
	node, err := snowflake.NewNode(w.Number())
	if !permit || err != nil {
		return careless(node), func() error { return w.Release(0) }, err
	}
	return func() (snowflake.ID, error) {
		id := node.Generate()
		return id, w.Permit(id.Time())
	}, w.Close, nil
}

func number(n int64) { fmt.Println("number", n, "pid", os.Getpid()) }

func careless(node *snowflake.Node) func() (snowflake.ID, error) {
	return func() (snowflake.ID, error) { return node.Generate(), nil }
}

var errInterval = errors.New("outside of the interval in the runner's file")

// underRunner makes IDs with the number of the runner that started this process.
func underRunner(permit bool) (func() (snowflake.ID, error), error) {
	n, err := strconv.ParseInt(os.Getenv("ALLOCATOR_WORKER"), 10, 64)
	if err != nil {
		return nil, err
	}
	node, err := snowflake.NewNode(n)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(os.Getenv("ALLOCATOR_WORKER_FILE"))
	if err != nil {
		return nil, err
	}
	m, err := syscall.Mmap(int(f.Fd()), 0, 64, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(m, []byte("ALLOCWK1")) {
		return nil, errInterval
	}
	number(n)
	if !permit {
		return careless(node), nil
	}
	notBefore := int64(binary.LittleEndian.Uint64(m[24:]))
	notAfter := (*int64)(unsafe.Pointer(&m[32]))
	return func() (snowflake.ID, error) {
		id := node.Generate()
		if ms := id.Time(); ms < notBefore || ms >= atomic.LoadInt64(notAfter) {
			return 0, errInterval
		}
		return id, nil
	}, nil
}
