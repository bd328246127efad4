package flake_test

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
)

// A generator for one process, set as the Ulid-Flake specification has it.
func ExampleNewOffline() {
	o, err := flake.NewOffline(flake.OfflineDefaults())
	if err != nil {
		fmt.Println(err)
		return
	}
	id, err := o.New()
	fmt.Println(len(id.String()), time.Since(id.Time()).Abs() < time.Minute, err)
	// Output: 13 true <nil>
}

// The series rises by random steps, and says when a millisecond is full.
func ExampleOffline_NextAt() {
	c := flake.OfflineConfig{
		Format:      flake.Format{Layout: flake.Scalable, Epoch: 1_577_836_800_000}, // 2020
		SID:         7,
		EntropySize: 1,
		// In earnest leave Entropy out: it is crypto/rand. These are the first
		// entropy, 32,700, and steps of 60, 0 (drawn again), 5 and 100.
		Entropy: strings.NewReader("\x7f\xbc" + "\x3c" + "\x00\x05" + "\x64" + "\x00\x01"),
	}
	o, err := flake.NewOffline(c)
	if err != nil {
		fmt.Println(err)
		return
	}
	const ms = 1_577_836_800_123
	for range 4 {
		id, err := o.NextAt(ms)
		fmt.Println(id, c.Format.Entropy(id), c.Format.SID(id), err)
	}
	_, err = o.NextAt(ms - 1)
	fmt.Println(errors.Is(err, flake.ErrRegression), err)
	id, err := o.NextAt(ms + 1)
	fmt.Println(id, c.Format.Entropy(id), err)
	// Output:
	// 00000003VZXW7 32700 7 <nil>
	// 00000003VZZR7 32760 7 <nil>
	// 00000003VZZX7 32765 7 <nil>
	// 0000000000000 0 0 flake: no entropy left in this millisecond: 32765 + 100
	// true flake: the clock went back: the last ID lies 1 ms ahead of it
	// 00000003W0017 1 <nil>
}

// IDs for a time that is given. They are random and not coordinated.
func ExampleOffline_At() {
	o, _ := flake.NewOffline(flake.OfflineDefaults())
	day := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	id, err := o.At(day.UnixMilli())
	fmt.Println(id.Time().Format(time.RFC3339), id.String()[:8], err)

	_, err = o.At(time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli())
	fmt.Println(err)
	// Output:
	// 2026-03-01T12:00:00Z 01ZKF65G <nil>
	// flake: time before the epoch: 1672531200000 is before 1704067200000
}

func ExampleFormat_FromUnixSeconds() {
	id, err := flake.Default.FromUnixSeconds(1_735_689_600, 12345, 7)
	fmt.Println(id, id.Time().Format(time.RFC3339), err)

	// Times 1000 this would wrap around to a legal millisecond.
	_, err = flake.Default.FromUnixSeconds(1_704_067_201+1<<61, 0, 0)
	fmt.Println(errors.Is(err, flake.ErrTimeOverflow))
	// Output:
	// 00XEDF200C1S7 2025-01-01T00:00:00Z <nil>
	// true
}

func ExampleRepair() {
	fixed, changes := flake.Repair("7B3V-89M3-SlOGM")
	id, err := flake.Parse(fixed)
	fmt.Println(id, err)
	for _, c := range changes {
		fmt.Println(c)
	}
	// Output:
	// 7B3V89M3S10GM <nil>
	// hyphen at byte 4 left out
	// hyphen at byte 9 left out
	// "l" at byte 11 read as "1"
	// "O" at byte 12 read as "0"
}

// The integer, the text, hexadecimal and binary digits and the fields of an ID.
func ExampleID() {
	id, err := flake.ParseInt("17089122411459096")
	standalone := flake.Format{Layout: flake.Standalone, Epoch: flake.DefaultEpoch}
	fmt.Println(id.String(), id.Int64(), err)
	fmt.Println(id.Hex(), id.Bin())
	fmt.Println(standalone.Layout.Timestamp(id), standalone.Entropy(id), standalone.Time(id).Format(time.RFC3339Nano))
	// Output:
	// 00F5PEXFDQCGR 17089122411459096 <nil>
	// 0x3CB6775EDBB218 0b111100101101100111011101011110110110111011001000011000
	// 16297457133 766488 2024-07-07T15:04:17.133Z
}

func ExampleFromInt64() {
	id, err := flake.FromInt64(17089122411459096)
	fmt.Println(id, err)
	_, err = flake.FromInt64(-1)
	fmt.Println(err)
	// Output:
	// 00F5PEXFDQCGR <nil>
	// flake: integer out of range: -1 is negative
}

func ExampleParseHex() {
	a, err1 := flake.ParseHex("0x3CB6775EDBB218")
	b, err2 := flake.ParseHex("003cb6775edbb218")
	fmt.Println(a, b, err1, err2)
	// Output: 00F5PEXFDQCGR 00F5PEXFDQCGR <nil> <nil>
}

func ExampleFromBytes() {
	b, _ := flake.ID(17089122411459096).MarshalBinary()
	id, err := flake.FromBytes(b)
	fmt.Printf("%x %v %v\n", b, id, err)
	// Output: 003cb6775edbb218 00F5PEXFDQCGR <nil>
}
