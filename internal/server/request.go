package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/node"
)

// form is a text form that HTTP writes IDs in.
type form uint8

const (
	asFlake form = iota
	asInt
	asULID
	asUUID
	numForms
)

var formNames = [numForms]string{"flake", "int", "ulid", "uuid"}

// wide reports whether the form has 128 bits.
func (f form) wide() bool { return f == asULID || f == asUUID }

func parseForm(s string) (form, bool) {
	for i, name := range formNames {
		if s == name {
			return form(i), true
		}
	}
	return 0, false
}

// order is a request for IDs.
type order struct {
	count int
	as    form
	after flake.ID // 0: none
}

// fields are an order's fields as they were written.
type fields struct {
	count, as, after field
}

type field struct {
	text  string
	given bool
}

// fault is what is wrong with an HTTP request before a node is asked.
type fault struct {
	status  int // 0: the reason's own
	reason  node.Reason
	message string
	class   string // of a malformed ID
	limit   int    // of a bad count; 0: none
	count   string // as written, of a bad count
}

func malformed(format string, args ...any) *fault {
	return &fault{reason: node.InvalidFormat, message: fmt.Sprintf(format, args...)}
}

// limits are what an order is checked against.
type limits struct {
	count  int  // largest
	wide   bool // IDs have wide forms
	format flake.Format
}

// parseOrder reads an order from the query of a request or from its body; one
// of them must be empty. Everything left out has its default: one ID, as a
// flake, after none.
//
// The first fault in this order is returned: the shape of the request, count,
// as, after.
func parseOrder(rawQuery, contentType string, body []byte, l limits) (order, *fault) {
	var f fields
	var bad *fault
	switch {
	case len(body) == 0:
		f, bad = parseQuery(rawQuery)
	case rawQuery != "":
		bad = malformed("the request has a query and a body: give one of them")
	default:
		f, bad = parseBody(contentType, body)
	}
	if bad != nil {
		return order{}, bad
	}
	return f.order(l)
}

// set gives a field its value, once.
func (f *fields) set(name, value string) *fault {
	var at *field
	switch name {
	case "count":
		at = &f.count
	case "as":
		at = &f.as
	case "after":
		at = &f.after
	default:
		return malformed("there is no field %.40q: use count, as, after", name)
	}
	if at.given {
		return malformed("%s is given twice", name)
	}
	*at = field{text: value, given: true}
	return nil
}

// parseQuery reads count=…&as=…&after=…
func parseQuery(raw string) (f fields, bad *fault) {
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
			return fields{}, malformed("the query %.60q is malformed", pair)
		}
		if bad := f.set(name, value); bad != nil {
			return fields{}, bad
		}
	}
	return f, nil
}

// parseBody reads {"count": 1, "as": "…", "after": "…"}; null is as good as not
// given. Names count in their own case alone and only once, which package json
// would both let pass.
func parseBody(contentType string, body []byte) (f fields, bad *fault) {
	if t, _, err := mime.ParseMediaType(contentType); err != nil || t != "application/json" {
		return fields{}, &fault{
			status: http.StatusUnsupportedMediaType, reason: node.InvalidFormat,
			message: fmt.Sprintf("the body has Content-Type %.60q: send application/json, or a query", contentType),
		}
	}
	if !json.Valid(body) { // also finds anything behind the object
		return fields{}, malformed("the body is not one JSON object")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fields{}, malformed("the body is not a JSON object")
	}
	var given fields // what was named, null or not
	for d.More() {
		name, err := token[string](d)
		if err != nil {
			return fields{}, malformed("the body is not a JSON object")
		}
		if bad := given.set(name, name); bad != nil {
			return fields{}, bad
		}
		value, err := d.Token()
		if err != nil {
			return fields{}, malformed("the body is not a JSON object")
		}
		if value == nil {
			continue
		}
		text, bad := typed(name, value)
		if bad != nil {
			return fields{}, bad
		}
		_ = f.set(name, text) // cannot fail where given.set did not
	}
	return f, nil
}

func token[T any](d *json.Decoder) (T, error) {
	t, err := d.Token()
	v, ok := t.(T)
	if err == nil && !ok {
		err = errors.New("server: token of another type")
	}
	return v, err
}

// typed returns the text of a value that has its field's type.
func typed(name string, value json.Token) (string, *fault) {
	switch v := value.(type) {
	case json.Number:
		switch name {
		case "count":
			return v.String(), nil
		case "after":
			return "", &fault{
				reason: node.InvalidID, class: "bad_type",
				message: "after is a number: send IDs as strings, since numbers lose digits above 2^53",
			}
		}
	case string:
		switch name {
		case "as", "after":
			return v, nil
		case "count":
			return "", &fault{reason: node.InvalidCount, count: fmt.Sprintf("%.40q", v), message: "count is a string: send a JSON number"}
		}
	}
	reasons := map[string]node.Reason{"count": node.InvalidCount, "as": node.InvalidFormat, "after": node.InvalidID}
	return "", &fault{reason: reasons[name], message: name + " has the wrong JSON type"}
}

// order checks the fields one by one.
func (f fields) order(l limits) (order, *fault) {
	o := order{count: 1, as: asFlake}
	if f.count.given {
		n, ok := parseCount(f.count.text)
		if !ok || n < 1 || n > l.count {
			return order{}, &fault{
				reason: node.InvalidCount, limit: l.count, count: fmt.Sprintf("%.40s", f.count.text),
				message: fmt.Sprintf("count is %.40q: ask for 1 to %d", f.count.text, l.count),
			}
		}
		o.count = n
	}
	if f.as.given {
		as, ok := parseForm(f.as.text)
		if !ok {
			return order{}, malformed("as is %.40q: use flake, int, ulid or uuid", f.as.text)
		}
		o.as = as
	}
	if o.as.wide() && !l.wide {
		return order{}, malformed("as is %s: the epoch of this space has no 128-bit forms", formNames[o.as])
	}
	if f.after.given {
		id, err := parseAfter(f.after.text, l.format)
		if err != nil {
			return order{}, &fault{reason: node.InvalidID, message: "after: " + err.Error(), class: describe.Class(err)}
		}
		o.after = id
	}
	return o, nil
}

// parseAfter reads an ID in any form and returns its flake.
func parseAfter(s string, f flake.Format) (flake.ID, error) {
	id, err := describe.Parse(s, describe.Auto, f)
	if err != nil {
		return 0, err
	}
	return id.AsFlake(f.Epoch)
}

// parseCount reads decimal digits, perhaps behind a minus sign. strconv would
// take a plus sign as well.
func parseCount(s string) (int, bool) {
	if strings.HasPrefix(s, "+") {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// metadata returns the figures behind a fault, for a program.
func (f *fault) metadata() map[string]string {
	m := make(map[string]string, 2)
	if f.class != "" {
		m["class"] = f.class
	}
	if f.count != "" {
		m["count"] = f.count
	}
	if f.limit > 0 {
		m["limit"] = strconv.Itoa(f.limit)
	}
	if len(m) == 0 {
		return nil
	}
	return m
}

// wantsText reports whether an Accept header prefers text/plain to JSON. JSON
// is the answer to a draw, and to a header that names neither.
func wantsText(accept string) bool {
	switch accept { // what nearly all send, without a look at quality
	case "", "*/*", "application/json":
		return false
	case "text/plain":
		return true
	}
	text, textExact := quality(accept, "text", "plain")
	js, jsExact := quality(accept, "application", "json")
	return text > 0 && (text > js || text == js && textExact && !jsExact)
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
