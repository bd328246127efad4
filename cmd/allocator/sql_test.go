package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
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
		{"sql init --database host=/nowhere", 3, "no PostgreSQL answers"},
		{"sql init --layout standalone --print-sql", 2, "has no sids"},
		{"sql init --hold 31s --print-sql", 2, "1s to 30s"},
		{"sql run --every 6s", 2, "half of --hold"},
		{"sql run --database host=/a --database host=/a", 2, "is named twice"},
		{"sql status --database host=/nowhere", 3, "no PostgreSQL answers"},
		{"sql init --layout 41/10/12,unit=1s --print-sql", 2, "after the year 9999"},
		{"sql functions", 2, "one of postgresql, mysql"},
		{"sql functions --for mysql --epoch 1969-01-01", 2, "before 1970"},
		{"sql functions --for mariadb --layout leaf", 0, ""},
		{"sql stat", 2, "Did you mean status?"},
	} {
		if code, out, errs := allocator(strings.Fields(tc.args)...); code != tc.code || !strings.Contains(errs, tc.says) || code != 0 && out != "" {
			t.Errorf("%s: exit code %d, %s%s", tc.args, code, out, errs)
		}
	}
}

// TestSQLRun: a database makes IDs while one of two runners writes slices, and says why it makes none; the other runner
// goes on above all of them. No ID is below a watermark that was answered before, which is all that a fence rests on.
func TestSQLRun(t *testing.T) {
	tier.Check(t, "a PostgreSQL server")
	t.Parallel()
	d, server := deploy(t), postgres.Start(t)
	node := d.serve("one", "--sid-range", "0-15", "--worker.sid-range", "16-17", "--worker.per-client", "3",
		"--worker.window", "12s", "--watermark.interval", "1s")
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
		fatal.If(t, err)
		return id
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
	sqlRun := func(name string) (log *output.Text, stop func()) {
		ctx, cancel := context.WithCancel(t.Context())
		log, ended := &output.Text{}, make(chan int, 1)
		args := append([]string{"sql", "run", "--name", name, "--addr", node.grpc, "--every", "3s", "--hold", "6s"}, at...)
		go func() { ended <- run(ctx, args, strings.NewReader(""), log, log, nil) }()
		stop = func() { cancel(); ended <- <-ended }
		t.Cleanup(stop)
		return log, stop
	}
	first, stopFirst := sqlRun("a")
	says(first, `msg="asks the nodes for a worker number".* nodes=`+regexp.QuoteMeta(node.grpc))
	says(first, `msg="writes slices"`)
	status(0, "next ID")
	second, _ := sqlRun("b")
	says(second, "another runner writes slices there: runner sql a wrote a slice")
	third, stopThird := sqlRun("c")
	says(third, "no sid of worker.sid-range 16-17 .*: stop some workers, or widen the range")
	stopThird()
	var last, mark int64
	// moves waits until the watermark has moved so often, and draws IDs beside it.
	moves := func(times int) {
		t.Helper()
		for times > 0 {
			wait.NoError(t, "the watermark moves", func() error {
				_, out, errs := allocator("watermark", "--addr", node.grpc, "--format", "json")
				var m struct {
					Int int64 `json:"int,string"`
				}
				if err := json.Unmarshal([]byte(out), &m); err != nil {
					return fmt.Errorf("%s%s: %w", out, errs, err)
				}
				before := last
				if last = insert(); last <= before || last < m.Int {
					t.Fatalf("ID %d after ID %d and the watermark %d", last, before, m.Int)
				}
				if m.Int <= mark {
					return fmt.Errorf("it stays at %d", mark)
				}
				mark = m.Int
				return nil
			})
			times--
		}
	}
	moves(3)
	stopFirst()
	says(second, `msg="writes slices"`)
	moves(2)
	if code, _, errs := allocator(append([]string{"sql", "drop"}, at...)...); code != 2 || !strings.Contains(errs, "orders") {
		t.Errorf("drop of functions in use: exit code %d, %s", code, errs)
	}
}
