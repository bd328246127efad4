package respserver

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/access"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/gen"
	"github.com/flakelease/allocator/internal/node"
	"github.com/flakelease/allocator/internal/server"
	"github.com/flakelease/allocator/internal/server/resp"
	"github.com/flakelease/allocator/internal/status"
)

// expired has a deadline in the past: with it the node does not wait.
var expired = func() context.Context {
	ctx, cancel := context.WithDeadline(context.Background(), time.Unix(0, 0))
	cancel()
	return ctx
}()

// bulkLen returns the maximum length of an ID in a reply, in bytes.
func bulkLen(as server.Form) int { return as.Len() + len("$26\r\n\r\n") }

// enqueue adds a request for one ID to the pending ones. It returns false if it has not.
func (c *conn) enqueue(as server.Form) bool {
	if c.pending > 0 && (c.pendingForm != as || c.pending >= c.s.maxBlock ||
		len(c.out)+(c.pending+1)*bulkLen(as) > maxOut) {
		if !c.settle() {
			return false
		}
	}
	if r := c.s.allow(c.caller, access.Issue); r != nil {
		c.late = r
		c.finish()
		return true
	}
	c.pending, c.pendingForm = c.pending+1, as
	return true
}

// refuseLate answers with the refusal of the request after the pending ones.
func (c *conn) refuseLate() bool {
	if c.late == nil {
		return true
	}
	if !c.room(resp.MaxError + 2) {
		return false
	}
	c.fail(server.RESPIDs, c.late)
	c.late = nil
	return true
}

// settle answers the pending requests: from one block, or if the block is refused, each
// by itself, since the node may have enough for the first ones. It reports whether all
// are answered.
func (c *conn) settle() bool {
	n, as := c.pending, c.pendingForm
	if n == 0 {
		c.single = false
		return true
	}
	if !c.single {
		if !c.room(n * bulkLen(as)) {
			return false
		}
		c.began = c.s.service.Begin()
		if n > 1 {
			if b, err := c.s.issuer.Try(c.s.issuer.Clock().Now(), n, 0); err == nil {
				c.appendIDs(b, as)
				c.quota.Valid()
				c.s.service.DoneAll(server.RESPIDs, n, nil, c.began)
				c.pending = 0
				return true
			}
		}
		c.single = true
	}
	for c.pending > 0 {
		if !c.room(max(bulkLen(as), resp.MaxError+2)) {
			return false
		}
		b, waits, err := c.block(1, 0)
		if waits {
			return c.waitFor(1, 0, c.settleOne)
		}
		c.settleOne(b, err)
	}
	c.single = false
	return true
}

// settleOne answers the first pending request.
func (c *conn) settleOne(b gen.Block, err error) {
	c.pending--
	if c.answered(err, c.began) {
		c.appendIDs(b, c.pendingForm)
	}
}

// block returns a block of the node, unless the node waits for it. After a refusal no later
// request of the same pipeline waits: with a wait for each, a long pipeline would take
// minutes to be refused.
func (c *conn) block(count int, after flake.ID) (b gen.Block, waits bool, err error) {
	if c.refused {
		b, err = c.s.issuer.Next(expired, count, after)
	} else {
		b, waits, err = c.s.issuer.NextNow(count, after)
	}
	c.refused = c.refused || err != nil
	return b, waits, err
}

// waitFor makes a job of a block for which the node waits, and returns false.
func (c *conn) waitFor(count int, after flake.ID, answer func(gen.Block, error)) bool {
	var b gen.Block
	var err error
	c.job = job{
		run: func(ctx context.Context) { b, err = c.s.issuer.Next(ctx, count, after) },
		done: func() {
			c.refused = c.refused || err != nil
			answer(b, err)
		},
	}
	return c.wants(needJob)
}

// answered counts a request for IDs that ended with err, and reports whether it was served.
// A refusal is the answer.
func (c *conn) answered(err error, began clock.Mono) bool {
	c.s.service.Done(server.RESPIDs, err, began)
	if server.Valid(err) {
		c.quota.Valid()
	}
	if err != nil {
		c.refuse(err)
	}
	return err == nil
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
		k := c.kit
		if k.unused == 0 {
			_, _ = rand.Read(k.random[:]) // never fails: on an error it ends the process
			k.unused = len(k.random)
		}
		k.unused -= 8
		c.out = append(c.out, '$')
		c.out = strconv.AppendUint(c.out, uint64(as.Len()), 10)
		c.out = append(c.out, "\r\n"...)
		c.out = as.Append(c.out, id, space, binary.NativeEndian.Uint64(k.random[k.unused:]))
		clear(k.random[k.unused : k.unused+8])
	default: // decimal, of variable length
		var digits [24]byte
		c.out = resp.AppendBulk(c.out, as.Append(digits[:0], id, space, 0))
		return
	}
	c.out = append(c.out, "\r\n"...)
}

const nextUse = "ID.NEXT [COUNT n] [FORMAT flake|int|ulid|uuid] [AFTER id]"

// next answers ID.NEXT: with one ID, or with an array of IDs if COUNT is given.
func (c *conn) next(args [][]byte) bool {
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
			return c.malformed("unknown option %.40q: %s", args[i], nextUse)
		}
		if *to != nil {
			return c.malformed("%s is given twice: %s", args[i], nextUse)
		}
		if i+1 == len(args) {
			return c.malformed("%s has no value: %s", args[i], nextUse)
		}
		*to = args[i+1]
	}
	o, bad := server.ParseOrder(server.Fields{Count: field(count), As: field(as), After: field(after)}, c.s.limits)
	if bad != nil {
		return c.refuseOrder(bad, "FORMAT is")
	}
	if count == nil && o.After == 0 {
		return c.enqueue(o.As)
	}
	return c.settle() && c.issue(o, count != nil)
}

// refuseOrder answers a request for IDs that is wrong. It returns false if it has not. The words are what
// the request has for "as is".
func (c *conn) refuseOrder(r *node.Refusal, words string) bool {
	if !c.ready() {
		return false
	}
	if form, ok := strings.CutPrefix(r.Message, "as is"); ok {
		r.Message = words + form
	}
	c.fail(server.RESPIDs, c.s.issuer.Refused(r))
	return true
}

func (c *conn) malformed(format string, args ...any) bool {
	return c.refuseOrder(server.Malformed(format, args...), "")
}

// field is the field of a request with a value; nil: not given. Its text is b itself, since a copy would be an
// allocation for each request, and neither an order nor a refusal keeps it.
func field(b []byte) server.Field {
	return server.Field{Text: unsafe.String(unsafe.SliceData(b), len(b)), Given: b != nil}
}

// issue answers a request that gets a block of its own. It returns false if it has not.
//
// An answer that exceeds the buffer is written in parts. Nothing is issued for it until
// the earlier answers are written.
func (c *conn) issue(o server.Order, list bool) bool {
	if !c.room(min(max(o.Count*bulkLen(o.As)+16, resp.MaxError+2), maxOut)) {
		return false
	}
	if r := c.s.allow(c.caller, access.Issue); r != nil {
		c.fail(server.RESPIDs, r)
		return true
	}
	began := c.s.service.Begin()
	b, waits, err := c.block(o.Count, o.After)
	if waits {
		c.waitFor(o.Count, o.After, func(b gen.Block, err error) { c.issued(o, list, began, b, err) })
		return true
	}
	c.issued(o, list, began, b, err)
	return true
}

// issued answers a request for a block.
func (c *conn) issued(o server.Order, list bool, began clock.Mono, b gen.Block, err error) {
	if !c.answered(err, began) {
		return
	}
	if list {
		c.out = resp.AppendArray(c.out, b.Count)
	}
	c.rest, c.restForm = b, o.As
	c.appendRest()
}

// appendRest appends the IDs that an answer lacks, and reports whether all had room.
func (c *conn) appendRest() bool {
	for ; c.rest.Count > 0; c.rest.Count-- {
		if !c.room(bulkLen(c.restForm)) {
			return false
		}
		c.appendID(c.rest.First, c.restForm)
		c.rest.First += flake.ID(c.rest.Stride)
	}
	return true
}

// hget answers HGET id next and HGET id FORMAT: ID.NEXT for clients that can send only
// the commands of Redis.
func (c *conn) hget(args [][]byte) bool {
	if string(args[1]) != "id" {
		return c.malformed("unknown key %.40q: HGET id next", args[1])
	}
	if string(args[2]) == "next" {
		return c.enqueue(server.Flake)
	}
	o, bad := server.ParseOrder(server.Fields{As: field(args[2])}, c.s.limits)
	if bad != nil {
		return c.refuseOrder(bad, "the field is")
	}
	return c.enqueue(o.As)
}

// decode answers ID.DECODE id [KIND kind] with the JSON of GET /v1/ids/{id}.
func (c *conn) decode(args [][]byte) {
	began, kind := c.s.service.Begin(), ""
	switch {
	case len(args) == 4 && resp.EqualFold(args[2], "KIND"):
		kind = string(args[3])
	case len(args) != 2:
		c.fail(server.RESPDecode,
			c.s.issuer.Refused(server.Malformed("ID.DECODE id [KIND auto|flake|int|hex|ulid|uuid]")))
		return
	}
	var d status.Decoded
	var err error
	id := string(args[1])
	c.job = job{
		run: func(ctx context.Context) { d, err = c.s.describe(ctx, id, kind) },
		done: func() {
			c.s.service.Done(server.RESPDecode, err, began)
			if err != nil {
				c.refuse(err)
				return
			}
			c.quota.Valid()
			c.appendJSON(d)
		},
	}
	c.need = needJob
}

// status answers ID.STATUS with the member "self" of GET /v1/cluster.
func (c *conn) status([][]byte) {
	if c.elsewhere("ID.STATUS") {
		return
	}
	c.quota.Valid()
	c.appendJSON(c.s.cfg.Reader.Self())
}

// watermark answers ID.WATERMARK with the JSON of GET /v1/watermark. It does not wait.
func (c *conn) watermark([][]byte) {
	if c.elsewhere("ID.WATERMARK") {
		return
	}
	a, err := c.s.service.Watermark(c.s.ctx, "", 0, 0, c.quota.Valid)
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
