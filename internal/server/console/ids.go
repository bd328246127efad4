package console

import (
	"cmp"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/describe"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/quota"
)

// idsData is what the page of IDs shows.
type idsData struct {
	Text  string // as it was sent
	One   *oneID // nil: none was sent, or Error says what is wrong with it.
	Error string
	Curl  string
	CLI   string
}

// oneID is an ID with its parts. All numbers are texts, so no digit is lost.
type oneID struct {
	Kind   string
	Time   string
	SID    string
	Forms  []form
	Bits   []field
	Holder string
	Hint   string // what else it may be
}

// Title is the heading of the page of one ID.
func (o oneID) Title() string {
	if o.Time == noTime {
		return o.Kind + " without a time"
	}
	return fmt.Sprintf("%s of %s, sid %s", o.Kind, o.Time, o.SID)
}

type form struct{ Name, Text string }

// field is a run of bits with one meaning.
type field struct{ Name, Bits, Value string }

// serveIDs takes apart the ID that was pasted.
func (c *Console) serveIDs(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		c.fail(w, r, http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the form exceeds %d bytes: allocator audit reads lists of IDs", maxForm))
		return
	}
	d := idsData{Text: r.Form.Get("id")}
	if text := strings.Trim(d.Text, " \t\r\n\",'"); text != "" {
		id, err := describe.Parse(text, describe.Auto, c.cfg.Format)
		if err != nil {
			d.Error = err.Error()
			c.show(w, r, http.StatusOK, "ids", d)
			return
		}
		httpserver.Pay(r, quota.CostScrape)
		one := take(id, c.cfg.Format)
		one.Holder = c.holder(r, text)
		d.One = &one
		d.Curl = fmt.Sprintf("curl http://%s/v1/ids/%s", cmp.Or(c.cfg.API, "HOST:PORT"), text)
		d.CLI = fmt.Sprintf("allocator parse %s --addr %s", text, cmp.Or(c.cfg.GRPC, "HOST:PORT"))
	}
	c.show(w, r, http.StatusOK, "ids", d)
}

// take returns the parts of an ID.
func take(id describe.ID, f flake.Format) oneID {
	if w := id.Wide; id.IsWide() {
		one := oneID{Kind: string(id.Kind), Time: timeOf(w.UnixMilli()), SID: "–",
			Forms: []form{{"ULID", w.String()}, {"UUID", w.UUID()}, {"128-bit integer", w.Uint128()}, {"hex", w.Hex()}}}
		if low, err := w.Flake(f); err == nil {
			one.Forms = append(one.Forms, form{"flake", low.String()}, form{"flake, integer", fmt.Sprint(low.Int64())})
			one.SID = cmp.Or(sidOf(low, f), one.SID)
		}
		bits := binary(w.Hex())
		version, _ := strconv.ParseUint(bits[48:52], 2, 4)
		first := field{"time", bits[:48], fmt.Sprint(w.UnixMilli(), " ms")}
		if id.Kind == describe.UUID && !w.IsV7() { // The first bits of other versions are no time.
			one.Time, first = noTime, field{"random", bits[:48], ""}
		}
		one.Bits = []field{first,
			{"version", bits[48:52], fmt.Sprint(version)}, {"random", bits[52:64], ""}, {"variant", bits[64:66], ""},
			{"random", bits[66:], ""}}
		return one
	}
	k := id.Flake
	bytes := string(k.AppendHex16(nil))
	one := oneID{Kind: string(id.Kind), Time: timeOf(f.UnixMilli(k)), SID: cmp.Or(sidOf(k, f), "–"),
		Forms: []form{{"flake", k.String()}, {"integer", fmt.Sprint(k.Int64())}, {"hex", k.Hex()}, {"bytes", bytes}}}
	one.Bits = fields(binary(bytes), k, f)
	if ms := f.UnixMilli(k) - f.Epoch; ms < (24 * time.Hour).Milliseconds() {
		one.Hint = fmt.Sprintf("%d ms after the epoch: is it a number of a sequence?", ms)
	}
	return one
}

// fields cuts the 64 bits of a flake into those of its layout.
func fields(bits string, k flake.ID, f flake.Format) []field {
	type part struct {
		name, value string
		size        int
	}
	sequence, l := "entropy", f.Layout
	if !l.Random() {
		sequence = "sequence"
	}
	parts := []part{{"sid", sidOf(k, f), l.SIDBits()}, {sequence, fmt.Sprint(f.Entropy(k)), l.SequenceBits()}}
	if l.SIDFirst() {
		slices.Reverse(parts)
	}
	var out []field
	end := len(bits)
	for _, p := range parts {
		if p.size > 0 {
			out = append([]field{{p.name, bits[end-p.size : end], p.value}}, out...)
			end -= p.size
		}
	}
	return append([]field{{"sign", bits[:1], ""},
		{"time", bits[1:end], fmt.Sprint(f.UnixMilli(k)-f.Epoch, " ms since the epoch")}}, out...)
}

// sidOf returns the sid of a flake; "" if the layout has none.
func sidOf(k flake.ID, f flake.Format) string {
	if f.Layout.SIDBits() == 0 {
		return ""
	}
	return fmt.Sprint(f.SID(k))
}

const noTime = "none: this is no UUIDv7"

func timeOf(unixMs int64) string {
	if s := describe.Time(unixMs); s != nil {
		return *s
	}
	return "outside the years 0 to 9999"
}

func binary(hex string) string {
	n, _ := new(big.Int).SetString(hex, 16)
	return fmt.Sprintf("%0*b", 4*len(hex), n)
}

// holder returns who held the sid of an ID, from the ledger.
func (c *Console) holder(r *http.Request, id string) string {
	if c.cfg.Describe == nil {
		return noNode
	}
	d, err := c.cfg.Describe(r.Context(), id, "")
	if err != nil {
		return ""
	}
	switch {
	case d.Problem != "":
		return d.Problem
	case !d.HasFlake:
		return "not of this space"
	case d.Holder == nil:
		return "the ledger has no entry"
	}
	return fmt.Sprintf("node %s, term %d, instance %s", lease.Printable(d.Holder.Node), d.Holder.Term,
		lease.Printable(string(d.Holder.Instance)))
}
