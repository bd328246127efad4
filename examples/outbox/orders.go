package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
)

// event is a change of an order. Whoever reads events keeps the greatest ID it has seen
// of each order, and drops those that are not greater: it has had them.
type event struct {
	ID    flake.ID `json:"id"`
	Order flake.ID `json:"order"`
	State string   `json:"state"`
}

// createTables may be run by several programs at once.
func createTables(ctx context.Context, db *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			SELECT pg_advisory_xact_lock(7001);
			CREATE TABLE IF NOT EXISTS orders (
				id    bigint PRIMARY KEY,
				state text NOT NULL,
				event bigint NOT NULL -- ID of its latest event
			);
			CREATE TABLE IF NOT EXISTS outbox (
				id       bigint PRIMARY KEY,
				order_id bigint NOT NULL,
				state    text NOT NULL
			)`)
		return err
	})
}

type orders struct {
	db  *pgxpool.Pool
	ids *client.Client
}

// create stores a new order. Its ID is that of its first event as well.
func (o *orders) create(ctx context.Context) (flake.ID, error) {
	id, err := o.ids.Next(ctx)
	if err != nil {
		return 0, err
	}
	return id, pgx.BeginFunc(ctx, o.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO orders VALUES ($1, 'new', $1)`, id); err != nil {
			return err
		}
		return announce(ctx, tx, event{id, id, "new"})
	})
}

// change gives an order another state. Its events have rising IDs, in the order of the
// commits: the lock keeps others from changing the order until this transaction has ended,
// and after makes the ID greater than the last one, from whichever node that was.
func (o *orders) change(ctx context.Context, order flake.ID, state string) error {
	return pgx.BeginFunc(ctx, o.db, func(tx pgx.Tx) error {
		var last flake.ID
		if err := tx.QueryRow(ctx, `SELECT event FROM orders WHERE id = $1 FOR UPDATE`, order).Scan(&last); err != nil {
			return err
		}
		id, err := o.ids.NextAfter(ctx, last)
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `UPDATE orders SET state = $2, event = $3 WHERE id = $1`, order, state,
			id); err != nil {
			return err
		}
		return announce(ctx, tx, event{id, order, state})
	})
}

func announce(ctx context.Context, tx pgx.Tx, e event) error {
	_, err := tx.Exec(ctx, `INSERT INTO outbox VALUES ($1, $2, $3)`, e.ID, e.Order, e.State)
	return err
}
