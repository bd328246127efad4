package maelstrom

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Message is one line of the protocol: an envelope, and a body of which the
// three reserved fields are known.
type Message struct {
	Src, Dest string
	Type      string
	MsgID     *int64 // nil: no answer is asked for
	InReplyTo *int64 // nil: not an answer
	Body      json.RawMessage
}

// ErrMessage says that a line is no message of the protocol.
var ErrMessage = errors.New("maelstrom: not a message")

// ParseMessage reads one line. Fields that it does not know are ignored.
//
// It returns ErrMessage. The message then has what could be read; if that
// includes Src and MsgID, its sender can be told.
//
// Source: Maelstrom, doc/protocol.md, "Messages" and "Message Bodies".
func ParseMessage(line []byte) (Message, error) {
	var m Message
	var envelope, body map[string]json.RawMessage
	if err := json.Unmarshal(line, &envelope); err != nil {
		return m, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	m.Body = envelope["body"]
	// All fields are looked at before the first error is returned, so that as much
	// as possible is there for a reply.
	errs := []error{
		field(envelope, "src", &m.Src, true),
		field(envelope, "dest", &m.Dest, true),
		field(envelope, "body", &body, true),
	}
	if body != nil {
		errs = append(errs,
			field(body, "msg_id", &m.MsgID, false),
			field(body, "in_reply_to", &m.InReplyTo, false),
			field(body, "type", &m.Type, true),
		)
	}
	for _, err := range errs {
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// field decodes the value under name, if there is one, and else leaves to alone.
func field[T any](object map[string]json.RawMessage, name string, to *T, required bool) error {
	raw, ok := object[name]
	if !ok || string(raw) == "null" {
		if required {
			return fmt.Errorf("%w: it has no %s", ErrMessage, name)
		}
		return nil
	}
	var v T // a failed Unmarshal may have begun to write
	if err := json.Unmarshal(raw, &v); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrMessage, name, err)
	}
	*to = v
	return nil
}

// Code is the number of an error of the protocol.
type Code int

// The codes that occur here. Source: Maelstrom, doc/protocol.md, "Errors".
const (
	Timeout                Code = 0
	NodeNotFound           Code = 1
	NotSupported           Code = 10
	TemporarilyUnavailable Code = 11
	MalformedRequest       Code = 12
	Crash                  Code = 13
	Abort                  Code = 14
	KeyDoesNotExist        Code = 20
	KeyAlreadyExists       Code = 21
	PreconditionFailed     Code = 22
	TxnConflict            Code = 30
)

// Definite reports whether an error with this code says that the request was
// not and never will be carried out. Codes nobody told us about are not definite.
func (c Code) Definite() bool {
	switch c {
	case NodeNotFound, NotSupported, TemporarilyUnavailable, MalformedRequest, Abort,
		KeyDoesNotExist, KeyAlreadyExists, PreconditionFailed, TxnConflict:
		return true
	}
	return false
}

// Error is an error of the protocol, as the body of an answer.
type Error struct {
	Code Code   `json:"code"`
	Text string `json:"text"`
	// Reason and RetryAfterMs are ours, and absent from answers of others: why a
	// request was refused, as everywhere in this program, and when to ask again.
	Reason       string `json:"reason,omitempty"`
	RetryAfterMs int64  `json:"retry_after_ms,omitempty"`
}

// Error returns code and text.
func (e *Error) Error() string {
	text := e.Text
	if len(text) > mostText { // lin-kv quotes whole values, and ours are long
		text = text[:mostText] + "…"
	}
	return fmt.Sprintf("maelstrom: error %d: %s", e.Code, text)
}

// mostText bounds what is shown of another's words, in bytes.
const mostText = 200

// parseError returns the error that an answer's body is, or nil.
func parseError(m Message) error {
	if m.Type != "error" {
		return nil
	}
	e := Error{Code: Crash} // a body without a code says nothing definite
	if err := json.Unmarshal(m.Body, &e); err != nil {
		return &Error{Code: Crash, Text: fmt.Sprintf("unreadable error: %v", err)}
	}
	return &e
}

// encode returns the line of a message from src to dest.
func encode(src, dest string, body any) ([]byte, error) {
	line, err := json.Marshal(struct {
		Src  string `json:"src"`
		Dest string `json:"dest"`
		Body any    `json:"body"`
	}{src, dest, body})
	if err != nil {
		return nil, err
	}
	return append(line, '\n'), nil
}
