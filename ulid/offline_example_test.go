package ulid_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	googleuuid "github.com/google/uuid"

	"github.com/flakelease/allocator/ulid"
)

// A generator for one process: nothing but time and random bits.
func ExampleNewOffline() {
	o := ulid.NewOffline(ulid.OfflineConfig{})
	id, err := o.New()
	fmt.Println(len(id.String()), time.Since(id.Time()).Abs() < time.Minute, err)
	// Output: 26 true <nil>
}

// The series of the ULID specification: one more within a millisecond, an error
// when it is full, and never down, whatever the clock does.
func ExampleOffline_NextAt() {
	almost := append(bytes.Repeat([]byte{0xFF}, 9), 0xFE)
	o := ulid.NewOffline(ulid.OfflineConfig{
		Entropy: bytes.NewReader(slices.Concat(almost, make([]byte, 10))), // in earnest leave it out
	})
	for _, ms := range []int64{1_469_918_176_385, 1_469_918_176_000, 1_469_918_176_385, 1_469_918_176_386} {
		id, err := o.NextAt(ms)
		fmt.Println(id, err)
	}
	// Output:
	// 01ARYZ6S41ZZZZZZZZZZZZZZZY <nil>
	// 01ARYZ6S41ZZZZZZZZZZZZZZZZ <nil>
	// 00000000000000000000000000 ulid: no random bits left in this millisecond
	// 01ARYZ6S420000000000000000 <nil>
}

// IDs for a time that is given: 0 is one, and not the present.
func ExampleOffline_At() {
	o := ulid.NewOffline(ulid.OfflineConfig{})
	id, err := o.At(0)
	fmt.Println(id.String()[:ulid.TimeLen], id.UnixMilli(), err)
	id, err = o.At(1_735_689_600_000)
	fmt.Println(id.String()[:ulid.TimeLen], id.UnixMilli(), err)
	// Output:
	// 0000000000 0 <nil>
	// 01JGFJJZ00 1735689600000 <nil>
}

// A random UUIDv7, for libraries that have an array type of their own.
func ExampleID_ForceV7() {
	o := ulid.NewOffline(ulid.OfflineConfig{Entropy: strings.NewReader("0123456789")})
	id, err := o.At(1_735_689_600_000)
	id = id.ForceV7()
	u := googleuuid.UUID(id.Bytes())
	fmt.Println(u, u.Version(), err)
	fmt.Println(ulid.FromArray(u) == id)
	// Output:
	// 01941f29-7c00-7031-b233-343536373839 VERSION_7 <nil>
	// true
}

func ExampleFromUnixSeconds() {
	id, err := ulid.FromUnixSeconds(1_735_689_600, [ulid.RandomLen]byte{})
	fmt.Println(id, err)
	_, err = ulid.FromUnixSeconds(1<<61, [ulid.RandomLen]byte{})
	fmt.Println(errors.Is(err, ulid.ErrTimeOverflow))
	// Output:
	// 01JGFJJZ000000000000000000 <nil>
	// true
}

// The characters of a time, by themselves.
func ExampleAppendTime() {
	b, err := ulid.AppendTime(nil, 1_735_689_600_000)
	fmt.Printf("%s %v\n", b, err)
	ms, err := ulid.ParseTime("01JGFJJZ00")
	fmt.Println(ms, err)
	// Output:
	// 01JGFJJZ00 <nil>
	// 1735689600000 <nil>
}

// One ID in all its forms.
func ExampleID() {
	id, _ := ulid.Parse("01ARZ3NDEKTSV4RRFFQ69G5FAV")
	random := id.Randomness()
	fmt.Println(id.UUID(), id.Hex())
	fmt.Println(id.Uint128())
	fmt.Printf("%d %x\n", id.UnixMilli(), random)
	// Output:
	// 01563e3a-b5d3-d676-4c61-efb99302bd5b 01563e3ab5d3d6764c61efb99302bd5b
	// 1777027686520646174104517696511196507
	// 1469922850259 d6764c61efb99302bd5b
}

func ExampleParseUint128() {
	id, err := ulid.ParseUint128("1777027686520646174104517696511196507")
	fmt.Println(id, err)
	_, err = ulid.ParseUint128("340282366920938463463374607431768211456")
	fmt.Println(err)
	// Output:
	// 01ARZ3NDEKTSV4RRFFQ69G5FAV <nil>
	// ulid: integer out of range: not within 0 and 2^128-1
}

func ExampleMake() {
	old, _ := ulid.Parse("01ARZ3NDEKTSV4RRFFQ69G5FAV")
	moved, err := ulid.Make(1_735_689_600_000, old.Randomness()) // another time, the same bits
	fmt.Println(moved, err)
	// Output: 01JGFJJZ00TSV4RRFFQ69G5FAV <nil>
}

func ExampleMax() {
	last, err := ulid.Max(1_735_689_600_000)
	fmt.Println(last, err)
	// Output: 01JGFJJZ00ZZZZZZZZZZZZZZZZ <nil>
}

func ExampleRepair() {
	fixed, changes := ulid.Repair("01ARZ3NDEK-TSV4RRFFQ69G5FAv")
	fmt.Println(fixed, changes)
	// Output: 01ARZ3NDEKTSV4RRFFQ69G5FAv [hyphen at byte 10 left out]
}
