package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
)

// TestDatabasePages follows pages with a PostgreSQL server of its own for each.
func TestDatabasePages(t *testing.T) {
	tier.Check(t, "follows the pages about fences and column defaults")
	if _, err := exec.LookPath("psql"); err != nil {
		t.Skip("not run: psql is not installed (Debian: apt-get install postgresql-client)")
	}
	program, ok := pages.OwnNetwork(t, func() string {
		program, err := buildDev()
		fatal.If(t, err)
		return program
	})
	if !ok {
		return
	}
	for _, page := range []string{"../../docs/how-to/read-without-losing-rows.md", "../../docs/how-to/id-as-a-column-default.md"} {
		t.Run(filepath.Base(page), func(t *testing.T) {
			server := postgres.Start(t)
			pages.Open(t, page).Follow(t, pages.NewShell(t, pages.Config{
				Dir:    t.TempDir(),
				Within: 5 * time.Minute,
				Here:   strings.NewReplacer("bin/allocator", program),
				Env:    []string{"PGHOST=" + server.Dir, "PGUSER=test", "PGDATABASE=postgres"},
			}))
		})
	}
}

// What the commands say without a server, and of wrong flags.
func TestFenceFlags(t *testing.T) {
	nowhere := "host=" + filepath.Join(t.TempDir(), "nowhere")
	for _, tc := range []struct {
		args string
		code int
		says string
	}{
		{"fence init", 2, "give --table"},
		{"fence status --table events --database postgres://%", 2, "--database"},
		{"fence init --table events --database " + nowhere, 3, "nowhere"},
		{"fence run --table events --clock-lag 0s", 2, "--clock-lag is 0s"},
		{"fence run --table events --clock-lag 1s --interval 1ms", 2, "at least 10ms"},
		{"fence run --table events --clock-lag 1s --database " + nowhere, 3, "nowhere"},
		{"fence run --table events --clock-lag 1s --addr 127.0.0.1:9000", 2, "give one of them"},
		{"fence run --table events --clock-lag 1s --behind 1s", 2, "--clock-lag says both"},
		{"fence run --table events --behind -1s", 2, "--behind is -1s"},
		{"fence run --table events --ahead 59s", 2, "at least 1m"},
		{"fence drop", 2, "give --table"},
		{"fence run --table events --addr 127.0.0.1", 2, "--addr"},
		{"fence run --table events --addr 127.0.0.1:1 --addr 127.0.0.1", 2, "--addr"}, // a node of each of two spaces
		{"fence run --table events --database " + nowhere, 3, "nowhere"},
		{"fence runs", 2, "Did you mean run?"},
	} {
		if code, _, errs := allocator(strings.Fields(tc.args)...); code != tc.code || !strings.Contains(errs, tc.says) {
			t.Errorf("%s: exit code %d, %s", tc.args, code, errs)
		}
	}
}

// Two movers, of which one stands by until the other is stopped; the metrics that the page
// lists; a fence that was broken.
func TestFenceRun(t *testing.T) {
	tier.Check(t, "a PostgreSQL server")
	server := postgres.Start(t)
	server.Psql(t, "CREATE TABLE events (id uuid PRIMARY KEY); CREATE TABLE \"More events\" (key bigint PRIMARY KEY); CREATE TABLE orders (id uuid PRIMARY KEY)")
	tables := []string{"--database", server.URL(), "--table", "events"}
	fence := func(args ...string) (int, string, string) { return allocator(append([]string{"fence"}, args...)...) }
	if code, out, errs := fence(append(tables, "init", "--print-sql")...); code != 0 || !strings.Contains(out, "CREATE OR REPLACE TRIGGER") {
		t.Fatal(code, out, errs)
	}
	if code, _, errs := fence(append(tables, "status")...); code != 2 || !strings.Contains(errs, `run "allocator fence init --table public.events"`) {
		t.Errorf("after --print-sql: exit code %d, %s", code, errs)
	}
	_, sql, _ := fence(append(tables, "init", "--print-sql")...)
	server.Psql(t, sql) // What is printed makes the fence.
	if code, _, errs := fence("init", "--database", server.URL(), "--table", `"More events"`, "--column", "key"); code != 0 {
		t.Fatal(errs)
	}
	if code, out, _ := fence("init", "--database", server.URL(), "--table", "orders", "--role", "nobody here"); code == 0 || out != "" {
		t.Errorf("init for a role that is not there: exit code %d, %s", code, out)
	}
	if code, _, errs := fence("init", "--database", server.URL(), "--table", "orders"); code != 0 {
		t.Fatal(errs)
	}
	type mover struct {
		log   *output.Text
		ended chan int
		stop  func()
	}
	start := func(name string) mover {
		ctx, stop := context.WithCancel(t.Context())
		m := mover{&output.Text{}, make(chan int, 1), stop}
		args := append([]string{"fence", "run", "--name", name, "--clock-lag", "100ms", "--interval", "20ms", "--metrics", "127.0.0.1:0"}, tables...)
		go func() { m.ended <- run(ctx, args, strings.NewReader(""), m.log, m.log, nil) }()
		return m
	}
	says := func(m mover, text string) {
		t.Helper()
		wait.NoError(t, text, func() error {
			if !strings.Contains(m.log.String(), text) {
				return errors.New(m.log.String())
			}
			return nil
		})
	}
	isMoved := func(by string) {
		t.Helper()
		before := ""
		wait.NoError(t, "moved by "+by, func() error {
			_, out, errs := fence(append(tables, "status")...)
			now := regexp.MustCompile(`(?m)^lsn .*$`).FindString(out)
			if before == "" {
				before = now
			}
			if !strings.Contains(out, by+", last seen") || now == before {
				return errors.New(out + errs)
			}
			return nil
		})
	}
	one := start("one")
	isMoved("one")
	two := start("two")
	says(two, "another process moves it: one")

	address := regexp.MustCompile(`address=(\S+)`)
	get := func(path string) (int, string) {
		t.Helper()
		res, err := http.Get("http://" + address.FindStringSubmatch(one.log.String())[1] + path)
		fatal.If(t, err)
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		fatal.If(t, err)
		return res.StatusCode, string(body)
	}
	_, served := get("/metrics")
	page := readFile(t, "../../docs/how-to/read-without-losing-rows.md")
	names := regexp.MustCompile(`allocator_fence_[a-z_]+`)
	for _, name := range names.FindAllString(page, -1) {
		if !strings.Contains(served, fmt.Sprintf("\n%s{database=", name)) {
			t.Errorf("the page has %s, which is not served", name)
		}
	}
	for _, name := range names.FindAllString(served, -1) {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("%s is not on the page", name)
		}
	}
	if code, body := get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}

	one.stop()
	if code := <-one.ended; code != 0 {
		t.Errorf("stopped: exit code %d, %s", code, one.log)
	}
	isMoved("two")
	one = two
	server.Psql(t, "ALTER TABLE events DISABLE TRIGGER events_fence_insert")
	says(two, "run \\\"allocator fence init\\\" again")
	if code, body := get("/healthz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "past the fence") {
		t.Errorf("/healthz of a fence without its trigger: %d %s", code, body)
	}
	if code, out, _ := fence(append(tables, "status")...); code != 1 || !strings.Contains(out, "problem") {
		t.Errorf("status of a fence without its trigger: %d %s", code, out)
	}
	if code, _, errs := fence(append(tables, "drop", "--yes")...); code != 1 || !strings.Contains(errs, "stop two first") {
		t.Errorf("drop beside a mover: %d %s", code, errs)
	}
	// The first of two tables hides neither its own problem nor the other table.
	both := append(tables, "--table", "orders")
	if code, out, _ := fence(append(both, "status")...); code != 1 || !strings.Contains(out, "problem") || !strings.Contains(out, "public.orders") {
		t.Errorf("status of two tables, the first without its trigger: %d %s", code, out)
	}
	two.stop()
	<-two.ended
	if code, out, _ := fence(append(tables, "status", "--format", "json")...); code != 1 || !strings.Contains(out, `"problems":["public.events has no triggers on column id`) {
		t.Errorf("status: %d %s", code, out)
	}
	for _, tc := range []struct {
		flag, prints string
		code         int
	}{
		{"--print-sql", "DROP VIEW", 0},
		{"", "DROP VIEW", 2}, // Nobody can confirm.
		{"--yes", "DROP VIEW", 0},
		{"--yes", "-- public.events in ", 0},
	} {
		if code, out, errs := fence(append(tables, strings.Fields("drop "+tc.flag)...)...); code != tc.code || !strings.Contains(out, tc.prints) {
			t.Errorf("drop %s: %d %s%s", tc.flag, code, out, errs)
		}
	}
	if code, _, errs := fence(append(tables, "status")...); code != 2 || !strings.Contains(errs, "has no fence") {
		t.Errorf("after drop: %d %s", code, errs)
	}
	if code, out, errs := fence(append(both, "status")...); code != 2 || !strings.Contains(errs, "has no fence") || !strings.Contains(out, "public.orders") {
		t.Errorf("status of two tables, the first without a fence: %d %s%s", code, out, errs)
	}
}
