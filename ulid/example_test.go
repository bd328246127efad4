package ulid_test

import (
	"fmt"
	"time"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

func ExampleFromFlake() {
	f, _ := flake.Parse("00F5PEXFDQCGR")
	// In earnest the last argument is 54 bits of a cryptographic source.
	id, err := ulid.FromFlake(flake.Default, f, 0x2A_5A5A_5A5A_5A5A)
	fmt.Println(id, err)
	fmt.Println(id.UUID())

	back, err := id.Flake(flake.Default)
	fmt.Println(back, err)
	// Output:
	// 01J26VJTFDFES8CAJTB9D5MPJT <nil>
	// 01908db9-69ed-7bb2-862a-5a5a5a5a5a5a
	// 00F5PEXFDQCGR <nil>
}

func ExampleParse() {
	id, err := ulid.Parse("01ARZ3NDEKTSV4RRFFQ69G5FAV")
	fmt.Println(id.Time().Format(time.RFC3339Nano), id.UUID(), err)

	_, err = ulid.Parse("01ARZ3NDEKTSV4RRFFQ69G5FAU")
	fmt.Println(err)
	// Output:
	// 2016-07-30T23:54:10.259Z 01563e3a-b5d3-d676-4c61-efb99302bd5b <nil>
	// ulid: invalid character "U" at byte 25
}

func ExampleParseLenient() {
	id, err := ulid.ParseLenient("oLARYZ6-S41TSV4RRF-FQ69G5FAV")
	fmt.Println(id, err)
	// Output: 01ARYZ6S41TSV4RRFFQ69G5FAV <nil>
}

func ExampleParseUUID() {
	id, err := ulid.ParseUUID("017F22E2-79B0-7CC3-98C4-DC0C0C07398F")
	fmt.Println(id, id.IsV7(), err)
	// Output: 01FWHE4YDGFK1SHH6W1G60EECF true <nil>
}

func ExampleID_Flake() {
	id, _ := ulid.Parse("01ARZ3NDEKTSV4RRFFQ69G5FAV")
	_, err := id.Flake(flake.Default)
	fmt.Println(err)
	// Output: ulid: not a version 7 UUID
}

func ExampleID_Increment() {
	id, _ := ulid.Parse("01BX5ZZKBKACTAV9WEVGEMMVRZ")
	next, err := id.Increment()
	fmt.Println(next, err)
	// Output: 01BX5ZZKBKACTAV9WEVGEMMVS0 <nil>
}

func ExampleMin() {
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	from, _ := ulid.Min(day.UnixMilli())
	to, _ := ulid.Min(day.AddDate(0, 0, 1).UnixMilli())
	fmt.Printf("SELECT … WHERE id >= '%s' AND id < '%s'\n", from, to)
	// Output:
	// SELECT … WHERE id >= '01KJKB3Q000000000000000000' AND id < '01KJNXGE000000000000000000'
}
