package bench

import (
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/bwmarrin/snowflake"
	"github.com/google/uuid"
	oklog "github.com/oklog/ulid/v2"
	"github.com/rs/xid"
	"github.com/segmentio/ksuid"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// A Case is one operation of one library.
type Case struct {
	Group   string // cases of a group are compared
	Library string
	Run     func(n int) // does it n times

	// Do does it once, on the same input, for tests: it returns the text written
	// or the ID read, as text.
	Do func() string

	// Minimum is the minimum duration of one measurement: libraries that wait for
	// the next unit of time when one is used up would otherwise be measured only
	// between two waits.
	Minimum time.Duration
}

// Ours is the Library of this project's cases.
const Ours = "this"

// Groups in the order in which tables show them.
var Groups = []string{
	"encode 64 bits into a buffer", "encode 128 bits into a buffer", "encode a UUID into a buffer",
	"parse 64 bits strictly", "parse 128 bits strictly", "parse a UUID",
	"parse a decimal integer", "make a 64-bit ID", "make a 128-bit ID", "make the next of a series",
	"issue one ID, in process", "issue 1,000 IDs into a slice, in process",
	"issue at the cap of layout js53",
}

// A Goal bounds the time of one of our cases of a group by a peer's in the same
// group.
type Goal struct {
	Group string
	Case  string  // ours; "" for the first
	Peer  string  // "" for a number
	Max   float64 // ours divided by theirs, or nanoseconds
}

// Floor is the minimum that one ID can cost.
const Floor = "a clock read and a compare-and-swap (floor)"

// Goals are the goals of the project.
var Goals = []Goal{
	{"encode 64 bits into a buffer", "", "rs/xid", 1.0 / 4},
	{"encode 128 bits into a buffer", "", "oklog/ulid", 1.0 / 3},
	{"parse 64 bits strictly", "", "bwmarrin/snowflake", 0.6},
	{"parse 128 bits strictly", "", "oklog/ulid", 0.6},
	{"parse a decimal integer", "", "strconv", 1},
	{"issue one ID, in process", "", Floor, 1.3},
	{"issue one ID, in process", "", "rs/xid", 1 / 1.4},
	{"issue one ID, in process", ourTwitter, Ours + ", sustained", 1.15},
	{"issue one ID, in process", ourTwitter, "bwmarrin/snowflake", 1.0 / 3},
	{"issue 1,000 IDs into a slice, in process", "", "", 1500},
	{"issue at the cap of layout js53", "", "", 1e6 / 128 / 0.97}, // 128 IDs a millisecond
}

// ourTwitter is our case in the layout of bwmarrin/snowflake.
const ourTwitter = Ours + ", layout twitter"

// few is the number of different inputs of each case: enough that the branch
// predictor does not learn them, and few enough for the L1 cache.
const few = 64

// inputs holds the same values in each library's type and text.
var inputs = struct {
	flake     [few]flake.ID
	id        [few]ulid.ID
	oklog     [few]oklog.ULID
	uuid      [few]uuid.UUID
	xid       [few]xid.ID
	ksuid     [few]ksuid.KSUID
	flakeText [few]string
	intText   [few]string
	idText    [few]string
	uuidText  [few]string
	snowText  [few][]byte
	xidText   [few]string
	ksuidText [few]string
}{}

func init() {
	r := rand.New(rand.NewPCG(1, 2))
	in := &inputs
	for i := range few {
		in.flake[i] = flake.ID(r.Int64())
		var b [16]byte
		for j := range b {
			b[j] = byte(r.Uint32())
		}
		in.id[i] = ulid.FromArray(b)
		in.oklog[i] = b
		in.uuid[i] = b
		copy(in.xid[i][:], b[:])
		copy(in.ksuid[i][:], b[:])
		in.flakeText[i] = in.flake[i].String()
		in.intText[i] = string(in.flake[i].AppendInt(nil))
		in.idText[i] = in.id[i].String()
		in.uuidText[i] = in.id[i].UUID()
		in.snowText[i] = []byte(snowflake.ID(in.flake[i]).Base32())
		in.xidText[i] = in.xid[i].String()
		in.ksuidText[i] = in.ksuid[i].String()
	}
}

// Cases returns all cases, group by group, ours first.
func Cases() []Case {
	buf := make([]byte, 64)
	in := &inputs
	return append([]Case{
		{Groups[0], Ours, func(n int) {
			sum := 0
			for i := range n {
				b, _ := in.flake[i%few].AppendText(buf[:0])
				sum += len(b)
			}
			sink = sum
		}, func() string { b, _ := in.flake[0].AppendText(nil); return string(b) }, 0},
		{Groups[0], "rs/xid", func(n int) {
			sum := 0
			for i := range n {
				b := in.xid[i%few].Encode(buf[:20])
				sum += len(b)
			}
			sink = sum
		}, func() string { return string(in.xid[0].Encode(make([]byte, 20))) }, 0},
		{Groups[0], "rs/xid, String", func(n int) { // allocates
			for i := range n {
				sinkText = in.xid[i%few].String()
			}
		}, func() string { return in.xid[0].String() }, 0},
		{Groups[0], "bwmarrin/snowflake", func(n int) { // has no form without an allocation
			for i := range n {
				sinkText = snowflake.ID(in.flake[i%few]).Base32()
			}
		}, func() string { return snowflake.ID(in.flake[0]).Base32() }, 0},

		{Groups[1], Ours, func(n int) {
			sum := 0
			for i := range n {
				b, _ := in.id[i%few].AppendText(buf[:0])
				sum += len(b)
			}
			sink = sum
		}, func() string { b, _ := in.id[0].AppendText(nil); return string(b) }, 0},
		{Groups[1], "oklog/ulid", func(n int) {
			sum := 0
			for i := range n {
				if in.oklog[i%few].MarshalTextTo(buf[:oklog.EncodedSize]) == nil {
					sum++
				}
			}
			sink = sum
		}, func() string { b, _ := in.oklog[0].MarshalText(); return string(b) }, 0},
		{Groups[1], "segmentio/ksuid", func(n int) { // 160 bits
			for i := range n {
				sinkBytes = in.ksuid[i%few].Append(buf[:0])
			}
		}, func() string { return string(in.ksuid[0].Append(nil)) }, 0},

		{Groups[2], Ours, func(n int) {
			for i := range n {
				sinkBytes = in.id[i%few].AppendUUID(buf[:0])
			}
		}, func() string { return string(in.id[0].AppendUUID(nil)) }, 0},
		{Groups[2], "google/uuid", func(n int) { // has no form without an allocation
			for i := range n {
				sinkBytes, sinkErr = in.uuid[i%few].MarshalText()
			}
		}, func() string { b, _ := in.uuid[0].MarshalText(); return string(b) }, 0},

		{Groups[3], Ours, func(n int) {
			sum := flake.ID(0)
			for i := range n {
				id, _ := flake.Parse(in.flakeText[i%few])
				sum += id
			}
			sink = int(sum)
		}, func() string { id, _ := flake.Parse(in.flakeText[0]); return id.String() }, 0},
		{Groups[3], "bwmarrin/snowflake", func(n int) { // checks neither length nor overflow
			sum := snowflake.ID(0)
			for i := range n {
				id, _ := snowflake.ParseBase32(in.snowText[i%few])
				sum += id
			}
			sink = int(sum)
		}, func() string { id, _ := snowflake.ParseBase32(in.snowText[0]); return id.Base32() }, 0},
		{Groups[3], "rs/xid", func(n int) { // 96 bits
			for i := range n {
				sinkXID, sinkErr = xid.FromString(in.xidText[i%few])
			}
		}, func() string { id, _ := xid.FromString(in.xidText[0]); return id.String() }, 0},

		{Groups[4], Ours, func(n int) {
			sum := 0
			for i := range n {
				id, _ := ulid.Parse(in.idText[i%few])
				if id == in.id[i%few] {
					sum++
				}
			}
			sink = sum
		}, func() string { id, _ := ulid.Parse(in.idText[0]); return id.String() }, 0},
		{Groups[4], "oklog/ulid", func(n int) {
			sum := 0
			for i := range n {
				id, _ := oklog.ParseStrict(in.idText[i%few])
				if id == in.oklog[i%few] {
					sum++
				}
			}
			sink = sum
		}, func() string { id, _ := oklog.ParseStrict(in.idText[0]); return id.String() }, 0},
		{Groups[4], "segmentio/ksuid", func(n int) { // 160 bits
			for i := range n {
				sinkKSUID, sinkErr = ksuid.Parse(in.ksuidText[i%few])
			}
		}, func() string { id, _ := ksuid.Parse(in.ksuidText[0]); return id.String() }, 0},

		{Groups[5], Ours, func(n int) {
			for i := range n {
				sinkID, sinkErr = ulid.ParseUUID(in.uuidText[i%few])
			}
		}, func() string { id, _ := ulid.ParseUUID(in.uuidText[0]); return id.UUID() }, 0},
		{Groups[5], "google/uuid", func(n int) {
			for i := range n {
				sinkUUID, sinkErr = uuid.Parse(in.uuidText[i%few])
			}
		}, func() string { id, _ := uuid.Parse(in.uuidText[0]); return id.String() }, 0},

		{Groups[6], Ours, func(n int) {
			sum := flake.ID(0)
			for i := range n {
				id, _ := flake.ParseInt(in.intText[i%few])
				sum += id
			}
			sink = int(sum)
		}, func() string { id, _ := flake.ParseInt(in.intText[0]); return id.String() }, 0},
		{Groups[6], "strconv", func(n int) { // positive and negative numbers
			sum := int64(0)
			for i := range n {
				v, _ := strconv.ParseInt(in.intText[i%few], 10, 64)
				sum += v
			}
			sink = int(sum)
		}, func() string { v, _ := strconv.ParseInt(in.intText[0], 10, 64); return flake.ID(v).String() }, 0},
	}, append(making(), issuing()...)...)
}
