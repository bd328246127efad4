package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// decoder turns lines into ops. Names come back again and again, so each text
// is kept once.
type decoder struct{ names map[string]string }

// mostNames bounds the texts kept: a history of a million sessions must not
// fill the reader's memory.
const mostNames = 1 << 16

func (d *decoder) intern(b []byte) string {
	if s, ok := d.names[string(b)]; ok {
		return s
	}
	s := string(b)
	if len(d.names) < mostNames && len(b) <= 256 {
		d.names[s] = s
	}
	return s
}

// decode sets op to the contents of line. It returns ErrSyntax or ErrValue; op is
// then of no use.
func (d *decoder) decode(line []byte, op *Op) error {
	*op = Op{Time: -1}
	s := scanner{in: line}
	var value []byte
	typ := ""
	s.object(func(name []byte) {
		switch string(name) {
		case "process":
			if s.space() == '"' {
				op.Process = d.intern(s.text())
				return
			}
			at := s.pos
			s.number()
			if s.err == nil && !isNumber(string(s.in[at:s.pos])) {
				s.value("process")
			}
			op.Process = d.intern(s.in[min(at, s.pos):s.pos])
		case "type":
			typ = d.intern(s.text())
		case "f":
			op.F = d.intern(s.text())
		case "value":
			value = s.raw()
		case "time":
			op.Time = clock.Mono(s.integer())
		case "node":
			op.Node = d.intern(s.text())
		case "run":
			op.Run = d.intern(s.text())
		case "session":
			op.Session = d.intern(s.text())
		case "via":
			op.Via = d.intern(s.text())
		case "reason":
			op.Reason = d.intern(s.text())
		case "retry_ms":
			ms := s.integer()
			if ms < 0 || ms > int64((1<<63-1)/time.Millisecond) {
				s.value("retry_ms")
			}
			op.Retry = time.Duration(ms) * time.Millisecond
		default:
			s.skip(0)
		}
	})
	if s.space(); s.pos < len(s.in) {
		s.fail("text behind the object")
	}
	if s.err != nil {
		return s.err
	}
	op.Type = Type(len(typeNames))
	for t, name := range typeNames {
		if typ == name {
			op.Type = Type(t)
		}
	}
	if err := op.decodeValue(value); err != nil {
		return err
	}
	return op.validate()
}

func (op *Op) decodeValue(value []byte) error {
	var rare any
	switch {
	case bytes.Equal(value, []byte("null")) || value == nil:
		return nil // whether that can be is for validate to say
	case op.Process == Nemesis:
		op.Fault = new(Fault)
		rare = op.Fault
	case op.F == FAllocate:
		return op.decodeCall(value)
	case op.F == FSetup:
		op.Setup = new(Setup)
		rare = op.Setup
	case op.F == FSample:
		op.Sample = new(Sample)
		rare = op.Sample
	case op.F == FWindow:
		op.Window = new(Window)
		rare = op.Window
	case op.F == FHolder:
		op.Holder = new(Holder)
		rare = op.Holder
	default:
		return nil
	}
	if err := json.Unmarshal(value, rare); err != nil {
		return fmt.Errorf("%w: %w", ErrValue, err)
	}
	return nil
}

func (op *Op) decodeCall(value []byte) error {
	s := scanner{in: value}
	if s.space() != '{' {
		return fmt.Errorf("%w: value of a call", ErrValue)
	}
	s.object(func(name []byte) {
		switch string(name) {
		case "first":
			op.Block.First = flake.ID(s.integer())
		case "count":
			op.Block.Count = s.integer()
		case "stride":
			op.Block.Stride = s.integer()
		case "after":
			op.After = flake.ID(s.integer())
		default:
			s.skip(0)
		}
	})
	return s.err
}
