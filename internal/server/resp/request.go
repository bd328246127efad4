// Package resp is the Redis serialization protocol (RESP, versions 2 and 3): it reads
// requests and appends replies. It does no I/O and knows no command.
package resp

import (
	"bytes"
	"fmt"
)

// Limits of one request, in bytes except for maxArgs. A request above a limit ends the
// connection, as in Redis: nobody knows where the next request begins.
const (
	maxArgs   = 64
	maxBulk   = 4 << 10
	maxInline = 4 << 10
	maxNumber = 32 // the line with a length, and its end

	// MaxRequest is the maximum length of a whole request: one argument of maxBulk, and
	// the rest.
	MaxRequest = maxBulk + 4<<10
)

// ProtocolError is the text of the error reply before the connection ends.
type ProtocolError string

// Error returns the text after the code ERR.
func (e ProtocolError) Error() string { return "Protocol error: " + string(e) }

var errTooLong = ProtocolError(fmt.Sprintf("request above %d bytes", MaxRequest))

// Reader reads requests. The zero value is ready.
type Reader struct {
	// Args are the arguments of the request that Next has read, the command first. They
	// are valid until the buffer given to Next changes, and until the next call.
	Args [][]byte
}

// Next reads one request from the start of b into r.Args and returns its length; 0
// means that b has only a part of a request. A request without arguments gets no
// reply.
//
// A request is an array of bulk strings, or a line of words as people type them, in which
// quotes have no meaning: no command needs any. Next changes nothing in b.
// The error is a ProtocolError: b does not begin with a request, whatever follows.
//
// Source: the Redis serialization protocol specification, "Sending commands to a
// Redis server" and "Inline commands".
func (r *Reader) Next(b []byte) (int, error) {
	r.Args = r.Args[:0]
	if len(b) == 0 {
		return 0, nil
	}
	switch b[0] {
	case '*':
	case 0x16: // a handshake of TLS
		return 0, ProtocolError("this port has no TLS")
	default:
		return r.inline(b)
	}
	count, at, ok := number(b, 1)
	switch {
	case at < 0:
		return 0, ProtocolError("too big mbulk count string")
	case at == 0:
		return 0, nil
	case !ok || count > maxArgs:
		return 0, ProtocolError("invalid multibulk length")
	}
	for range count { // a negative count is an empty request, as in Redis
		if at == len(b) {
			return r.part(b)
		}
		if b[at] != '$' {
			return 0, ProtocolError(fmt.Sprintf("expected '$', got '%c'", printable(b[at])))
		}
		size, from, ok := number(b, at+1)
		switch {
		case from < 0:
			return 0, ProtocolError("too big bulk count string")
		case from == 0:
			return r.part(b)
		case !ok || size < 0 || size > maxBulk:
			return 0, ProtocolError("invalid bulk length")
		case from+size+2 > MaxRequest:
			return 0, errTooLong
		}
		end := from + size
		if end+2 > len(b) {
			return r.part(b)
		}
		if b[end] != '\r' || b[end+1] != '\n' {
			return 0, ProtocolError("expected the end of a line after a bulk string")
		}
		r.Args = append(r.Args, b[from:end:end])
		at = end + 2
	}
	return at, nil
}

// part returns 0, or an error if the request is too long.
func (r *Reader) part(b []byte) (int, error) {
	r.Args = r.Args[:0]
	if len(b) >= MaxRequest { // the buffer of a connection has no room for the rest
		return 0, errTooLong
	}
	return 0, nil
}

// number reads the decimal number from b[at] to the end of the line. next is the index
// of the next line: 0 if the line has no end yet, -1 if it is too long for a number. ok
// is false if the line is no number of at most 9 digits.
func number(b []byte, at int) (v, next int, ok bool) {
	line := b[at:]
	end := bytes.IndexByte(line[:min(len(line), maxNumber)], '\r')
	switch {
	case end < 0 && len(line) >= maxNumber:
		return 0, -1, false
	case end < 0 || end+1 == len(line):
		return 0, 0, false
	}
	next, ok = at+end+2, line[end+1] == '\n'
	digits := line[:end]
	negative := len(digits) > 0 && digits[0] == '-'
	if negative {
		digits = digits[1:]
	}
	if len(digits) == 0 || len(digits) > 9 || digits[0] == '0' && (len(digits) > 1 || negative) {
		return 0, next, false
	}
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, next, false
		}
		v = 10*v + int(d-'0')
	}
	if negative {
		v = -v
	}
	return v, next, ok
}

func printable(c byte) byte {
	if c < ' ' || c > '~' {
		return '?'
	}
	return c
}

// inline reads a line of words.
func (r *Reader) inline(b []byte) (int, error) {
	end := bytes.IndexByte(b[:min(len(b), maxInline)], '\n')
	if end < 0 {
		if len(b) >= maxInline {
			return 0, ProtocolError("too big inline request")
		}
		return 0, nil
	}
	for word := range bytes.FieldsFuncSeq(b[:end], space) { // a carriage return at its end is a space
		if len(r.Args) == maxArgs {
			return 0, ProtocolError("too many words in an inline request")
		}
		r.Args = append(r.Args, word)
	}
	return end + 1, nil
}

func space(c rune) bool { return c == ' ' || c >= '\t' && c <= '\r' || c == 0 }

// EqualFold reports whether word is upper, in any case. upper has no lower-case
// characters.
func EqualFold(word []byte, upper string) bool {
	if len(word) != len(upper) {
		return false
	}
	for i, c := range word {
		if c >= 'a' && c <= 'z' {
			c -= 'a' - 'A'
		}
		if c != upper[i] {
			return false
		}
	}
	return true
}
