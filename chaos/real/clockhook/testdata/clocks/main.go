// Command clocks answers each line of its input with what it sees. It knows
// nothing of hooks.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

var origin = time.Now()

type answer struct {
	Now   int64         // time.Now: Unix seconds
	Nanos int           // and nanoseconds
	Since time.Duration // time.Since the start
	Plain [16]int64     // seconds of each clock by system call; 0 where there is none
	Rest  [16]int64     // and nanoseconds
	Sync  time.Duration // time of an fsync
	Error string        // empty: it succeeded
	State int           // what adjtimex returned
	Timex unix.Timex
	Back  time.Duration // the furthest that a clock was seen to go back
	Files []string      // open descriptors
}

func read() (a answer) {
	now := time.Now()
	a.Now, a.Nanos, a.Since = now.Unix(), now.Nanosecond(), time.Since(origin)
	for id := range a.Plain {
		var ts unix.Timespec
		if unix.ClockGettime(int32(id), &ts) == nil {
			a.Plain[id], a.Rest[id] = ts.Sec, ts.Nsec
		}
	}
	return a
}

// spin reads clocks on several threads for d and returns how far one went back.
func spin(d time.Duration) (back time.Duration) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			lastRaw, last, worst := int64(0), time.Since(origin), time.Duration(0)
			for end := time.Since(origin) + d; last < end; {
				now := time.Since(origin)
				worst = max(worst, last-now)
				last = now
				var ts unix.Timespec
				_ = unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &ts)
				if raw := ts.Nano(); lastRaw != 0 {
					worst = max(worst, time.Duration(lastRaw-raw))
					lastRaw = raw
				} else {
					lastRaw = raw
				}
			}
			mu.Lock()
			back = max(back, worst)
			mu.Unlock()
		})
	}
	wg.Wait()
	return back
}

// write writes to a file in the three ways that programs do, and to a pipe. It
// returns all errors.
func write(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	_, atEnd := f.WriteString("a record")
	_, at := f.WriteAt([]byte("a page"), 4096)
	allocated := unix.Fallocate(int(f.Fd()), 0, 0, 8192)
	_, piped := w.WriteString("a message")
	if piped != nil {
		piped = fmt.Errorf("pipe: %w", piped)
	}
	return errors.Join(atEnd, at, allocated, piped, f.Close(), r.Close(), w.Close())
}

func main() {
	out := json.NewEncoder(os.Stdout)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		command, argument, _ := strings.Cut(in.Text(), " ")
		var a answer
		switch command {
		case "read":
			a = read()
		case "spin":
			d, err := time.ParseDuration(argument)
			if err != nil {
				panic(err)
			}
			a.Back = spin(d)
		case "sync":
			f, err := os.Create(argument)
			if err != nil {
				panic(err)
			}
			var before, after unix.Timespec
			_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &before)
			if err := f.Sync(); err != nil {
				a.Error = err.Error()
			} else if err := unix.Fdatasync(int(f.Fd())); err != nil {
				a.Error = err.Error()
			}
			_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &after)
			a.Sync = time.Duration(after.Nano() - before.Nano())
			f.Close()
		case "write": // over a pipe too, which is no file
			if err := write(argument); err != nil {
				a.Error = err.Error()
			}
		case "adjtimex":
			state, err := unix.Adjtimex(&a.Timex)
			if err != nil {
				a.Error = err.Error()
			}
			a.State = state
		case "files":
			entries, _ := os.ReadDir("/proc/self/fd")
			for _, e := range entries {
				name, err := os.Readlink("/proc/self/fd/" + e.Name())
				if err == nil {
					a.Files = append(a.Files, name)
				}
			}
		default:
			fmt.Fprintln(os.Stderr, "what is", command)
			os.Exit(2)
		}
		if err := out.Encode(a); err != nil {
			panic(err)
		}
	}
}
