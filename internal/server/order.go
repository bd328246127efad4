package server

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/node"
)

// Order is a valid request for IDs.
type Order struct {
	Count int
	As    Form
	After flake.ID // 0: none
}

// Fields are the fields of a request for IDs as the client wrote them.
type Fields struct {
	Count, As, After Field
}

// Field is the text of one field. The zero value is a field that was not given.
type Field struct {
	Text  string
	Given bool
}

// Limits are what the fields of a request are checked against.
type Limits struct {
	Count  int  // maximum
	Wide   bool // every ID of the space has the wide forms
	JSON   bool // the answer can be JSON, which has numbers
	Format flake.Format
}

// ParseOrder checks the fields of a request. A field that was not given has its
// default: one ID, as a flake, after none.
//
// The refusal is that of the first wrong field, in the order count, as, after:
// INVALID_COUNT, INVALID_FORMAT or INVALID_ID. It is not counted yet.
func ParseOrder(f Fields, l Limits) (Order, *node.Refusal) {
	o := Order{Count: 1, As: Flake}
	if f.Count.Given {
		n, ok := parseCount(f.Count.Text)
		if !ok || n < 1 || n > l.Count {
			return Order{}, badCount(fmt.Sprintf("%.40s", f.Count.Text), l)
		}
		o.Count = n
	}
	if f.As.Given {
		as, ok := ParseForm(f.As.Text)
		switch number := f.As.Text == Number.String() && l.JSON; {
		case number && !l.Format.Layout.Safe():
			return Order{}, Malformed("as is number: IDs of layout %v have up to %d bits, and JavaScript's numbers "+
				"53; use int, which is a string", l.Format.Layout, l.Format.Layout.TimeBits()+l.Format.Layout.LowBits())
		case number:
			as = Number
		case !ok:
			return Order{}, Malformed("as is %.40q: use flake, int, ulid or uuid", f.As.Text)
		}
		o.As = as
	}
	if bad := l.lacks(o.As); bad != nil {
		return Order{}, bad
	}
	if f.After.Given {
		id, err := parseAfter(f.After.Text, l.Format)
		if err != nil {
			return Order{}, BadID("after: "+err.Error(), describe.Class(err))
		}
		o.After = id
	}
	return o, nil
}

// NewOrder checks a count and the number of a form of gRPC as ParseOrder checks their texts.
func NewOrder(count, form int32, l Limits) (Order, *node.Refusal) {
	o := Order{Count: int(count), As: Form(form - 1)}
	switch {
	case count < 1 || o.Count > l.Count:
		return Order{}, badCount(strconv.Itoa(o.Count), l)
	case form < 1 || form > int32(Number):
		return Order{}, Malformed("form is %d: use FORM_FLAKE, FORM_INT, FORM_ULID or FORM_UUID", form)
	}
	return o, l.lacks(o.As)
}

// lacks refuses a wide form in a space without such forms.
func (l Limits) lacks(as Form) *node.Refusal {
	if !as.Wide() || l.Wide {
		return nil
	}
	return Malformed("as is %s: this space has no 128-bit forms, because of its epoch; use flake or int", as)
}

// parseAfter returns the flake of an ID in any form.
func parseAfter(s string, f flake.Format) (flake.ID, error) {
	if len(s) == flake.TextLen && !describe.IsAmbiguous(s) { // Nearly always: it takes a quarter less time so.
		if id, err := flake.Parse(s); err == nil {
			return id, f.Holds(id)
		}
	}
	id, err := describe.Parse(s, describe.Auto, f)
	if err != nil {
		return 0, err
	}
	return id.AsFlake(f)
}

// parseCount reads decimal digits, with an optional minus sign. strconv would
// accept a plus sign as well.
func parseCount(s string) (int, bool) {
	if strings.HasPrefix(s, "+") {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil
}

// Malformed returns the refusal INVALID_FORMAT, not counted yet.
func Malformed(format string, args ...any) *node.Refusal {
	return &node.Refusal{Reason: node.InvalidFormat, Message: fmt.Sprintf(format, args...)}
}

// badCount returns the refusal INVALID_COUNT for a count as it was written, not
// counted yet.
func badCount(count string, l Limits) *node.Refusal {
	return &node.Refusal{
		Reason: node.InvalidCount,
		Message: fmt.Sprintf("count is %q: ask for 1 to %d%s", count, l.Count,
			node.WhyLimit(l.Format.Layout, l.Count)),
		Metadata: map[string]string{"count": count, "limit": strconv.Itoa(l.Count)},
	}
}

// BadID returns the refusal INVALID_ID with the class of the error, not counted
// yet. Package describe has the classes; "": none.
func BadID(message, class string) *node.Refusal {
	r := &node.Refusal{Reason: node.InvalidID, Message: message}
	if class != "" {
		r.Metadata = map[string]string{"class": class}
	}
	return r
}
