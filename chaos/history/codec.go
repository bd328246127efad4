package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
)

// line is an Op as text.
type line struct {
	Process json.RawMessage `json:"process"`
	Type    string          `json:"type"`
	F       string          `json:"f"`
	Value   any             `json:"value"`
	Time    int64           `json:"time"`
	Node    string          `json:"node,omitempty"`
	Run     string          `json:"run,omitempty"`
	Session string          `json:"session,omitempty"`
	Via     string          `json:"via,omitempty"`
	Reason  string          `json:"reason,omitempty"`
	RetryMs int64           `json:"retry_ms,omitempty"`
}

// call is the value of a call. IDs are strings: they have more digits than a float64.
type call struct {
	First  int64 `json:"first,string,omitempty"`
	Count  int64 `json:"count"`
	Stride int64 `json:"stride,omitempty"`
	After  int64 `json:"after,string,omitempty"`
}

// value returns what holds the value of op, or nil if an op of its kind has none.
func (op *Op) value() any {
	switch {
	case op.Process == Nemesis:
		return &op.Fault
	case op.F == FSetup:
		return &op.Setup
	case op.F == FSample:
		return &op.Sample
	case op.F == FWindow:
		return &op.Window
	case op.F == FHolder:
		return &op.Holder
	}
	return nil
}

// encode returns op as one JSON object. It returns ErrValue for an op that a Reader would not take back.
func (op *Op) encode() ([]byte, error) {
	if err := op.validate(); err != nil {
		return nil, err
	}
	l := line{
		Process: json.RawMessage(op.Process), Type: op.Type.String(), F: op.F, Value: op.value(),
		Time: int64(op.Time),
		Node: op.Node, Run: op.Run, Session: op.Session, Via: op.Via, Reason: op.Reason,
		RetryMs: op.Retry.Milliseconds(),
	}
	if !isNumber(op.Process) {
		l.Process, _ = json.Marshal(op.Process) // A string has no error.
	}
	if op.F == FAllocate && op.Process != Nemesis {
		switch b := op.Block; op.Type {
		case Invoke:
			l.Value = call{Count: b.Count, After: int64(op.After)}
		case OK:
			l.Value = call{First: int64(b.First), Count: b.Count, Stride: b.Stride}
		}
	}
	text, err := json.Marshal(l)
	if err != nil { // a number that JSON does not have
		return nil, fmt.Errorf("%w: %w", ErrValue, err)
	}
	return text, nil
}

// decode sets op to the contents of text. It returns ErrSyntax or ErrValue; op is then of no use.
func decode(text []byte, op *Op) error {
	var value json.RawMessage
	l := line{Time: -1, Value: &value}
	if err := parse(text, &l); err != nil {
		return err
	}
	*op = Op{
		Time: clock.Mono(l.Time), Process: string(l.Process), Type: Type(len(typeNames)), F: l.F, Node: l.Node,
		Run: l.Run, Session: l.Session, Via: l.Via, Reason: l.Reason,
		Retry: time.Duration(l.RetryMs) * time.Millisecond,
	}
	if l.RetryMs > int64((1<<63-1)/time.Millisecond) {
		return fmt.Errorf("%w: retry_ms", ErrValue)
	}
	if !isNumber(op.Process) {
		op.Process = ""
		if len(l.Process) > 0 {
			if err := parse(l.Process, &op.Process); err != nil {
				return err
			}
		}
	}
	for t, name := range typeNames {
		if l.Type == name {
			op.Type = Type(t)
		}
	}
	if to := op.value(); to != nil && value != nil {
		if err := parse(value, to); err != nil {
			return err
		}
	} else if op.F == FAllocate && value != nil {
		var c call
		if err := parse(value, &c); err != nil {
			return err
		}
		op.Block, op.After = Block{flake.ID(c.First), c.Count, c.Stride}, flake.ID(c.After)
	}
	return op.validate()
}

// parse reads JSON.
func parse(text []byte, to any) error {
	err := json.Unmarshal(text, to)
	if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
		return fmt.Errorf("%w: %w", ErrSyntax, err)
	} else if err != nil {
		return fmt.Errorf("%w: %w", ErrValue, err)
	}
	return nil
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
