package resp

import "strconv"

// MaxError is the maximum length of an error reply without its line end, in bytes.
const MaxError = 1 << 10

// AppendSimple appends a simple string.
func AppendSimple(b []byte, text string) []byte {
	b = append(b, '+')
	b = append(b, text...)
	return append(b, "\r\n"...)
}

// AppendError appends an error: a code in capitals, and a text. Control characters in
// the text, such as line ends in quoted input, become spaces.
func AppendError(b []byte, code, text string) []byte {
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
	if len(b)-from > MaxError {
		b = b[:from+MaxError]
	}
	return append(b, "\r\n"...)
}

// AppendInt appends an integer. No ID is ever one.
func AppendInt(b []byte, v int64) []byte {
	b = append(b, ':')
	b = strconv.AppendInt(b, v, 10)
	return append(b, "\r\n"...)
}

// AppendBulk appends a bulk string.
func AppendBulk[T string | []byte](b []byte, data T) []byte {
	b = append(b, '$')
	b = strconv.AppendUint(b, uint64(len(data)), 10)
	b = append(b, "\r\n"...)
	b = append(b, data...)
	return append(b, "\r\n"...)
}

// AppendArray begins an array of n elements.
func AppendArray(b []byte, n int) []byte {
	b = append(b, '*')
	b = strconv.AppendUint(b, uint64(n), 10)
	return append(b, "\r\n"...)
}

// AppendMap begins a map of n pairs; in version 2 of the protocol it is an array.
func AppendMap(b []byte, n, proto int) []byte {
	if proto < 3 {
		return AppendArray(b, 2*n)
	}
	b = append(b, '%')
	b = strconv.AppendUint(b, uint64(n), 10)
	return append(b, "\r\n"...)
}

// AppendNull appends the null of a version of the protocol.
func AppendNull(b []byte, proto int) []byte {
	if proto < 3 {
		return append(b, "$-1\r\n"...)
	}
	return append(b, "_\r\n"...)
}
