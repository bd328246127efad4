package respserver

import (
	"slices"
	"strconv"

	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/resp"
)

// errorCode returns the first word of a refusal, which Redis clients act on: TRYAGAIN
// if the same request can succeed later or on another node, else ERR; NOAUTH and NOPERM
// as in Redis.
func errorCode(r *node.Refusal) string {
	switch server.WireOf(r.Reason).Status() {
	case 401:
		return "NOAUTH"
	case 403:
		return "NOPERM"
	case 429, 503:
		return "TRYAGAIN"
	default:
		if r.RetryAfter > 0 {
			return "TRYAGAIN"
		}
		return "ERR"
	}
}

// appendRefusal appends a refusal as
//
//	-CODE REASON message (key=value key=value retry_after_ms=12)
//
// with the metadata in the order of its keys and the delay last. Without any there are
// no parentheses. Values have no spaces and no parentheses: those are percent-encoded.
func appendRefusal(b []byte, code string, r *node.Refusal) []byte {
	text := make([]byte, 0, 256)
	text = append(text, r.Reason.String()...)
	text = append(text, ' ')
	text = append(text, r.Message...)
	if n := resp.MaxError / 2; len(text) > n { // the metadata is for programs, and must fit
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
	return resp.AppendError(b, code, string(text))
}

// appendValue appends a value of the metadata.
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
