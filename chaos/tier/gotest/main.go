// Command gotest runs the tests of packages, and says what was not run:
//
//	gotest [-o FILE] ARGUMENTS          runs go test with these arguments
//	gotest -report [LIMITS] FILE…       reads what it wrote to the files
//
// It prints a line for each package that passes, and for one that fails what its failed
// tests printed. The report says which tests were left to a later tier or skipped, and why.
// Limits are -each TIME, for each package, and -all TIME with -took TIME, for a whole run and
// how long it took. With them it also lists the ten slowest tests, and it fails if one is
// exceeded. Results out of Go's test cache took no time.
//
// Nothing is run again: a test that failed once failed.
//
// Exit codes: that of go test, 1 if a limit is exceeded, 2 wrong usage.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, errs io.Writer) int {
	fail := func(code int, err error) int {
		_, _ = fmt.Fprintln(errs, "gotest:", err)
		return code
	}
	if len(args) > 0 && args[0] == "-report" {
		flags := flag.NewFlagSet("gotest -report", flag.ContinueOnError)
		flags.SetOutput(errs)
		var l limits
		flags.DurationVar(&l.each, "each", 0, "how long a package may take; 0: any time")
		flags.DurationVar(&l.all, "all", 0, "how long the whole run may take; 0: any time")
		flags.DurationVar(&l.took, "took", 0, "how long the whole run took")
		if err := flags.Parse(args[1:]); err != nil {
			return 2
		}
		records, err := read(flags.Args())
		if err != nil {
			return fail(2, err)
		}
		if err := report(out, records, l); err != nil {
			return fail(1, err)
		}
		return 0
	}
	file := io.Discard
	if len(args) > 1 && args[0] == "-o" {
		if err := os.MkdirAll(filepath.Dir(args[1]), 0o755); err != nil {
			return fail(2, err)
		}
		f, err := os.Create(args[1])
		if err != nil {
			return fail(2, err)
		}
		defer func() { _ = f.Close() }()
		file, args = f, args[2:]
	}
	code, err := test(args, out, errs, json.NewEncoder(file))
	if err != nil {
		return fail(2, err)
	}
	return code
}

// test runs go test, prints its results to out, and records them in file.
func test(args []string, out, errs io.Writer, file *json.Encoder) (code int, err error) {
	// An interrupt from the terminal reaches go test too, which then ends.
	signal.Ignore(syscall.SIGINT)
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = errs
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	err = results(stdout, out, func(r record) error { return file.Encode(r) })
	var exit *exec.ExitError
	if ended := cmd.Wait(); errors.As(ended, &exit) {
		return max(exit.ExitCode(), 1), err // -1: a signal ended it
	} else if ended != nil {
		err = errors.Join(err, ended)
	}
	return 0, err
}

// read reads what was recorded in files.
func read(files []string) (out []record, err error) {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		for d := json.NewDecoder(f); d.More(); {
			var r record
			if err := d.Decode(&r); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			out = append(out, r)
		}
		_ = f.Close()
	}
	return out, nil
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}
