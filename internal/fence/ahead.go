package fence

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/userdb"
)

const (
	dayMs = int64(24 * time.Hour / time.Millisecond)
	// defaultAhead is how far ahead of the mark and of the database's clock IDs are refused, unless the
	// mover says otherwise: programs and databases have clocks of their own.
	defaultAhead = 24 * time.Hour
	// Rows further ahead are told of. No clock and no generator in order is.
	tellAhead = time.Hour
	// So many of them are counted.
	maxAheadRows = 1000
)

// PerDay returns how much larger IDs of a space are a day later.
func PerDay(space flake.Format) int64 {
	return int64(min(float64(dayMs)/float64(space.Layout.Unit())*math.Exp2(float64(space.Layout.LowBits())), 1<<62))
}

// line says which times values of a floor have: that of value is ms.
type line struct {
	ms, value, perDay int64
}

func (l line) at(ms int64) int64 {
	v := float64(l.value) + float64(ms-l.ms)/float64(dayMs)*float64(l.perDay)
	if v >= math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(v)
}

func (l line) time(value int64) time.Time {
	return time.UnixMilli(l.ms + int64((float64(value)-float64(l.value))/float64(l.perDay)*float64(dayMs))).UTC()
}

// wideMs is the time in an expression of the type uuid, in SQL.
func wideMs(expression string) string {
	return `('x' || left(replace(` + expression + `::text, '-', ''), 12))::bit(48)::bigint`
}

// times returns which times the fence's values have, if a mover has said it.
func (t *Table) times(ctx context.Context) (l line, known bool, err error) {
	if t.wide {
		return line{perDay: dayMs}, true, nil
	}
	err = t.db.Pool.QueryRow(ctx, `SELECT floor_ms, last_value, ids_per_day FROM `+t.ident(fenceSuffix)+`, `+
		t.ident(floorSuffix)).Scan(&l.ms, &l.value, &l.perDay)
	return l, l.perDay > 0, err
}

// Ahead is rows that readers of a view do not get for some time, since their IDs are of the future.
type Ahead struct {
	Rows  int // up to maxAheadRows
	First string
	Time  time.Time // First has it
}

// of says it of a table.
func (a Ahead) of(t *Table) string {
	rows := "rows"
	switch a.Rows {
	case 1:
		rows = "row"
	case maxAheadRows:
		rows = "or more rows"
	}
	return fmt.Sprintf("%s has %d %s ahead of now, the first of %s with ID %s, and no reader of the view gets "+
		"them before: UUIDs of version 4, IDs of another layout, or numbers that are no IDs; give these rows other IDs",
		t, a.Rows, rows, a.Time.Format("2006-01-02T15:04:05Z"), a.First)
}

// ahead looks for rows whose IDs are further ahead of the database's clock. It finds none if this role may
// not read the column.
func (t *Table) ahead(ctx context.Context, times line, further time.Duration) (a Ahead, err error) {
	var now time.Time
	if err := t.db.Pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return a, err
	}
	edge := times.at(now.Add(further).UnixMilli())
	if edge == math.MaxInt64 {
		return a, nil
	}
	from, value := strconv.FormatInt(edge, 10), "min(id)"
	least := value
	if t.wide {
		from = fmt.Sprintf("%012x%020x", edge, 0)
		least = "(array_agg(id))[1]" // PostgreSQL has no minimum of UUIDs.
		value = wideMs(least)
	}
	var first *int64
	column := pgx.Identifier{t.column}.Sanitize()
	err = t.db.Pool.QueryRow(ctx, fmt.Sprintf(`SELECT count(*), coalesce(%s::text, ''), %s
		FROM (SELECT %s AS id FROM %s WHERE %[3]s >= '%[5]s' ORDER BY 1 LIMIT %[6]d) rows`,
		least, value, column, t.ident(""), from, maxAheadRows)).Scan(&a.Rows, &a.First, &first)
	switch {
	case errors.Is(err, pgx.ErrNoRows) || userdb.Code(err) == "42501":
		return Ahead{}, nil
	case err == nil && first != nil:
		a.Time = times.time(*first)
	}
	return a, err
}

// Ahead looks for rows that are an hour ahead or more. It finds none in integers before a mover has said
// which times they have.
func (t *Table) Ahead(ctx context.Context) (Ahead, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	times, known, err := t.times(ctx)
	if err != nil || !known {
		return Ahead{}, err
	}
	return t.ahead(ctx, times, tellAhead)
}
