package console

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
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
	Text    string // as it was sent
	Count   int
	Wrong   []wrong // Wrong lists the first 20; Wrongs counts all.
	Wrongs  int
	One     *oneID // It is nil unless one ID was sent and is valid.
	Many    []oneID
	Cut     bool // Many has the first 200
	Doubles []double
	Falls   int // IDs that are not above the one before
	Curl    string
	CLI     string
}

type wrong struct {
	Line  int
	Text  string
	Error string
}

// double is an ID that comes more than once.
type double struct {
	Text  string
	Lines []int
}

// oneID is an ID with its parts. All numbers are texts, so no digit is lost.
type oneID struct {
	Line   int
	Text   string
	Kind   string
	Time   string
	SID    string
	Forms  []form
	Bits   []field
	Holder string
	Hint   string // what else it may be
	flake  flake.ID
	wide   string // 32 hex digits
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

const (
	maxShown  = 200 // IDs of a list
	maxErrors = 20
)

// serveIDs takes apart what was pasted: one ID, or a list with one on each line.
func (c *Console) serveIDs(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	if err := r.ParseForm(); err != nil {
		c.fail(w, r, http.StatusRequestEntityTooLarge,
			fmt.Sprintf("the list exceeds %d bytes: use allocator audit", maxForm))
		return
	}
	d := idsData{Text: cmp.Or(r.Form.Get("ids"), r.Form.Get("id"))}
	d.read(d.Text, c.cfg.Format)
	if d.One != nil {
		httpserver.Pay(r, quota.CostScrape)
		d.One.Holder = c.holder(r, d.One.Text)
		d.Curl = fmt.Sprintf("curl http://%s/v1/ids/%s", cmp.Or(c.cfg.API, "HOST:PORT"), d.One.Text)
		d.CLI = fmt.Sprintf("allocator parse %s --addr %s", d.One.Text, cmp.Or(c.cfg.GRPC, "HOST:PORT"))
	} else if d.Count > 1 {
		d.CLI = "allocator audit --order file ids.txt"
	}
	c.show(w, r, http.StatusOK, "ids", d)
}

// read fills in d from a text of IDs.
func (d *idsData) read(text string, f flake.Format) {
	seen := map[string]int{} // index of doubles, or −line
	var before string
	line := 0
	for raw := range strings.SplitSeq(text, "\n") {
		line++
		raw = strings.Trim(raw, " \t\r\",'")
		if raw == "" {
			continue
		}
		d.Count++
		id, err := describe.Parse(raw, describe.Auto, f)
		if err != nil {
			if d.Wrongs++; len(d.Wrong) < maxErrors {
				d.Wrong = append(d.Wrong, wrong{line, raw[:min(len(raw), 60)], err.Error()})
			}
			continue
		}
		one := take(id, f)
		one.Line, one.Text = line, raw
		key := one.wide
		if key == "" {
			key = fmt.Sprintf("%016x", uint64(one.flake))
		}
		switch at := seen[key]; {
		case at == 0:
			seen[key] = -line
		case at < 0:
			d.Doubles = append(d.Doubles, double{raw, []int{-at, line}})
			seen[key] = len(d.Doubles)
		default:
			d.Doubles[at-1].Lines = append(d.Doubles[at-1].Lines, line)
		}
		if before != "" && len(key) == len(before) && key <= before {
			d.Falls++
		}
		before = key
		if len(d.Many) < maxShown {
			d.Many = append(d.Many, one)
		} else {
			d.Cut = true
		}
	}
	if d.Count == 1 && len(d.Many) == 1 {
		d.One = &d.Many[0]
	}
}

// take returns the parts of an ID.
func take(id describe.ID, f flake.Format) oneID {
	p := describe.Describe(id, f)
	if w := p.Wide; w != nil {
		one := oneID{Kind: string(w.Kind), Time: timeOfWide(id, w), wide: w.BytesHex, SID: "–",
			Forms: []form{{"ULID", w.ULID}, {"UUID", w.UUID}, {"128-bit integer", w.U128}, {"hex", w.BytesHex}}}
		if w.Flake != nil {
			one.Forms = append(one.Forms, form{"flake", w.Flake.Base32}, form{"flake, integer", w.Flake.Int})
			if w.Flake.SID != nil {
				one.SID = fmt.Sprint(*w.Flake.SID)
			}
		}
		bits := binary(w.BytesHex)
		first := field{"time", bits[:48], fmt.Sprint(w.UnixMs, " ms")}
		if one.Time == noTime {
			first = field{"random", bits[:48], ""}
		}
		one.Bits = []field{first,
			{"version", bits[48:52], hexOf(bits[48:52])}, {"random", bits[52:64], ""}, {"variant", bits[64:66], ""},
			{"random", bits[66:], ""}}
		return one
	}
	k := p.Flake
	one := oneID{Kind: string(k.Kind), Time: timeOf(k.Time), flake: id.Flake, SID: "–",
		Forms: []form{{"flake", k.Base32}, {"integer", k.Int}, {"hex", k.Hex}, {"bytes", k.BytesHex}}}
	if k.SID != nil {
		one.SID = fmt.Sprint(*k.SID)
	}
	one.Bits = fields(binary(k.BytesHex), k, f.Layout)
	if k.TimestampMs < (24 * time.Hour).Milliseconds() {
		one.Hint = fmt.Sprintf("%d ms after the epoch: is it a number of a sequence?", k.TimestampMs)
	}
	return one
}

// fields cuts the 64 bits of a flake into those of its layout.
func fields(bits string, k *describe.FlakeParts, l flake.Layout) []field {
	type part struct {
		name, value string
		size        int
	}
	sequence := "entropy"
	if !l.Random() {
		sequence = "sequence"
	}
	parts := []part{{"sid", sidOf(k.SID), l.SIDBits()}, {sequence, fmt.Sprint(k.Randomness), l.SequenceBits()}}
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
		{"time", bits[1:end], fmt.Sprint(k.TimestampMs, " ms since the epoch")}}, out...)
}

func sidOf(sid *int) string {
	if sid == nil {
		return ""
	}
	return fmt.Sprint(*sid)
}

const noTime = "none: this is no UUIDv7"

// timeOfWide is timeOf, but for UUIDs of versions that have no time in their first bits.
func timeOfWide(id describe.ID, w *describe.WideParts) string {
	if id.Kind == describe.UUID && !id.Wide.IsV7() {
		return noTime
	}
	return timeOf(w.Time)
}

func timeOf(s *string) string {
	if s == nil {
		return "outside the years 0 to 9999"
	}
	return *s
}

func binary(hex string) string {
	var b strings.Builder
	for _, c := range hex {
		fmt.Fprintf(&b, "%04b", strings.IndexRune("0123456789abcdef", c|0x20)&15)
	}
	return b.String()
}

func hexOf(bits string) string {
	n := 0
	for _, c := range bits {
		n = n*2 + int(c-'0')
	}
	return fmt.Sprint(n)
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
