// Command conformance checks that clients in several languages do the same.
//
//	go run ./clients/conformance [-run REGEXP] COMMAND [ARGUMENT...]
//	go run ./clients/conformance go                    # package client, in this process
//	go run ./clients/conformance node clients/typescript/conformance/driver.mjs
//	go run ./clients/conformance python3 clients/python/conformance/driver.py
//
// It starts scripted nodes, which refuse, answer late, cut connections and break the contract, and
// one driver: a small program around a client that reads a call a line and writes an answer a line
// (driver.go has their fields). The table in table.go says what callers see in each situation, how many requests that
// costs, and within which time. It prints a line for each situation, and ends with status 1 if a
// client does anything else.
//
// It is proof, and no part of the product: only tests and people run it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// whole bounds one situation.
const whole = 3 * time.Minute

// atOnce is how many situations run at a time.
const atOnce = 16

func main() {
	only := flag.String("run", "", "run the situations whose names match this regular expression")
	flag.Parse()
	match, err := regexp.Compile(*only)
	if err != nil || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: conformance [-run REGEXP] COMMAND [ARGUMENT...]")
		os.Exit(2)
	}
	d, err := run(context.Background(), flag.Args())
	failed := 0
	if err == nil {
		failed, err = check(context.Background(), d, languageOf(flag.Args()), match, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

// languageOf returns the language of a driver's command; sync is Python with threads.
func languageOf(command []string) string {
	name := path.Base(command[0])
	if slices.Contains(command, "--sync") {
		return "sync"
	}
	for _, language := range []string{"python", "go"} {
		if strings.HasPrefix(name, language) {
			return language
		}
	}
	return "node"
}

// check runs the table against a driver, and returns how many situations failed.
func check(ctx context.Context, d *driver, language string, only *regexp.Regexp, out io.Writer) (int, error) {
	failed := 0
	var mu sync.Mutex // guards out and failed
	var all sync.WaitGroup
	places := make(chan struct{}, atOnce)
	for _, s := range table() {
		if !only.MatchString(s.name) {
			continue
		}
		if why := s.not[language]; why != "" {
			mu.Lock()
			fmt.Fprintf(out, "skip  %s: not for %s: %s\n", s.name, language, why)
			mu.Unlock()
			continue
		}
		all.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			ctx, cancel := context.WithTimeout(ctx, whole)
			defer cancel()
			begun := time.Now()
			problems := s.run(ctx, d)
			mu.Lock()
			defer mu.Unlock()
			if len(problems) == 0 {
				fmt.Fprintf(out, "ok    %s (%v)\n", s.name, time.Since(begun).Round(time.Millisecond))
				return
			}
			failed++
			fmt.Fprintf(out, "FAIL  %s\n", s.name)
			for _, p := range problems {
				fmt.Fprintf(out, "      %s\n", p)
			}
		})
	}
	all.Wait()
	ctx, cancel := context.WithTimeout(ctx, whole)
	defer cancel()
	return failed, d.close(ctx)
}
