// Allocator issues unique, time-sorted IDs from nodes that lease scalability IDs
// from etcd.
//
// Results go to stdout, everything else to stderr. It exits with 0 when all went
// well, 1 when an input is invalid or a request was refused, 2 when it was called
// wrongly, and 3 when no node and no etcd answers.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
)

func main() {
	// A reader that leaves shows as an error of the next write: a node must give
	// its sid back then as ever, and a filter just ends.
	signal.Ignore(syscall.SIGPIPE)

	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		untilForced(signals, cancel)
		os.Exit(cli.ExitInterrupted) // at once: the lease runs out by itself
	}()
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Environ())
	os.Exit(code)
}

// echo is for how long a second signal counts as the first: supervisors such as
// timeout(1) send it to the process and to its group.
const echo = 200 * time.Millisecond

// untilForced calls stop at the first signal, and returns at an interrupt after that.
func untilForced(signals <-chan os.Signal, stop func()) {
	<-signals
	first := time.Now()
	stop()
	for s := range signals {
		if s == os.Interrupt && time.Since(first) > echo {
			return
		}
	}
}

// version is set by release builds: -ldflags "-X main.version=v1.2.3".
var version string

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, stderr io.Writer, env []string) int {
	return cli.Run(ctx, args, in, out, stderr, env, version, newRoot)
}
