package fence

import (
	"context"
	"time"
)

// Status is where a fence is, as the database has it.
type Status struct {
	Database string `json:"database"`
	Table    string `json:"table"`
	View     string `json:"view"`
	// Readable is the end of the view: an integer, or a UUID.
	Readable       string     `json:"readable"`
	ReadableUnixMs int64      `json:"readable_unix_ms"`
	ReadableAt     *time.Time `json:"readable_at,omitempty"`
	// ReadableLSN is a place in the log. A standby that has replayed it has all rows below Readable.
	ReadableLSN string     `json:"readable_lsn,omitempty"`
	LagMs       int64      `json:"lag_ms"` // The database's clock minus ReadableUnixMs.
	FloorUnixMs int64      `json:"floor_unix_ms"`
	FloorAt     *time.Time `json:"floor_at,omitempty"`
	Mover       string     `json:"mover,omitempty"`
	// MarkBlockedBy says what holds the mark back, as the mover had it last.
	MarkBlockedBy string `json:"mark_blocked_by,omitempty"`
	// BlockedBy is what the mover waits for; it is empty if the view has reached the floor.
	BlockedBy []Holder `json:"blocked_by"`
	// Problems say what lets readers miss rows, and what to do.
	Problems []string  `json:"problems,omitempty"`
	Now      time.Time `json:"-"` // by the database's clock
}

// Status reads where the fence of a table is.
func (t *Table) Status(ctx context.Context) (Status, error) {
	s := Status{Database: t.db.String(), Table: t.String(), View: t.View(), BlockedBy: []Holder{}}
	err := t.db.Pool.QueryRow(ctx, `SELECT readable::text, readable_ms, readable_at, coalesce(readable_lsn::text, ''),
		floor_ms, floor_at, mover, mark_blocked_by, clock_timestamp() FROM `+t.ident(fenceSuffix)).
		Scan(&s.Readable, &s.ReadableUnixMs, &s.ReadableAt, &s.ReadableLSN, &s.FloorUnixMs, &s.FloorAt, &s.Mover,
			&s.MarkBlockedBy, &s.Now)
	if err != nil {
		return s, t.known(err)
	}
	s.LagMs = s.Now.UnixMilli() - s.ReadableUnixMs
	unfenced, err := t.unfenced(ctx)
	if err != nil {
		return s, err
	}
	for _, b := range unfenced {
		s.Problems = append(s.Problems, b.why(t))
	}
	var ours, low bool
	if err := t.db.Pool.QueryRow(ctx, `SELECT `+viewOfSQL+`, s.last_value < `+t.readableSQL()+` FROM `+
		t.ident(floorSuffix)+` s, `+t.ident(fenceSuffix)+` f`, t.ident(viewSuffix), t.oid, t.ident("")).
		Scan(&ours, &low); err != nil {
		return s, t.known(err)
	}
	if !ours {
		s.Problems = append(s.Problems, t.View()+` reads another table: run "allocator fence init" again`)
	}
	if low {
		s.Problems = append(s.Problems, `the floor is below the end of the view, so late rows are not refused: `+
			`run "allocator fence init" again`)
	}
	ahead, err := t.Ahead(ctx)
	if err != nil {
		return s, err
	}
	if ahead.Rows > 0 {
		s.Problems = append(s.Problems, ahead.of(t))
	}
	holders, err := t.Holders(ctx)
	for _, h := range holders {
		// One that began after the floor was raised is not waited for. Of a prepared one only the
		// time is known at which it was prepared.
		if s.FloorUnixMs > s.ReadableUnixMs &&
			(h.PID == 0 || h.Since == nil || s.FloorAt == nil || !h.Since.After(*s.FloorAt)) {
			s.BlockedBy = append(s.BlockedBy, h)
		}
	}
	return s, err
}
