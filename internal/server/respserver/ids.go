package respserver

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/resp"
)

// expired has a deadline in the past: with it the node does not wait.
var expired = func() context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	cancel()
	return ctx
}()

// bulkLen returns the maximum length of an ID in a reply, in bytes.
func bulkLen(as server.Form) int { return as.Len() + len("$26\r\n\r\n") }

// enqueue adds a request for one ID to the pending ones.
func (c *conn) enqueue(as server.Form) {
	if r := c.s.allow(c.caller, access.Issue); r != nil {
		c.settle()
		c.fail(server.RESPIDs, r)
		return
	}
	if c.pending > 0 && (c.pendingForm != as || c.pending >= c.s.maxBlock ||
		len(c.out)+(c.pending+1)*bulkLen(as) > maxOut) {
		c.settle()
	}
	c.pending, c.pendingForm = c.pending+1, as
}

// settle answers the pending requests: from one block, or if the block is refused, each
// by itself, since the node may have enough for the first ones.
func (c *conn) settle() {
	n, as := c.pending, c.pendingForm
	if n == 0 {
		return
	}
	c.pending = 0
	if !c.room(n * bulkLen(as)) {
		return
	}
	began := c.s.service.Begin()
	if n > 1 {
		if b, err := c.s.issuer.Try(c.s.issuer.Clock().Now(), n, 0); err == nil {
			c.appendIDs(b, as)
			c.quota.Valid()
			c.s.service.DoneAll(server.RESPIDs, n, nil, began)
			return
		}
	}
	for range n {
		if !c.room(max(bulkLen(as), resp.MaxError+2)) {
			return
		}
		b, err := c.block(1, 0)
		c.s.service.Done(server.RESPIDs, err, began)
		if server.Valid(err) {
			c.quota.Valid()
		}
		if err != nil {
			c.refuse(err)
			continue
		}
		c.appendIDs(b, as)
	}
}

// block returns a block of the node, which may wait for it. After a refusal no later
// request of the same pipeline waits: with a wait for each, a long pipeline would take
// minutes to be refused.
func (c *conn) block(count int, after flake.ID) (gen.Block, error) {
	ctx := c.ctx
	if c.refused {
		ctx = expired
	}
	b, err := c.s.issuer.Next(ctx, count, after)
	c.refused = c.refused || err != nil
	return b, err
}

// appendIDs appends each ID of a block as a reply. There must be room for them.
func (c *conn) appendIDs(b gen.Block, as server.Form) {
	id := b.First
	for range b.Count {
		c.appendID(id, as)
		id += flake.ID(b.Stride)
	}
}

// appendID appends an ID as a bulk string.
func (c *conn) appendID(id flake.ID, as server.Form) {
	space := c.s.limits.Format
	switch {
	case as == server.Flake:
		c.out = append(c.out, "$13\r\n"...)
		c.out = as.Append(c.out, id, space, 0)
	case as.Wide():
		if c.unused == 0 {
			_, _ = rand.Read(c.random[:]) // never fails: on an error it ends the process
			c.unused = len(c.random)
		}
		c.unused -= 8
		c.out = append(c.out, '$')
		c.out = strconv.AppendUint(c.out, uint64(as.Len()), 10)
		c.out = append(c.out, "\r\n"...)
		c.out = as.Append(c.out, id, space, binary.NativeEndian.Uint64(c.random[c.unused:]))
		clear(c.random[c.unused : c.unused+8])
	default: // decimal, of variable length
		var digits [24]byte
		c.out = resp.AppendBulk(c.out, as.Append(digits[:0], id, space, 0))
		return
	}
	c.out = append(c.out, "\r\n"...)
}

const nextUse = "ID.NEXT [COUNT n] [FORMAT flake|int|ulid|uuid] [AFTER id]"

// next answers ID.NEXT: with one ID, or with an array of IDs if COUNT is given.
func (c *conn) next(args [][]byte) {
	var count, as, after []byte
	for i := 1; i < len(args); i += 2 {
		var to *[]byte
		switch {
		case resp.EqualFold(args[i], "COUNT"):
			to = &count
		case resp.EqualFold(args[i], "FORMAT"):
			to = &as
		case resp.EqualFold(args[i], "AFTER"):
			to = &after
		default:
			c.malformed("unknown option %.40q: %s", args[i], nextUse)
			return
		}
		if *to != nil {
			c.malformed("%s is given twice: %s", args[i], nextUse)
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
		var bad *node.Refusal
		if o, bad = server.ParseOrder(server.Fields{Count: field(count), As: field(as), After: field(after)},
			c.s.limits); bad != nil {
			c.settle()
			c.fail(server.RESPIDs, c.s.issuer.Refused(bad))
			return
		}
	}
	if count == nil && o.After == 0 {
		c.enqueue(o.As)
		return
	}
	c.settle()
	c.issue(o, count != nil)
}

func (c *conn) malformed(format string, args ...any) {
	c.settle()
	c.fail(server.RESPIDs, c.s.malformed(format, args...))
}

// field is the field of a request with a value; nil: not given.
func field(b []byte) server.Field { return server.Field{Text: string(b), Given: b != nil} }

// order is server.ParseOrder for requests in their usual forms, without an allocation.
// If ok is false, ParseOrder has to decide.
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
		if o.Count < 1 || o.Count > s.limits.Count {
			return o, false
		}
	}
	if as != nil {
		if o.As, ok = server.ParseForm(string(as)); !ok || o.As.Wide() && !s.limits.Wide {
			return o, false
		}
	}
	if after != nil && (len(after) != flake.TextLen || describe.IsAmbiguous(after) ||
		o.After.UnmarshalText(after) != nil || s.limits.Format.Holds(o.After) != nil) {
		return o, false
	}
	return o, true
}

// issue answers a request that gets a block of its own.
//
// An answer that exceeds the buffer is written in parts. Nothing is issued for it until
// the earlier answers are written.
func (c *conn) issue(o server.Order, list bool) {
	if r := c.s.allow(c.caller, access.Issue); r != nil {
		c.fail(server.RESPIDs, r)
		return
	}
	if !c.room(min(max(o.Count*bulkLen(o.As)+16, resp.MaxError+2), maxOut)) {
		return
	}
	began := c.s.service.Begin()
	b, err := c.block(o.Count, o.After)
	c.s.service.Done(server.RESPIDs, err, began)
	if server.Valid(err) {
		c.quota.Valid()
	}
	if err != nil {
		c.refuse(err)
		return
	}
	if list {
		c.out = resp.AppendArray(c.out, b.Count)
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

// hget answers HGET id next and HGET id FORMAT: ID.NEXT for clients that can send only
// the commands of Redis.
func (c *conn) hget(args [][]byte) {
	if string(args[1]) != "id" {
		c.malformed("unknown key %.40q: HGET id next", args[1])
		return
	}
	if string(args[2]) == "next" {
		c.enqueue(server.Flake)
		return
	}
	o, ok := c.s.order(nil, args[2], nil)
	if !ok {
		_, bad := server.ParseOrder(server.Fields{As: field(args[2])}, c.s.limits)
		c.settle()
		c.fail(server.RESPIDs, c.s.issuer.Refused(bad))
		return
	}
	c.enqueue(o.As)
}

// decode answers ID.DECODE id [KIND kind] with the JSON of GET /v1/ids/{id}.
func (c *conn) decode(args [][]byte) {
	began, kind := c.s.service.Begin(), ""
	switch {
	case len(args) == 4 && resp.EqualFold(args[2], "KIND"):
		kind = string(args[3])
	case len(args) != 2:
		c.fail(server.RESPDecode, c.s.malformed("ID.DECODE id [KIND auto|flake|int|hex|ulid|uuid]"))
		return
	}
	d, err := c.s.describe(c.ctx, string(args[1]), kind)
	c.s.service.Done(server.RESPDecode, err, began)
	if err != nil {
		c.refuse(err)
		return
	}
	c.quota.Valid()
	c.appendJSON(d)
}

// status answers ID.STATUS with the member "self" of GET /v1/cluster.
func (c *conn) status([][]byte) {
	if c.elsewhere("ID.STATUS") {
		return
	}
	c.quota.Valid()
	c.appendJSON(c.s.reader.Self())
}

// watermark answers ID.WATERMARK with the JSON of GET /v1/watermark. It does not wait.
func (c *conn) watermark([][]byte) {
	if c.elsewhere("ID.WATERMARK") {
		return
	}
	a, err := c.s.service.Watermark(c.ctx, 0, 0, c.quota.Valid)
	if err != nil {
		c.refuse(err)
		return
	}
	c.appendJSON(a)
}

// elsewhere answers a command that an agent leaves to nodes, and reports whether it is one.
func (c *conn) elsewhere(command string) bool {
	err := c.s.service.Elsewhere(command)
	if err != nil {
		c.out = resp.AppendError(c.out, "ERR", err.Error())
	}
	return err != nil
}

func (c *conn) appendJSON(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("respserver: %T has no JSON form: %v", v, err))
	}
	c.out = resp.AppendBulk(c.out, b)
}
