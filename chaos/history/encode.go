package history

import (
	"encoding/json"
	"fmt"
	"strconv"
	"unicode/utf8"

	"github.com/flakelease/allocator/flake"
)

// AppendJSON appends op to b as one JSON object without a newline. It returns
// ErrValue, and b unchanged, for an op that a Reader would not take back.
func (op *Op) AppendJSON(b []byte) ([]byte, error) {
	if err := op.validate(); err != nil {
		return b, err
	}
	start := len(b)
	b = append(b, `{"process":`...)
	if isNumber(op.Process) {
		b = append(b, op.Process...)
	} else {
		b = appendString(b, op.Process)
	}
	b = append(b, `,"type":"`...)
	b = append(b, op.Type.String()...)
	b = append(b, `","f":`...)
	b = appendString(b, op.F)
	b = append(b, `,"value":`...)
	var err error
	if b, err = op.appendValue(b); err != nil {
		return b[:start], err
	}
	b = append(b, `,"time":`...)
	b = strconv.AppendInt(b, int64(op.Time), 10)
	for _, f := range [...]struct{ name, value string }{
		{`,"node":`, op.Node}, {`,"run":`, op.Run}, {`,"session":`, op.Session}, {`,"via":`, op.Via},
		{`,"reason":`, op.Reason},
	} {
		if f.value != "" {
			b = append(b, f.name...)
			b = appendString(b, f.value)
		}
	}
	if op.Retry > 0 {
		b = append(b, `,"retry_ms":`...)
		b = strconv.AppendInt(b, op.Retry.Milliseconds(), 10)
	}
	return append(b, '}'), nil
}

func (op *Op) appendValue(b []byte) ([]byte, error) {
	var rare any
	switch {
	case op.Process == Nemesis:
		rare = op.Fault
	case op.F == FAllocate:
		return op.appendCall(b), nil
	case op.F == FSetup:
		rare = op.Setup
	case op.F == FSample:
		rare = op.Sample
	case op.F == FWindow:
		rare = op.Window
	case op.F == FHolder:
		rare = op.Holder
	default: // a leader
		return append(b, "null"...), nil
	}
	text, err := json.Marshal(rare)
	if err != nil { // a number that JSON does not have
		return b, fmt.Errorf("%w: %w", ErrValue, err)
	}
	return append(b, text...), nil
}

// appendCall appends what a call asked for or got. IDs are strings: they have
// more digits than a float64.
func (op *Op) appendCall(b []byte) []byte {
	switch op.Type {
	case Invoke:
		b = append(b, `{"count":`...)
		b = strconv.AppendInt(b, op.Block.Count, 10)
		if op.After != 0 {
			b = append(b, `,"after":"`...)
			b = append(op.After.AppendInt(b), '"')
		}
		return append(b, '}')
	case OK:
		b = append(b, `{"first":"`...)
		b = op.Block.First.AppendInt(b)
		b = append(b, `","count":`...)
		b = strconv.AppendInt(b, op.Block.Count, 10)
		b = append(b, `,"stride":`...)
		b = strconv.AppendInt(b, op.Block.Stride, 10)
		return append(b, '}')
	default:
		return append(b, "null"...)
	}
}

// validate returns ErrValue for an op that means nothing.
func (op *Op) validate() error {
	bad := func(what string) error { return fmt.Errorf("%w: %s", ErrValue, what) }
	switch {
	case op.Time < 0:
		return bad("time")
	case op.Process == "":
		return bad("process")
	case int(op.Type) >= len(typeNames):
		return bad("type")
	case op.F == "":
		return bad("f")
	case op.Retry < 0:
		return bad("retry_ms")
	}
	if op.Process == Nemesis {
		if f := op.Fault; f == nil || f.Phase != FaultStart && f.Phase != FaultFired && f.Phase != FaultStop {
			return bad("phase of a fault")
		}
		return nil
	}
	switch op.F {
	case FAllocate:
		switch {
		case op.Type == OK && !op.Block.valid():
			return bad("block")
		case op.Type == Invoke && (op.Block.Count < 0 || op.After < 0):
			return bad("request")
		}
	case FSetup:
		if op.Setup == nil {
			return bad("setup")
		}
		if _, err := flake.ParseLayout(op.Setup.Layout); err != nil {
			return bad("layout")
		}
	case FSample:
		if op.Sample == nil {
			return bad("sample")
		}
	case FWindow:
		if op.Window == nil || op.Window.SID < 0 {
			return bad("window")
		}
	case FHolder:
		if op.Holder == nil || op.Holder.SID < 0 {
			return bad("holder")
		}
	case FLeader:
	default:
		return bad("f")
	}
	return nil
}

// isNumber reports whether s is the one way to write a number that every JSON
// reader takes exactly.
func isNumber(s string) bool {
	if len(s) == 0 || len(s) > 15 || s[0] == '0' && len(s) > 1 {
		return false
	}
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// appendString appends s as a JSON string. What is no UTF-8 becomes U+FFFD.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			text, _ := json.Marshal(s) // a string has no error
			return append(b, text...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
