package respserver

import (
	"bytes"
	"fmt"
)

// Limits of one request, in bytes but for maxArgs. Whatever exceeds them ends the
// connection, as it does at Redis: there is no telling where the next request
// begins.
const (
	maxArgs    = 64
	maxBulk    = 64 << 10
	maxInline  = 4 << 10
	maxRequest = maxBulk + 4<<10 // all of it: an option or two may be as long as allowed
	maxNumber  = 32              // the line with a length, and its end
)

// protocolError is what a client is told before its connection ends.
type protocolError string

// Error returns the text behind the code ERR.
func (e protocolError) Error() string { return "Protocol error: " + string(e) }

var errTooLong = protocolError(fmt.Sprintf("request above %d bytes", maxRequest))

// reader reads requests. The zero value is ready.
type reader struct {
	args [][]byte // of the request last read; parts of the buffer given to next
}

// next reads one request from the front of b and returns how many bytes it has;
// 0 says that b holds a part of it. Its words are then in r.args, the command
// first; none at all is a request that wants no answer. They are good until b
// changes.
//
// A request is an array of bulk strings, or a line of words as people type them,
// which is unquoted within b. The error is a protocolError: b holds no request,
// nor ever will.
//
// Source: the Redis serialization protocol specification, "Sending commands to a
// Redis server" and "Inline commands".
func (r *reader) next(b []byte) (int, error) {
	r.args = r.args[:0]
	if len(b) == 0 {
		return 0, nil
	}
	if b[0] != '*' {
		return r.inline(b)
	}
	count, at, ok := number(b, 1)
	switch {
	case at < 0:
		return 0, protocolError("too big mbulk count string")
	case at == 0:
		return 0, nil
	case !ok || count > maxArgs:
		return 0, protocolError("invalid multibulk length")
	}
	for range count { // negative counts ask for nothing, as at Redis
		if at == len(b) {
			return r.part(b)
		}
		if b[at] != '$' {
			return 0, protocolError(fmt.Sprintf("expected '$', got '%c'", printable(b[at])))
		}
		size, from, ok := number(b, at+1)
		switch {
		case from < 0:
			return 0, protocolError("too big bulk count string")
		case from == 0:
			return r.part(b)
		case !ok || size < 0 || size > maxBulk:
			return 0, protocolError("invalid bulk length")
		case from+size+2 > maxRequest:
			return 0, errTooLong
		}
		end := from + size
		if end+2 > len(b) {
			return r.part(b)
		}
		if b[end] != '\r' || b[end+1] != '\n' {
			return 0, protocolError("expected the end of a line after a bulk string")
		}
		r.args = append(r.args, b[from:end:end])
		at = end + 2
	}
	return at, nil
}

// part says that there is more to come, if it may.
func (r *reader) part(b []byte) (int, error) {
	r.args = r.args[:0]
	if len(b) >= maxRequest { // no buffer will ever hold the rest
		return 0, errTooLong
	}
	return 0, nil
}

// number reads the decimal number from b[at] to the end of the line, and returns it
// with where the next line begins: 0 if the line has no end yet, -1 if it is too
// long to be a number's. ok says that it is a number, of no more than 9 digits.
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
func (r *reader) inline(b []byte) (int, error) {
	end := bytes.IndexByte(b[:min(len(b), maxInline)], '\n')
	if end < 0 {
		if len(b) >= maxInline {
			return 0, protocolError("too big inline request")
		}
		return 0, nil
	}
	line := b[:end]
	if end > 0 && line[end-1] == '\r' {
		line = line[:end-1]
	}
	for at := 0; ; {
		for at < len(line) && space(line[at]) {
			at++
		}
		if at == len(line) {
			return end + 1, nil
		}
		if len(r.args) == maxArgs {
			return 0, protocolError("too many words in an inline request")
		}
		word, next, ok := unquote(line, at)
		if !ok {
			return 0, protocolError("unbalanced quotes in request")
		}
		r.args = append(r.args, word)
		at = next
	}
}

func space(c byte) bool { return c == ' ' || c >= '\t' && c <= '\r' || c == 0 }

// unquote reads the word that begins at line[at] and writes it, without quotes and
// escapes, to the same place, where it is never longer. next is where it ended. A
// closing quote must be followed by a space.
func unquote(line []byte, at int) (word []byte, next int, ok bool) {
	to, from := at, at
	for from < len(line) && !space(line[from]) {
		quote := line[from]
		if quote != '"' && quote != '\'' {
			line[to] = quote
			to, from = to+1, from+1
			continue
		}
		from++
		for {
			if from == len(line) {
				return nil, 0, false
			}
			c := line[from]
			from++
			if c == quote {
				break
			}
			if c == '\\' && from < len(line) {
				c, from = escaped(line, from, quote)
			}
			line[to] = c
			to++
		}
		if from < len(line) && !space(line[from]) {
			return nil, 0, false
		}
	}
	return line[at:to:to], from, true
}

// escaped returns the byte that a backslash before line[from] stands for, and where
// to go on.
func escaped(line []byte, from int, quote byte) (byte, int) {
	c := line[from]
	if quote == '\'' {
		if c == '\'' {
			return c, from + 1
		}
		return '\\', from
	}
	switch c {
	case 'n':
		c = '\n'
	case 'r':
		c = '\r'
	case 't':
		c = '\t'
	case 'b':
		c = '\b'
	case 'a':
		c = '\a'
	case 'x':
		if from+2 < len(line) {
			hi, ok1 := hexDigit(line[from+1])
			lo, ok2 := hexDigit(line[from+2])
			if ok1 && ok2 {
				return hi<<4 | lo, from + 3
			}
		}
	}
	return c, from + 1
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// fold reports whether word is upper, which has no lower case letters, in any case.
func fold(word []byte, upper string) bool {
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
