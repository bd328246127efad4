package history

import (
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// scanner reads the JSON of one line without allocating: histories of millions
// of lines are read more often than written. It is as strict as encoding/json,
// which a fuzz test holds it against, and the first error stays.
type scanner struct {
	in  []byte
	pos int
	err error
}

// deepest bounds how far values of unknown fields may be nested.
const deepest = 32

func (s *scanner) fail(what string) {
	if s.err == nil {
		s.err = fmt.Errorf("%w: %s at byte %d", ErrSyntax, what, s.pos+1)
	}
	s.pos = len(s.in) // nothing more is read
}

// space skips blanks and returns the byte after them, 0 at the end.
func (s *scanner) space() byte {
	for ; s.pos < len(s.in); s.pos++ {
		switch c := s.in[s.pos]; c {
		case ' ', '\t', '\r', '\n':
		default:
			return c
		}
	}
	return 0
}

func (s *scanner) expect(c byte) bool {
	if s.space() != c {
		s.fail("no " + string(rune(c)))
		return false
	}
	s.pos++
	return true
}

// object calls field with each name, positioned at the value, which it must
// read. The name is good until the next one.
func (s *scanner) object(field func(name []byte)) {
	if !s.expect('{') {
		return
	}
	if s.space() == '}' {
		s.pos++
		return
	}
	for s.err == nil {
		name := s.text()
		if !s.expect(':') {
			return
		}
		s.space()
		field(name)
		switch s.space() {
		case ',':
			s.pos++
		case '}':
			s.pos++
			return
		default:
			s.fail("no comma")
		}
	}
}

// text reads a string and returns what it stands for; it is part of the line
// where it has no escapes.
func (s *scanner) text() []byte {
	if !s.expect('"') {
		return nil
	}
	start, plain := s.pos, true
	for s.pos < len(s.in) {
		switch c := s.in[s.pos]; {
		case c == '"':
			raw := s.in[start:s.pos]
			s.pos++
			if plain {
				return raw
			}
			var out string
			if err := json.Unmarshal(s.in[start-1:s.pos], &out); err != nil {
				s.fail("bad string")
				return nil
			}
			return []byte(out)
		case c == '\\':
			plain = false
			s.pos++ // whatever it escapes is no end
		case c < ' ':
			s.fail("control character in a string")
			return nil
		case c >= utf8.RuneSelf:
			plain = false // may be no UTF-8
		}
		s.pos++
	}
	s.fail("string without an end")
	return nil
}

// integer reads a whole number, or a string of its digits.
func (s *scanner) integer() int64 {
	if s.space() == '"' {
		at := s.pos
		v, ok := parseInt(s.text())
		if !ok && s.err == nil {
			s.pos = at
			s.value("integer")
		}
		return v
	}
	at := s.pos
	s.number()
	if s.err != nil {
		return 0
	}
	v, ok := parseInt(s.in[at:s.pos])
	if !ok {
		s.pos = at
		s.value("integer")
	}
	return v
}

// value notes that a value is well-formed and impossible.
func (s *scanner) value(what string) {
	if s.err == nil {
		s.err = fmt.Errorf("%w: %s at byte %d", ErrValue, what, s.pos+1)
	}
	s.pos = len(s.in)
}

// parseInt reads an optional minus and 1 to 19 digits.
func parseInt(b []byte) (int64, bool) {
	negative := len(b) > 0 && b[0] == '-'
	if negative {
		b = b[1:]
	}
	if len(b) == 0 || len(b) > 19 {
		return 0, false
	}
	var v uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		v = v*10 + uint64(c-'0')
	}
	if v > 1<<63-1 {
		return 0, false
	}
	if negative {
		return -int64(v), true
	}
	return int64(v), true
}

// raw skips a value of any kind and returns its text.
func (s *scanner) raw() []byte {
	s.space()
	start := s.pos
	s.skip(0)
	if s.err != nil {
		return nil
	}
	return s.in[start:s.pos]
}

func (s *scanner) skip(depth int) {
	if depth > deepest {
		s.fail("nested too deeply")
		return
	}
	switch c := s.space(); {
	case c == '{':
		s.object(func([]byte) { s.skip(depth + 1) })
	case c == '[':
		s.pos++
		if s.space() == ']' {
			s.pos++
			return
		}
		for s.err == nil {
			s.skip(depth + 1)
			switch s.space() {
			case ',':
				s.pos++
			case ']':
				s.pos++
				return
			default:
				s.fail("no comma")
			}
		}
	case c == '"':
		s.text()
	case c == 't':
		s.word("true")
	case c == 'f':
		s.word("false")
	case c == 'n':
		s.word("null")
	default:
		s.number()
	}
}

func (s *scanner) word(w string) {
	if len(s.in)-s.pos < len(w) || string(s.in[s.pos:s.pos+len(w)]) != w {
		s.fail("unknown word")
		return
	}
	s.pos += len(w)
}

// number skips a number: minus, digits without leading zeros, fraction, exponent.
func (s *scanner) number() {
	if s.at('-') {
		s.pos++
	}
	switch {
	case s.at('0'):
		s.pos++
	case !s.digits():
		s.fail("no value")
		return
	}
	if s.at('.') {
		s.pos++
		if !s.digits() {
			s.fail("no digits")
			return
		}
	}
	if s.at('e') || s.at('E') {
		s.pos++
		if s.at('+') || s.at('-') {
			s.pos++
		}
		if !s.digits() {
			s.fail("no digits")
		}
	}
}

func (s *scanner) at(c byte) bool { return s.pos < len(s.in) && s.in[s.pos] == c }

func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.in) && s.in[s.pos] >= '0' && s.in[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > start
}
