package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	batch = 100
	pause = 100 * time.Millisecond // wait when there is nothing to do, and after a failure
)

// relay publishes events until ctx ends. Several may run: one at a time does something,
// and another goes on where that one fails.
func relay(ctx context.Context, db *pgxpool.Pool, publish func(context.Context, []event) error) error {
	for ctx.Err() == nil {
		n, err := relayOnce(ctx, db, publish)
		if err != nil && ctx.Err() == nil {
			slog.Error("relay failed; it goes on", "err", err)
		}
		if n < batch || err != nil {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// relayOnce publishes the events with the least IDs, and deletes them.
//
// It does not look for events above the last one that it published. IDs are sorted by the
// time they were issued, and transactions commit in another order: an event can appear
// below one that is published already. So an event is due while it is in the table,
// whatever its ID.
//
// Events of one order appear in the order of their IDs, so sorting by ID is enough for
// those. If the program ends between publish and commit, they are published again.
func relayOnce(ctx context.Context, db *pgxpool.Pool, publish func(context.Context, []event) error) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var mine bool // the lock is ours until the transaction ends
		if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(7002)`).Scan(&mine); err != nil || !mine {
			return err
		}
		rows, err := tx.Query(ctx, `SELECT id, order_id, state FROM outbox ORDER BY id LIMIT $1`, batch)
		if err != nil {
			return err
		}
		events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[event])
		if err != nil || len(events) == 0 {
			return err
		}
		if err := publish(ctx, events); err != nil {
			return err
		}
		ids := make([]int64, len(events))
		for i, e := range events {
			ids[i] = e.ID.Int64()
		}
		n = len(ids)
		_, err = tx.Exec(ctx, `DELETE FROM outbox WHERE id = ANY ($1)`, ids)
		return err
	})
	return n, err
}
