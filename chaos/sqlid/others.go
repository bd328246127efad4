package sqlid

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/sqlid"
)

// others are ways to make IDs in a database that answer some twice once a server has been copied.
var others = []struct {
	name string
	sql  func(flake.Format) string // makes it
	draw string
}{
	{
		// A crash and a copy keep logged sequences, and nothing says that they are those of another server.
		name: "a slice in logged sequences that is bound to no server",
		sql: func(f flake.Format) string {
			of := strings.NewReplacer("allocator", "logged", "UNLOGGED ", "", "relpersistence = 'u'",
				"relpersistence = 'p'", "pg_catalog.pg_postmaster_start_time()", "timestamptz 'epoch'")
			return of.Replace("BEGIN; " + strings.Join(sqlid.SQL(f, time.Hour, "", ""), "; ") + "; COMMIT")
		},
		draw: "SELECT logged.next_id() FROM generate_series(1, 200)",
	},
	{
		// Source: "Sharding & IDs at Instagram", 2012. The number of the shard is set by hand.
		name: "Instagram's function",
		sql: func(flake.Format) string {
			return `CREATE SCHEMA insta; CREATE SEQUENCE insta.seq;
CREATE FUNCTION insta.next_id(OUT result bigint) LANGUAGE plpgsql AS $f$
DECLARE
  our_epoch bigint := 1314220021721;
  seq_id bigint;
  now_millis bigint;
  shard_id int := 5;
BEGIN
  SELECT nextval('insta.seq') % 1024 INTO seq_id;
  SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) INTO now_millis;
  result := (now_millis - our_epoch) << 23;
  result := result | (shard_id << 10);
  result := result | (seq_id);
END $f$`
		},
		draw: "SELECT insta.next_id() FROM generate_series(1, 20000)",
	},
}

// slice writes a slice into the logged sequences of a server, that nothing else has, and returns its end.
func (r *Run) slice(s *server) (stop int64) {
	first := time.Now().UnixMilli() << 20
	stop = first + 1<<30
	r.exec(s, 0, fmt.Sprintf(`SELECT logged.slice(%d, %d, %d, 1, 'test', 0,
		obj_description('logged'::regnamespace, 'pg_namespace'))`, first, stop, time.Now().Add(time.Hour).UnixMilli()))
	return stop
}

// drawTwice draws IDs of each other way from a server and its copy at once.
func (r *Run) drawTwice(a, b *server) {
	for _, other := range others {
		var all sync.WaitGroup
		for _, s := range []*server{a, b} {
			s.pools[0].Reset() // The server may have been started again.
			all.Go(func() {
				rows, err := s.pools[0].Query(r.ctx, other.draw)
				if err != nil {
					r.Errorf("%s: %v", other.name, err)
					return
				}
				ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
				if err != nil {
					r.Errorf("%s: %v", other.name, err)
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				found := r.twice[other.name]
				if found == nil {
					found = history.NewUnique(0, nil)
					r.twice[other.name] = found
				}
				for _, id := range ids {
					found.Add(&history.Op{
						Process: "0", Type: history.OK, F: history.FAllocate, Run: s.name,
						Block: history.Block{First: flake.ID(id), Count: 1, Stride: 1},
					})
				}
			})
		}
		all.Wait()
	}
}
