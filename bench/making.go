package bench

import (
	"bufio"
	"crypto/rand"
	"time"

	"github.com/bwmarrin/snowflake"
	"github.com/google/uuid"
	oklog "github.com/oklog/ulid/v2"
	"github.com/rs/xid"
	"github.com/segmentio/ksuid"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// making returns the cases that make IDs. Each is as safe for several
// goroutines, and draws as its library does by itself, unless a comment says
// otherwise. A series that is full, or a generator that waits for the next
// millisecond, takes the time it takes.
func making() []Case {
	// Entropy size 0 is +1, which is what the peers' series do.
	offline, err := flake.NewOffline(flake.OfflineConfig{Format: flake.Default})
	if err != nil {
		panic(err) // the configuration above is wrong
	}
	stepping, err := flake.NewOffline(flake.OfflineDefaults())
	if err != nil {
		panic(err)
	}
	wide := ulid.NewOffline(ulid.OfflineConfig{})
	node, err := snowflake.NewNode(1)
	if err != nil {
		panic(err)
	}
	// The same random bits as ours: cryptographic, and read ahead.
	random := bufio.NewReaderSize(rand.Reader, 1<<10)
	series := &oklog.LockedMonotonicReader{MonotonicReader: oklog.Monotonic(bufio.NewReaderSize(rand.Reader, 1<<10), 1)}
	now := func() uint64 { return oklog.Timestamp(time.Now()) }
	return []Case{
		{Groups[7], Ours, func(n int) {
			for range n {
				sinkFlake, sinkErr = offline.New()
			}
		}, func() string { id, _ := offline.New(); return id.String() }, 0},
		{Groups[7], "rs/xid", func(n int) { // 96 bits, a counter in place of random bits
			for range n {
				sinkXID = xid.New()
			}
		}, func() string { return xid.New().String() }, 0},

		{Groups[8], Ours, func(n int) {
			for range n {
				sinkID, sinkErr = wide.New()
			}
		}, func() string { id, _ := wide.New(); return id.String() }, 0},
		{Groups[8], "oklog/ulid", func(n int) { // without a lock
			for range n {
				sinkOklog, sinkErr = oklog.New(now(), random)
			}
		}, func() string { id, _ := oklog.New(now(), random); return id.String() }, 0},
		{Groups[8], "google/uuid", func(n int) {
			for range n {
				sinkUUID, sinkErr = uuid.NewV7()
			}
		}, func() string { id, _ := uuid.NewV7(); return id.String() }, 0},
		{Groups[8], "segmentio/ksuid", func(n int) { // 160 bits
			for range n {
				sinkKSUID, sinkErr = ksuid.NewRandom()
			}
		}, func() string { id, _ := ksuid.NewRandom(); return id.String() }, 0},

		{Groups[9], Ours + ", ULID +1", func(n int) {
			for range n {
				sinkID, sinkErr = wide.Next()
			}
		}, func() string { id, _ := wide.Next(); return id.String() }, 0},
		{Groups[9], Ours + ", Ulid-Flake +1", func(n int) {
			for range n {
				for sinkFlake, sinkErr = offline.Next(); sinkErr != nil; sinkFlake, sinkErr = offline.Next() {
				}
			}
		}, func() string { id, _ := offline.Next(); return id.String() }, 0},
		{Groups[9], Ours + ", Ulid-Flake +n", func(n int) { // some 130 fit into a millisecond
			for range n {
				for sinkFlake, sinkErr = stepping.Next(); sinkErr != nil; sinkFlake, sinkErr = stepping.Next() {
				}
			}
		}, func() string {
			id, err := stepping.Next()
			for err != nil {
				id, err = stepping.Next()
			}
			return id.String()
		}, 0},
		{Groups[9], "oklog/ulid", func(n int) {
			for range n {
				sinkOklog, sinkErr = oklog.New(now(), series)
			}
		}, func() string { id, _ := oklog.New(now(), series); return id.String() }, 0},
		{Groups[9], "bwmarrin/snowflake", func(n int) { // 4,096 fit into a millisecond
			for range n {
				sinkSnow = node.Generate()
			}
		}, func() string { return node.Generate().String() }, 10 * time.Millisecond},
	}
}
