// Package userdb opens PostgreSQL databases of users, for what the program does in them: fences and column defaults.
package userdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB is a PostgreSQL database. Its methods are safe for concurrent use.
type DB struct {
	Pool *pgxpool.Pool
	name string
}

// Open returns a database that contacts nobody yet. url is what libpq takes, a URL or "key=value" pairs; what it leaves
// out comes from the variables PGHOST, PGPASSWORD and so on, and from the password file. With several hosts the one
// that takes writes is used. Sessions have the name of the program.
func Open(url, program string) (*DB, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err // pgx leaves the password out of it
	}
	c := cfg.ConnConfig
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = program
	}
	if len(c.Fallbacks) > 0 && c.ValidateConnect == nil {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, err
	}
	return &DB{pool, fmt.Sprintf("%s:%d/%s", c.Host, c.Port, cmp.Or(c.Database, c.User))}, nil
}

// Close closes the connections.
func (d *DB) Close() { d.Pool.Close() }

// String returns host, port and name; unless a name is given, PostgreSQL takes that of the user.
func (d *DB) String() string { return d.name }

// ErrSetup is the error of a table, a database or rights that have to be changed first.
var ErrSetup = errors.New("the database has to be changed first")

// Setup returns an ErrSetup with that message.
func Setup(format string, args ...any) error { return setupError{fmt.Errorf(format, args...)} }

type setupError struct{ error }

func (e setupError) Is(target error) bool { return target == ErrSetup }
func (e setupError) Unwrap() error        { return e.error }

// Broken returns the error of a call that no server answered, with the name of the database. What the driver was doing
// when it noticed is left out: it differs from call to call.
func Broken(database string, err error) error {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	cause := err
	for next := err; next != nil; next = errors.Unwrap(next) {
		cause = next
	}
	switch {
	case err == nil:
		return nil
	case connecting:
		return fmt.Errorf("%s: %w", database, err)
	case errors.Is(err, context.DeadlineExceeded):
		return brokenError{fmt.Sprintf("%s: the server does not answer in time", database), err}
	}
	return brokenError{fmt.Sprintf("%s: the connection broke: %v", database, cause), err}
}

type brokenError struct {
	says string
	err  error
}

func (e brokenError) Error() string { return e.says }
func (e brokenError) Unwrap() error { return e.err }

// Code returns the SQLSTATE of an error, or "".
func Code(err error) string {
	if e, ok := errors.AsType[*pgconn.PgError](err); ok {
		return e.Code
	}
	return ""
}

// Unreachable reports whether err is that no server accepted a connection.
func Unreachable(err error) bool {
	_, connecting := errors.AsType[*pgconn.ConnectError](err)
	return connecting && Code(err) == "" // A server that refuses says why.
}
