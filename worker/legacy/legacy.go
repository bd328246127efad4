// Package legacy makes IDs with the Snowflake libraries that programs already have, and a
// worker number that nobody else has.
//
//	s, err := legacy.OpenSnowflake(ctx, worker.Config{
//		Client: client.Options{Targets: []string{"allocator-0:9000"}},
//	})
//	…
//	defer s.Close()
//	id, err := s.Generate()
//
// IDs have the bits and the epoch of the library. They are unique among all workers of the
// space, if these use the same library settings. Each ID is asked about with its own time
// after it was made: one that lies outside of the worker's interval is dropped, and the
// error is that of worker.Worker.Permit.
package legacy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/bwmarrin/snowflake"
	"github.com/sony/sonyflake"

	"github.com/flakelease/allocator/worker"
)

// Snowflake makes IDs with bwmarrin/snowflake. It is safe for concurrent use.
type Snowflake struct {
	worker *worker.Worker
	node   *snowflake.Node
	epoch  int64 // Unix ms
	shift  uint8 // The time in an ID begins at this bit.
}

// OpenSnowflake opens a worker, and a node of the library with its number. Set
// snowflake.Epoch, NodeBits and StepBits before. The errors are those of worker.Open, and
// the library's if the number does not fit into NodeBits: then the range of workers,
// worker.sid-range, is too high for this layout.
func OpenSnowflake(ctx context.Context, cfg worker.Config) (*Snowflake, error) {
	cfg.Unit = time.Millisecond
	w, err := worker.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	node, err := snowflake.NewNode(w.Number())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("legacy: worker number %d: %w", w.Number(), err), w.Close())
	}
	return &Snowflake{w, node, snowflake.Epoch, snowflake.NodeBits + snowflake.StepBits}, nil
}

// Generate returns an ID, or an error of worker.Worker.Permit.
func (s *Snowflake) Generate() (snowflake.ID, error) {
	id := s.node.Generate()
	if err := s.worker.Permit(int64(id)>>s.shift + s.epoch); err != nil {
		return 0, err
	}
	return id, nil
}

// Worker returns the worker. It ends with Close.
func (s *Snowflake) Worker() *worker.Worker { return s.worker }

// Close gives the worker number back.
func (s *Snowflake) Close() error { return s.worker.Close() }

// Sonyflake makes IDs with sony/sonyflake. It is safe for concurrent use.
type Sonyflake struct {
	worker    *worker.Worker
	sonyflake *sonyflake.Sonyflake
	start     int64 // Unix time in units of the library
}

// unit is the library's unit of time.
const unit = 10 * time.Millisecond

// OpenSonyflake opens a worker, and a generator of the library with its number as the
// machine ID: it replaces MachineID. The errors are those of worker.Open, and the
// library's.
func OpenSonyflake(ctx context.Context, cfg worker.Config, settings sonyflake.Settings) (*Sonyflake, error) {
	cfg.Unit = unit
	w, err := worker.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if settings.StartTime.IsZero() {
		settings.StartTime = time.Date(2014, 9, 1, 0, 0, 0, 0, time.UTC) // the library's
	}
	settings.MachineID = func() (uint16, error) {
		if n := w.Number(); n <= math.MaxUint16 {
			return uint16(n), nil
		}
		return 0, fmt.Errorf("worker number %d is above %d", w.Number(), math.MaxUint16)
	}
	s, err := sonyflake.New(settings)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("legacy: sonyflake: %w", err), w.Close())
	}
	return &Sonyflake{w, s, settings.StartTime.UnixNano() / int64(unit)}, nil
}

// NextID returns an ID, an error of worker.Worker.Permit, or the library's.
func (s *Sonyflake) NextID() (uint64, error) {
	id, err := s.sonyflake.NextID()
	if err != nil {
		return 0, err
	}
	at := s.start + int64(sonyflake.ElapsedTime(id)/unit)
	if err := s.worker.Permit(at * unit.Milliseconds()); err != nil {
		return 0, err
	}
	return id, nil
}

// Worker returns the worker. It ends with Close.
func (s *Sonyflake) Worker() *worker.Worker { return s.worker }

// Close gives the worker number back.
func (s *Sonyflake) Close() error { return s.worker.Close() }
