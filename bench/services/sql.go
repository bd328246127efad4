package services

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	pg "github.com/flakelease/allocator/chaos/postgres"
)

// defaults are the types of the keys, with their defaults. All are compared with the first one.
var defaults = []struct{ name, key string }{
	{"bigserial: `nextval`", "bigserial"},
	{"identity", "bigint GENERATED ALWAYS AS IDENTITY"},
	{"`allocator.next_id()`", "bigint DEFAULT allocator.next_id()"},
	{"`gen_random_uuid()`", "uuid DEFAULT gen_random_uuid()"},
	{"`allocator.next_uuid()`", "uuid DEFAULT allocator.next_uuid()"},
}

// batches are how many rows a transaction inserts.
var batches = []int{1, 100}

// SQL measures inserts with each default by pgbench, in rounds of slice each, and writes tables. A node and "allocator
// sql run" work beside it all the time. Between rounds the order is reversed.
func SQL(ctx context.Context, allocator string, rounds int, slice time.Duration, out io.Writer) error {
	s, stop, err := pg.New("fsync=on", "max_connections=40")
	if err != nil {
		return err
	}
	defer func() { _ = stop() }()
	e, err := newEnv(allocator, "")
	if err != nil {
		return err
	}
	defer e.Close()
	if err := e.writeSlices(ctx, s); err != nil {
		return err
	}
	const clients = 8
	for _, rows := range batches {
		got := make([][]sqlSample, len(defaults))
		for round := range rounds {
			for at := range defaults {
				if round%2 == 1 {
					at = len(defaults) - 1 - at
				}
				sample, err := inserts(ctx, s, e.dir, defaults[at].key, rows, clients, slice)
				if err != nil {
					return fmt.Errorf("services: %s: %w", defaults[at].name, err)
				}
				got[at] = append(got[at], sample)
			}
		}
		load, _ := os.ReadFile("/proc/loadavg")
		_, _ = fmt.Fprintf(out, `
%d rows a transaction, %d connections, medians of %d rounds of %v, load %.4s at the end:

| default | rows a second | ÷ bigserial | p99 ms |
|---|--:|--:|--:|
`, rows, clients, rounds, slice, load)
		for at, d := range defaults {
			var rate, ratio, p99 []float64
			for round, x := range got[at] {
				rate, p99 = append(rate, x.rate), append(p99, x.p99)
				ratio = append(ratio, x.rate/got[0][round].rate)
			}
			_, _ = fmt.Fprintf(out, "| %s | %s | %.2f (%.2f to %.2f) | %.1f |\n", d.name, Count(middle(rate)),
				middle(ratio), slices.Min(ratio), slices.Max(ratio), middle(p99))
		}
	}
	return nil
}

// writeSlices has a node and a runner write slices into the database.
func (e *Env) writeSlices(ctx context.Context, s *pg.Server) error {
	n, args := devNode()
	if err := e.first(ctx, n, args...); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, e.binary, "sql", "init", "--database", s.URL()).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	const runner = "sql run"
	if err := e.spawn(runner, e.binary, "sql", "run", "--database", s.URL(), "--addr", n.GRPC); err != nil {
		return err
	}
	var last []byte
	if err := e.until(ctx, runner, "no slice", func() bool {
		last, err = exec.CommandContext(ctx, e.binary, "sql", "status", "--database", s.URL()).CombinedOutput()
		return err == nil
	}); err != nil {
		return fmt.Errorf("%w: %s", err, last)
	}
	return nil
}

type sqlSample struct{ rate, p99 float64 } // rows a second; milliseconds

// inserts runs pgbench on an empty table.
func inserts(ctx context.Context, s *pg.Server, dir, key string, rows, clients int, slice time.Duration) (x sqlSample,
	err error) {
	table := fmt.Sprintf("DROP TABLE IF EXISTS t; CREATE TABLE t (id %s PRIMARY KEY, note text); CHECKPOINT", key)
	psql := exec.CommandContext(ctx, filepath.Join(s.Bin, "psql"), "-qXc", table, s.URL())
	if out, err := psql.CombinedOutput(); err != nil {
		return x, fmt.Errorf("%w: %s", err, out)
	}
	insert := "INSERT INTO t (note) VALUES ('a note')"
	if rows > 1 {
		insert = fmt.Sprintf("INSERT INTO t (note) SELECT 'a note' FROM generate_series(1, %d)", rows)
	}
	script, log := filepath.Join(dir, "insert.sql"), filepath.Join(dir, "log")
	if err := os.WriteFile(script, []byte(insert+";\n"), 0o600); err != nil {
		return x, err
	}
	old, _ := filepath.Glob(log + ".*")
	for _, name := range old {
		_ = os.Remove(name)
	}
	seconds := strconv.Itoa(int(max(1, slice.Round(time.Second)/time.Second)))
	cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, "pgbench"), "--no-vacuum", "--protocol", "prepared",
		"--client", strconv.Itoa(clients), "--time", seconds, "--file", script, "--log", "--log-prefix", log, s.URL())
	var problems strings.Builder
	cmd.Stderr = &problems
	text, err := cmd.Output()
	if err != nil {
		return x, fmt.Errorf("%w: %s", err, &problems)
	}
	_, tps, _ := strings.Cut(string(text), "tps = ")
	if _, err := fmt.Sscan(tps, &x.rate); err != nil {
		return x, fmt.Errorf("pgbench printed %q: %w", text, err)
	}
	x.rate *= float64(rows)
	files, _ := filepath.Glob(log + ".*")
	var took []float64
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return x, err
		}
		for line := range strings.Lines(string(text)) { // client, number, microseconds, …
			if f := strings.Fields(line); len(f) > 2 {
				us, _ := strconv.ParseFloat(f[2], 64)
				took = append(took, us/1000)
			}
		}
	}
	if len(took) == 0 {
		return x, fmt.Errorf("pgbench wrote no log: %s", text)
	}
	slices.Sort(took)
	x.p99 = took[len(took)*99/100]
	return x, nil
}

func middle(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }
