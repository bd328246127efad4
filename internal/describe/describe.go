package describe

import "github.com/flakelease/allocator/ulid"

// Whether an ID of 128 bits was issued in the space, as far as its bits show it.
const (
	Possible = "possible" // a UUIDv7 of any origin looks like this
	No       = "no"
)

// RFC9562 is the variant of the UUIDs that have a version.
const RFC9562 = "RFC 9562"

// Version returns the version and the variant of a UUID. The version is 0, which no UUID should have, where
// the variant has none and for the nil UUID.
func Version(id ulid.ID) (version int, variant string) {
	bits := id.Bytes()
	switch top := bits[8] >> 5; {
	case bits == [ulid.BinaryLen]byte{}:
		return 0, "nil"
	case top < 4:
		return 0, "NCS"
	case top == 6:
		return 0, "Microsoft"
	case top == 7:
		return 0, "reserved"
	}
	return int(bits[6] >> 4), RFC9562
}

// hasTime reports whether the first bits of a wide ID are a time: of UUIDs only those of version 7 have one there.
func hasTime(id ID) bool { return id.Kind != UUID || id.Wide.IsV7() }

// Time returns the text of a time in Unix ms: RFC 3339 with 3 decimals, UTC. It
// is nil where RFC 3339 has none: its years have four digits, and 48 bits of
// milliseconds reach 10889.
func Time(unixMilli int64) *string {
	b, ok := AppendTime(nil, unixMilli)
	if !ok {
		return nil
	}
	s := string(b)
	return &s
}
