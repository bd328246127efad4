package respserver

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"strconv"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/server"
)

// impatient has a deadline that has passed: a node asked with it does not wait.
var impatient = func() context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	cancel()
	return ctx
}()

// bulkLen returns the most bytes that an ID takes in a reply.
func bulkLen(as server.Form) int { return as.Len() + len("$26\r\n\r\n") }

// wait puts a request for one ID beside those that wait for an answer.
func (c *conn) wait(as server.Form) {
	if r := c.s.allow(c.caller, access.Issue); r != nil {
		c.settle()
		c.fail(server.RESPIDs, r)
		return
	}
	if c.waiting > 0 && (c.waitingAs != as || c.waiting >= c.s.maxBlock ||
		len(c.out)+(c.waiting+1)*bulkLen(as) > maxOut) {
		c.settle()
	}
	c.waiting, c.waitingAs = c.waiting+1, as
}

// settle answers the requests that wait: from one block, or where that is refused,
// each for itself, since what is refused to all of them may be given to the first.
// Then one refusal has to be waited for at most, and the rest hear theirs at once.
func (c *conn) settle() {
	n, as := c.waiting, c.waitingAs
	if n == 0 {
		return
	}
	c.waiting = 0
	if !c.room(n * bulkLen(as)) {
		return
	}
	began := c.s.api.Began()
	if n > 1 {
		if b, err := c.s.node.Try(c.s.node.Clock().Now(), n, 0); err == nil {
			c.appendIDs(b, as)
			c.s.api.Done(server.RESPIDs, n, nil, began)
			return
		}
	}
	ctx := c.ctx
	for range n {
		if !c.room(max(bulkLen(as), maxError+2)) {
			return
		}
		b, err := c.s.node.Next(ctx, 1, 0)
		c.s.api.Done(server.RESPIDs, 1, err, began)
		if err != nil {
			c.refuse(err)
			ctx = impatient
			continue
		}
		c.appendIDs(b, as)
	}
}

// appendIDs appends the IDs of a block, for which there must be room, each as a
// reply.
func (c *conn) appendIDs(b gen.Block, as server.Form) {
	id := b.First
	for range b.Count {
		c.appendID(id, as)
		id += flake.ID(b.Stride)
	}
}

// appendID appends an ID as a bulk string.
func (c *conn) appendID(id flake.ID, as server.Form) {
	epoch := c.s.texts.Format.Epoch
	switch {
	case as == 0:
		c.out = append(c.out, "$13\r\n"...)
		c.out = as.Append(c.out, id, epoch, 0)
	case as.Wide():
		if c.drawn == 0 {
			_, _ = rand.Read(c.random[:]) // never fails: it ends the process rather
			c.drawn = len(c.random)
		}
		c.drawn -= 8
		c.out = append(c.out, '$')
		c.out = strconv.AppendUint(c.out, uint64(as.Len()), 10)
		c.out = append(c.out, "\r\n"...)
		c.out = as.Append(c.out, id, epoch, binary.NativeEndian.Uint64(c.random[c.drawn:]))
		clear(c.random[c.drawn : c.drawn+8])
	default: // a number, of a length that is known once it is written
		var digits [24]byte
		c.out = appendBulk(c.out, as.Append(digits[:0], id, epoch, 0))
		return
	}
	c.out = append(c.out, "\r\n"...)
}

const nextUse = "ID.NEXT [COUNT n] [FORMAT flake|int|ulid|uuid] [AFTER id]"

// next answers ID.NEXT: with one ID, or with an array of them if a count is given.
func (c *conn) next(args [][]byte) {
	var count, as, after []byte
	for i := 1; i < len(args); i += 2 {
		var to *[]byte
		switch {
		case fold(args[i], "COUNT"):
			to = &count
		case fold(args[i], "FORMAT"):
			to = &as
		case fold(args[i], "AFTER"):
			to = &after
		default:
			c.malformed("there is no option %.40q: %s", args[i], nextUse)
			return
		}
		if *to != nil {
			c.malformed("%s is given twice", args[i])
			return
		}
		if i+1 == len(args) {
			c.malformed("%s has no value: %s", args[i], nextUse)
			return
		}
		*to = args[i+1]
	}
	o, ok := c.s.order(count, as, after)
	if !ok {
		var err error
		if o, err = c.s.api.ReadOrder(count, as, after); err != nil {
			c.settle()
			c.fail(server.RESPIDs, err)
			return
		}
	}
	if count == nil && o.After == 0 {
		c.wait(o.As)
		return
	}
	c.settle()
	c.issue(o, count != nil)
}

func (c *conn) malformed(format string, args ...any) {
	c.settle()
	c.fail(server.RESPIDs, c.s.api.Malformed(format, args...))
}

// order is Server.ReadOrder for requests in their usual forms, without an
// allocation. If ok is false, there is more to look at, or something is wrong.
func (s *Server) order(count, as, after []byte) (o server.Order, ok bool) {
	o.Count = 1
	if count != nil {
		if o.Count = 0; len(count) > 7 {
			return o, false
		}
		for _, d := range count {
			if d < '0' || d > '9' {
				return o, false
			}
			o.Count = 10*o.Count + int(d-'0')
		}
		if o.Count < 1 || o.Count > s.texts.MaxCount {
			return o, false
		}
	}
	if as != nil {
		if o.As, ok = server.ParseForm(string(as)); !ok || o.As.Wide() && !s.texts.Wide {
			return o, false
		}
	}
	if after != nil && (len(after) != flake.TextLen || o.After.UnmarshalText(after) != nil) {
		return o, false
	}
	return o, true
}

// issue answers a request that shares its block with nobody.
//
// An answer above the buffer is written in parts. Nothing is issued for it before
// all that came earlier is written.
func (c *conn) issue(o server.Order, list bool) {
	if r := c.s.allow(c.caller, access.Issue); r != nil {
		c.fail(server.RESPIDs, r)
		return
	}
	if !c.room(min(max(o.Count*bulkLen(o.As)+16, maxError+2), maxOut)) {
		return
	}
	began := c.s.api.Began()
	b, err := c.s.node.Next(c.ctx, o.Count, o.After)
	c.s.api.Done(server.RESPIDs, 1, err, began)
	if err != nil {
		c.refuse(err)
		return
	}
	if list {
		c.out = appendArray(c.out, b.Count)
	}
	id := b.First
	for range b.Count {
		if !c.room(bulkLen(o.As)) {
			return
		}
		c.appendID(id, o.As)
		id += flake.ID(b.Stride)
	}
}

// hget answers HGET id next and HGET id FORMAT: ID.NEXT for clients that send no
// command they do not know.
func (c *conn) hget(args [][]byte) {
	if string(args[1]) != "id" {
		c.malformed("there is no key %.40q: HGET id next", args[1])
		return
	}
	if string(args[2]) == "next" {
		c.wait(0)
		return
	}
	as, ok := server.ParseForm(string(args[2]))
	if !ok || as.Wide() && !c.s.texts.Wide {
		if _, err := c.s.api.ReadOrder(nil, args[2], nil); err != nil {
			c.settle()
			c.fail(server.RESPIDs, err)
			return
		}
	}
	c.wait(as)
}

// decode answers ID.DECODE id [KIND kind] with the JSON that HTTP has for it.
func (c *conn) decode(args [][]byte) {
	began, kind := c.s.api.Began(), ""
	switch {
	case len(args) == 4 && fold(args[2], "KIND"):
		kind = string(args[3])
	case len(args) != 2:
		c.fail(server.RESPDecode, c.s.api.Malformed("ID.DECODE id [KIND auto|flake|int|hex|ulid|uuid]"))
		return
	}
	b, err := c.s.api.DecodeJSON(c.ctx, string(args[1]), kind)
	c.s.api.Done(server.RESPDecode, 1, err, began)
	if err != nil {
		c.refuse(err)
		return
	}
	c.out = appendBulk(c.out, b)
}

// status answers ID.STATUS with what the node knows of itself, as JSON.
func (c *conn) status([][]byte) {
	b, err := c.s.api.SelfJSON()
	if err != nil {
		c.refuse(err)
		return
	}
	c.out = appendBulk(c.out, b)
}
