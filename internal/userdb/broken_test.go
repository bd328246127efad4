package userdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// TestBroken: an error says what failed, and not what the driver was doing then.
func TestBroken(t *testing.T) {
	late := fmt.Errorf("timeout: %w", context.DeadlineExceeded)
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("failed to deallocate cached statement(s): %w", errors.New("conn closed")), "db: the connection broke: conn closed"},
		{fmt.Errorf("failed to receive message: %w", io.ErrUnexpectedEOF), "db: the connection broke: unexpected EOF"},
		{fmt.Errorf("failed to deallocate cached statement(s): %w", late), "db: the server does not answer in time"},
		{late, "db: the server does not answer in time"},
	} {
		if got := Broken("db", c.err); got.Error() != c.want || !errors.Is(got, c.err) {
			t.Errorf("%v: %v, want %s", c.err, got, c.want)
		}
	}
	if got := Broken("db", &pgconn.ConnectError{Config: &pgconn.Config{}}); !Unreachable(got) {
		t.Errorf("unreachable: %v", got)
	}
	if got := Broken("db", nil); got != nil {
		t.Errorf("no error: %v", got)
	}
}
