package respserver

import (
	"slices"
	"strconv"

	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
)

// maxError bounds the line of an error, in bytes.
const maxError = 1 << 10

func appendSimple(b []byte, text string) []byte {
	b = append(b, '+')
	b = append(b, text...)
	return append(b, "\r\n"...)
}

// appendError appends an error: a code in capitals, and what it is about. There are
// no line ends in what a client is told of its own input.
func appendError(b []byte, code, text string) []byte {
	from := len(b)
	b = append(b, '-')
	b = append(b, code...)
	b = append(b, ' ')
	b = append(b, text...)
	for i, c := range b[from:] {
		if c < ' ' || c == 0x7f {
			b[from+i] = ' '
		}
	}
	if len(b)-from > maxError {
		b = b[:from+maxError]
	}
	return append(b, "\r\n"...)
}

// appendInt appends an integer. No ID is ever one.
func appendInt(b []byte, v int64) []byte {
	b = append(b, ':')
	b = strconv.AppendInt(b, v, 10)
	return append(b, "\r\n"...)
}

func appendBulk[T string | []byte](b []byte, data T) []byte {
	b = append(b, '$')
	b = strconv.AppendUint(b, uint64(len(data)), 10)
	b = append(b, "\r\n"...)
	b = append(b, data...)
	return append(b, "\r\n"...)
}

func appendArray(b []byte, n int) []byte {
	b = append(b, '*')
	b = strconv.AppendUint(b, uint64(n), 10)
	return append(b, "\r\n"...)
}

// appendMap begins a map of n pairs, which version 2 has as an array.
func appendMap(b []byte, n, proto int) []byte {
	if proto < 3 {
		return appendArray(b, 2*n)
	}
	b = append(b, '%')
	b = strconv.AppendUint(b, uint64(n), 10)
	return append(b, "\r\n"...)
}

func appendNull(b []byte, proto int) []byte {
	if proto < 3 {
		return append(b, "$-1\r\n"...)
	}
	return append(b, "_\r\n"...)
}

// appendRefusal appends a refusal as
//
//	-CODE REASON message (key=value key=value retry_after_ms=12)
//
// with the figures in the order of their names and the pause last. The brackets
// are missing where there is nothing to put into them. Values have no spaces and
// no brackets: what a caller sent is percent-encoded.
func appendRefusal(b []byte, code string, r *node.Refusal) []byte {
	text := make([]byte, 0, 256)
	text = append(text, r.Reason...)
	text = append(text, ' ')
	text = append(text, r.Message...)
	if n := maxError / 2; len(text) > n { // the figures are for programs, and must fit
		text = text[:n]
	}
	keys := make([]string, 0, len(r.Metadata))
	for k := range r.Metadata {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	between := byte('(')
	pair := func(key, value string) {
		if between == '(' {
			text = append(text, ' ')
		}
		text = append(text, between)
		between = ' '
		text = append(text, key...)
		text = append(text, '=')
		text = appendValue(text, value)
	}
	for _, k := range keys {
		pair(k, r.Metadata[k])
	}
	if r.RetryAfter > 0 {
		pair("retry_after_ms", strconv.FormatInt(server.MillisUp(r.RetryAfter), 10))
	}
	if between == ' ' {
		text = append(text, ')')
	}
	return appendError(b, code, string(text))
}

// appendValue appends the value of a figure.
func appendValue(b []byte, value string) []byte {
	for i := range len(value) {
		c := value[i]
		if c <= ' ' || c > '~' || c == '(' || c == ')' || c == '%' || c == '=' {
			b = append(b, '%', "0123456789ABCDEF"[c>>4], "0123456789ABCDEF"[c&15])
			continue
		}
		b = append(b, c)
	}
	return b
}
