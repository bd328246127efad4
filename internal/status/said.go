package status

import (
	"encoding/binary"
	"errors"
	"math"
	"time"

	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/node"
)

// Said is what a node says of itself by gossip: a report, and what it has seen for those who begin
// a new era. Its bytes are big-endian integers:
//
//	rate:8 lead:8 ceiling:8 era:8 highest:8 reason:1 refused:32×4 p50:4 p99:4 write:4 written:4
//
// Reasons are numbered as in allocator.proto. Latencies are in µs, and written is how many ms ago
// the latest write to etcd was.
type Said struct {
	Report
	Era     int64        // The node has seen no later one; 0: none.
	Highest clock.Millis // the highest ceiling ever confirmed to it; 0: none
}

const (
	maxReasons = 32 // above the number of every reason
	saidSize   = 5*8 + 1 + maxReasons*4 + 4*4

	maxRate  = 1 << 40
	maxEra   = 1 << 40
	maxUnix  = 1 << 45 // ms: 1970 to beyond the last flake of any epoch
	maxCount = math.MaxUint32
)

// Every reason has a place in the bytes.
var _ [maxReasons - node.NumReasons]struct{}

// errSaid says that bytes are not those of a Said.
var errSaid = errors.New("status: not a report")

// Say returns the bytes of what the node says of itself. What is out of bounds is said as the bound.
func (s Self) Say() []byte {
	return Said{Report: s.report(), Era: s.Era, Highest: clock.Millis(s.Highest)}.bytes(s.Now)
}

// bytes returns those of s, which is said at a time.
func (s Said) bytes(now int64) []byte {
	b := make([]byte, 0, saidSize)
	u64 := func(v, least, most int64) { b = binary.BigEndian.AppendUint64(b, uint64(min(max(v, least), most))) }
	u32 := func(v int64) { b = binary.BigEndian.AppendUint32(b, uint32(min(max(v, 0), maxCount))) }
	u64(s.Rate, 0, maxRate)
	u64(s.Lead, -maxUnix, maxUnix)
	u64(s.Ceil, 0, maxUnix)
	u64(s.Era, 0, maxEra)
	u64(int64(s.Highest), 0, maxUnix)
	b = append(b, byte(s.Refusing))
	w := s.Work
	for reason := range node.Reason(maxReasons) {
		u32(w.Refused[reason.String()])
	}
	if w.Written == 0 {
		w.Written = now
	}
	for _, n := range []int64{w.P50, w.P99, w.Write, now - w.Written} {
		u32(n)
	}
	return b
}

// ParseSaid returns what a node said, which came a time before now, by the clock of the node that
// was told. It returns an error for bytes that no node says.
func ParseSaid(b []byte, age time.Duration, now clock.Millis) (s Said, err error) {
	if len(b) != saidSize {
		return Said{}, errSaid
	}
	i64 := func(least, most int64) int64 {
		v := int64(binary.BigEndian.Uint64(b))
		if b = b[8:]; v < least || v > most {
			err = errSaid
		}
		return v
	}
	u32 := func() int64 {
		v := binary.BigEndian.Uint32(b)
		b = b[4:]
		return int64(v)
	}
	s.Rate, s.Lead, s.Ceil = i64(0, maxRate), i64(-maxUnix, maxUnix), i64(0, maxUnix)
	s.Era, s.Highest = i64(0, maxEra), clock.Millis(i64(0, maxUnix))
	s.Refusing, b = node.Reason(b[0]), b[1:]
	w := &s.Work
	for reason := range node.Reason(maxReasons) {
		if n := u32(); n > 0 && reason > 0 && int(reason) < node.NumReasons {
			if w.Refused == nil {
				w.Refused = map[string]int64{}
			}
			w.Refused[reason.String()] = n
		}
	}
	w.P50, w.P99, w.Write = u32(), u32(), u32()
	s.Age = age.Milliseconds()
	if ago := u32(); w.Write != 0 {
		w.Written = int64(now) - s.Age - ago
	}
	if err != nil {
		return Said{}, err
	}
	return s, nil
}
