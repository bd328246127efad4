package flake_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/flakelease/allocator/flake"
)

func ExampleParse() {
	id, err := flake.Parse("00f5pexfdqcgr")
	fmt.Println(id, id.Int64(), id.Time().Format(time.RFC3339Nano), err)

	_, err = flake.Parse("G1N584R7MFNSS")
	fmt.Println(err)
	// Output:
	// 00F5PEXFDQCGR 17089122411459096 2024-07-07T15:04:17.133Z <nil>
	// flake: more than 63 bits: first character "G" is above 7
}

func ExampleParseLenient() {
	id, err := flake.ParseLenient("7B3V-89M3-SIOGM")
	fmt.Println(id, err)
	// Output: 7B3V89M3S10GM <nil>
}

func ExampleFormat_Make() {
	id, err := flake.Default.Make(flake.DefaultEpoch+1000, 12345, 31)
	fmt.Println(id, flake.Default.Entropy(id), flake.Default.SID(id), err)
	// In the scalable layout the last character is the sid: Z is 31.

	_, err = flake.Default.Make(flake.DefaultEpoch, 0, 32)
	fmt.Println(err)
	// Output:
	// 0000000Z8C1SZ 12345 31 <nil>
	// flake: sid out of range: 32, the last of layout scalable is 31
}

func ExampleFormat_Min() {
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	from, _ := flake.Default.Min(day.UnixMilli())
	to, _ := flake.Default.Min(day.AddDate(0, 0, 1).UnixMilli())
	fmt.Printf("SELECT … WHERE id >= %d AND id < %d\n", from.Int64(), to.Int64())
	// Output:
	// SELECT … WHERE id >= 71571603456000000 AND id < 71662200422400000
}

func ExampleFormat_Increment() {
	first, _ := flake.Default.Make(flake.DefaultEpoch, 100, 7)
	// In earnest the reader is crypto/rand.Reader; the zero is drawn again.
	next, err := flake.Default.Increment(first, 1, strings.NewReader("\x00\x05"))
	fmt.Println(flake.Default.Entropy(next), flake.Default.SID(next), err)
	// Output: 105 7 <nil>
}

func ExampleID_AppendText() {
	var buf [flake.TextLen]byte
	b, err := flake.ID(17089122411459096).AppendText(buf[:0]) // no allocation
	fmt.Printf("%s %v\n", b, err)
	// Output: 00F5PEXFDQCGR <nil>
}

func ExampleID_MarshalJSON() {
	b, _ := json.Marshal(map[string]flake.ID{"id": 17089122411459096})
	fmt.Printf("%s\n", b)

	var v struct{ ID flake.ID }
	fmt.Println(json.Unmarshal([]byte(`{"ID": 17089122411459096}`), &v))
	// Output:
	// {"id":"00F5PEXFDQCGR"}
	// flake: ID is not a JSON string (numbers lose digits above 2^53)
}

func ExampleLayouts() {
	for _, name := range flake.Layouts()[:4] {
		l, _ := flake.ParseLayout(name)
		fmt.Println(name, l.Holders())
	}
	// Output:
	// scalable 32
	// standalone 1
	// fleet 1024
	// twitter 1024
}

// A Snowflake of Twitter.
func ExampleParseFormat() {
	f, err := flake.ParseFormat("twitter")
	id, _ := flake.ParseInt("1541815603606036480")
	fmt.Println(f.Time(id).Format(time.RFC3339Nano), f.SID(id), f.Entropy(id), err)

	f, err = flake.ParseFormat("41/10/12,order=time-sid-seq,unit=1ms,epoch=2024-01-01")
	fmt.Println(f.Layout.Holders(), f.Epoch, err)
	// Output:
	// 2022-06-28T16:07:40.105Z 378 0 <nil>
	// 1024 1704067200000 <nil>
}
