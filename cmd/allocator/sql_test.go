package main

import (
	"context"
	"errors"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/output"
	"github.com/flakelease/allocator/chaos/postgres"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
)

// TestSQLFlags: what the commands say without a server, and of wrong flags.
func TestSQLFlags(t *testing.T) {
	for _, tc := range []struct {
		args string
		code int
		says string
	}{
		{"sql init --database postgres://%", 2, "--database"},
		{"sql init --database host=/nowhere", 3, "no PostgreSQL answers there"},
		{"sql init --layout standalone --print-sql", 2, "has no sids"},
		{"sql init --hold 31s --print-sql", 2, "1s to 30s"},
		{"sql run --every 6s", 2, "half of --hold"},
		{"sql run --database host=/a --database host=/a", 2, "is named twice"},
		{"sql status --database host=/nowhere", 3, "no PostgreSQL answers there"},
		{"sql init --layout 41/10/12,unit=1s --print-sql", 2, "after the year 9999"},
		{"sql functions", 2, "one of postgresql, mysql"},
		{"sql functions --for mysql --epoch 1969-01-01", 2, "before 1970"},
		{"sql functions --for mariadb --layout leaf", 0, ""},
		{"sql stat", 2, "Did you mean status?"},
	} {
		if code, _, errs := allocator(strings.Fields(tc.args)...); code != tc.code || !strings.Contains(errs, tc.says) {
			t.Errorf("%s: exit code %d, %s", tc.args, code, errs)
		}
	}
}

// TestSQLRun: a database makes IDs while one of two runners writes slices, and says why it makes none; the other runner
// goes on above all of them. A fence follows the same space, and its readers get every row.
func TestSQLRun(t *testing.T) {
	tier.Check(t, "a PostgreSQL server")
	t.Parallel()
	d, server := deploy(t), postgres.Start(t)
	node := d.serve("one", "--worker.sid-range", "16-31", "--worker.window", "20s")
	at := []string{"--database", server.URL()}
	_, sql, _ := allocator("sql", "init", "--print-sql")
	server.Psql(t, sql) // What is printed makes the functions.
	if code, _, errs := allocator(append([]string{"sql", "init"}, at...)...); code != 0 {
		t.Fatal("again:", errs)
	}
	server.Psql(t, "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT allocator.next_id())")
	status := func(code int, says string) {
		t.Helper()
		wait.NoError(t, says, func() error {
			if got, out, errs := allocator(append([]string{"sql", "status"}, at...)...); got != code || !strings.Contains(out, says) {
				return errors.New(out + errs)
			}
			return nil
		})
	}
	insert := func() (id int64) {
		t.Helper()
		id, err := strconv.ParseInt(strings.TrimSpace(server.Psql(t, "INSERT INTO orders DEFAULT VALUES RETURNING id")), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	start := func(args ...string) (log *output.Text, stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		log, ended := &output.Text{}, make(chan int, 1)
		go func() { ended <- run(ctx, append(args, at...), strings.NewReader(""), log, log, nil) }()
		stop = func() { cancel(); ended <- <-ended }
		t.Cleanup(stop)
		return log, stop
	}
	says := func(log *output.Text, text string) {
		t.Helper()
		wait.NoError(t, text, func() error {
			if !regexp.MustCompile(text).MatchString(log.String()) {
				return errors.New(log.String())
			}
			return nil
		})
	}

	status(1, "no runner has written a slice")
	sqlRun := func(name string) (*output.Text, func()) {
		return start("sql", "run", "--name", name, "--addr", node.grpc, "--every", "100ms", "--hold", "3s")
	}
	first, stopFirst := sqlRun("a")
	says(first, `msg="writes slices"`)
	status(0, "next ID")
	second, _ := sqlRun("b")
	says(second, "another runner writes slices there: runner sql a wrote a slice")
	if code, _, errs := allocator(append([]string{"fence", "init", "--table", "orders"}, at...)...); code != 0 {
		t.Fatal(errs)
	}
	start("fence", "run", "--table", "orders", "--addr", node.grpc)
	rows := 0
	var last int64
	for range 20 {
		id := insert()
		if rows++; id <= last {
			t.Fatalf("%d after %d", id, last)
		}
		last = id
	}
	stopFirst()
	says(second, `msg="writes slices"`)
	if id := insert(); id <= last {
		t.Errorf("the second runner: %d after %d", id, last)
	}
	rows++
	wait.NoError(t, "all rows are in the view", func() error {
		if got := strings.TrimSpace(server.Psql(t, "SELECT count(*) FROM orders_complete")); got != strconv.Itoa(rows) {
			return errors.New(got)
		}
		return nil
	})
	if code, _, errs := allocator(append([]string{"sql", "drop"}, at...)...); code != 2 || !strings.Contains(errs, "orders") {
		t.Errorf("drop of functions in use: exit code %d, %s", code, errs)
	}
}
