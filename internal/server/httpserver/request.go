package httpserver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/text"
)

// fault is a refusal of a request before the node is called. It is not counted yet.
type fault struct {
	refusal *node.Refusal
	status  int    // This HTTP status replaces that of the reason; 0: nothing does.
	help    string // It replaces that of the reason; "": nothing does.
}

// Error lets a fault be the error of a call.
func (f *fault) Error() string { return f.refusal.Error() }

// problem returns what is answered.
func (f *fault) problem() problem {
	p := problemOf(f.refusal)
	if f.status != 0 {
		p.Status, p.Title = f.status, http.StatusText(f.status)
	}
	p.Help = cmp.Or(f.help, p.Help)
	return p
}

func malformed(format string, args ...any) *fault {
	return &fault{refusal: server.Malformed(format, args...)}
}

// parseOrder reads the order from the query of a request or from its body; one of
// them must be empty.
//
// The fault is the first in this order: the form of the request, count, as, after.
func parseOrder(rawQuery, contentType string, body []byte, l server.Limits) (server.Order, *fault) {
	var f server.Fields
	var bad *fault
	switch {
	case len(body) == 0:
		f, bad = parseQuery(rawQuery)
	case rawQuery != "":
		bad = malformed("the request has a query and a body: send one of them")
	default:
		f, bad = parseBody(contentType, body, l.Format.Layout.Safe())
	}
	if bad != nil {
		return server.Order{}, bad
	}
	o, refusal := server.ParseOrder(f, l)
	if refusal != nil {
		return server.Order{}, &fault{refusal: refusal}
	}
	return o, nil
}

// setField sets a field by its name, at most once.
func setField(f *server.Fields, name, value string) *fault {
	var field *server.Field
	switch name {
	case "count":
		field = &f.Count
	case "as":
		field = &f.As
	case "after":
		field = &f.After
	default:
		return unknownField(name, "count", "as", "after")
	}
	if field.Given {
		return malformed("%s is given twice: send it once", name)
	}
	*field = server.Field{Text: value, Given: true}
	return nil
}

// unknownField is the fault of a field that is none of those.
func unknownField(name string, fields ...string) *fault {
	if meant := text.Nearest(name, fields); meant != "" {
		return malformed("unknown field %.40q: did you mean %s?", name, meant)
	}
	return malformed("unknown field %.40q: use %s", name, strings.Join(fields, ", "))
}

// parseQuery reads count=…&as=…&after=…
func parseQuery(raw string) (f server.Fields, bad *fault) {
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, err1 := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		if err1 != nil || err2 != nil || strings.Contains(pair, ";") {
			return server.Fields{}, malformed("the query %.60q is malformed", pair)
		}
		if bad := setField(&f, name, value); bad != nil {
			return server.Fields{}, bad
		}
	}
	return f, nil
}

// parseBody reads {"count": 1, "as": "…", "after": "…"}; null means not given. Names
// are case-sensitive and may occur once; package json checks neither. after may be a
// number where IDs are safe.
func parseBody(contentType string, body []byte, safe bool) (f server.Fields, bad *fault) {
	if t, _, err := mime.ParseMediaType(contentType); err != nil || t != "application/json" {
		bad := malformed("the body has Content-Type %.60q: send application/json, or a query", contentType)
		bad.status = http.StatusUnsupportedMediaType
		return server.Fields{}, bad
	}
	if !json.Valid(body) { // also rejects data after the object
		return server.Fields{}, malformed("the body is not one JSON object: send {\"count\": 1}")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return server.Fields{}, malformed("the body is not a JSON object: send {\"count\": 1}")
	}
	var given server.Fields // the names seen, with null values too
	for d.More() {
		key, _ := d.Token() // a string, since the body is valid JSON
		name := key.(string)
		if bad := setField(&given, name, name); bad != nil {
			return server.Fields{}, bad
		}
		value, _ := d.Token()
		if value == nil {
			continue
		}
		written, bad := fieldText(name, value, safe)
		if bad != nil {
			return server.Fields{}, bad
		}
		_ = setField(&f, name, written) // cannot fail after it did not fail for given
	}
	return f, nil
}

// fieldText returns the text of a value that has the type of its field.
func fieldText(name string, value json.Token, safe bool) (string, *fault) {
	number, isNumber := value.(json.Number)
	written, isText := value.(string)
	switch {
	case isNumber && (name == "count" || name == "after" && safe):
		return number.String(), nil
	case isNumber && name == "after":
		return "", &fault{refusal: server.BadID("after is a number: send IDs as strings, since many JSON readers "+
			"lose digits above 2^53", "bad_type")}
	case isText && name == "count":
		return "", &fault{refusal: &node.Refusal{
			Reason:   node.InvalidCount,
			Message:  "count is a string: send a JSON number",
			Metadata: map[string]string{"count": fmt.Sprintf("%.40q", written)},
		}}
	case isText:
		return written, nil
	}
	reasons := map[string]node.Reason{"count": node.InvalidCount, "as": node.InvalidFormat, "after": node.InvalidID}
	return "", &fault{refusal: &node.Refusal{Reason: reasons[name], Message: name + " has the wrong JSON type: send " +
		map[string]string{"count": "a number", "as": "a string", "after": "a string"}[name]}}
}

// wantsText reports whether an Accept header prefers text/plain to JSON. With equal
// preference, or with neither in the header, the answer is JSON.
func wantsText(accept string) bool {
	switch accept { // the values of nearly all requests, without parsing
	case "", "*/*", "application/json":
		return false
	case "text/plain":
		return true
	}
	plain, plainExact := quality(accept, "text", "plain")
	js, jsExact := quality(accept, "application", "json")
	return plain > 0 && (plain > js || plain == js && plainExact && !jsExact)
}

// quality returns how much an Accept header wants a media type, 0 to 1, by the
// most specific range that covers it, and whether that names it in full.
//
// Source: RFC 9110, section 12.5.1.
func quality(accept, major, minor string) (q float64, exact bool) {
	best := 0
	for part := range strings.SplitSeq(accept, ",") {
		t, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		level := 0
		switch t {
		case major + "/" + minor:
			level = 3
		case major + "/*":
			level = 2
		case "*/*":
			level = 1
		}
		if level <= best {
			continue
		}
		best, q = level, 1
		if v, ok := params["q"]; ok {
			if q, err = strconv.ParseFloat(v, 64); err != nil || q < 0 || q > 1 {
				q = 0
			}
		}
	}
	return q, best == 3
}
