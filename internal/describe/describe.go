package describe

import (
	"encoding/hex"
	"encoding/json"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// FlakeParts is what a flake holds, in the order in which JSON shows it.
// Integers that can exceed 2^53 are strings.
type FlakeParts struct {
	Kind        Kind    `json:"kind"`
	Layout      string  `json:"layout"`
	Base32      string  `json:"base32"`
	Int         string  `json:"int"`
	Hex         string  `json:"hex"`
	Bin         string  `json:"bin"`
	BytesHex    string  `json:"bytes_hex"`
	TimestampMs int64   `json:"timestamp_ms"` // since the epoch of the space
	UnixMs      int64   `json:"unix_ms"`
	Time        *string `json:"time"` // RFC 3339 with 3 decimals, UTC; nil outside the years 0 to 9999
	Randomness  uint32  `json:"randomness"`
	SID         *int    `json:"sid,omitempty"` // nil in the layout without one
}

// WideParts is what 128 bits hold, in the order in which JSON shows it.
type WideParts struct {
	Kind          Kind    `json:"kind"`
	ULID          string  `json:"ulid"`
	UUID          string  `json:"uuid"`
	U128          string  `json:"u128"`
	BytesHex      string  `json:"bytes_hex"`
	UnixMs        int64   `json:"unix_ms"` // the first 48 bits, also where they are no time
	Time          *string `json:"time"`    // nil for a UUID of another version than 7
	RandomnessHex string  `json:"randomness_hex"`
	// Only a UUID has a version; nil where its variant has none.
	UUIDVersion *int        `json:"uuid_version,omitempty"`
	UUIDVariant string      `json:"uuid_variant,omitempty"` // Only a UUID has a variant.
	IssuedHere  string      `json:"issued_here"`            // Possible or No
	Flake       *FlakeParts `json:"flake"`                  // nil if the ID cannot come from a flake of the space
}

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

// A Description has one of its two fields set.
type Description struct {
	Flake *FlakeParts
	Wide  *WideParts
}

// MarshalJSON returns the JSON object of the field that is set.
func (d Description) MarshalJSON() ([]byte, error) {
	if d.Wide != nil {
		return json.Marshal(d.Wide)
	}
	return json.Marshal(d.Flake)
}

// Describe returns the parts of an ID of a space with format f.
//
// Bits that look like a UUIDv7 made from a flake are shown as that flake, though
// they may be a UUIDv7 of another origin.
func Describe(id ID, f flake.Format) Description {
	if id.IsWide() {
		return Description{Wide: describeWide(id, f)}
	}
	return Description{Flake: describeFlake(id.Flake, f)}
}

func describeFlake(id flake.ID, f flake.Format) *FlakeParts {
	p := &FlakeParts{
		Kind:        Flake,
		Layout:      f.Layout.String(),
		Base32:      id.String(),
		Int:         string(id.AppendInt(nil)),
		Hex:         id.Hex(),
		Bin:         id.Bin(),
		BytesHex:    string(id.AppendHex16(nil)),
		TimestampMs: f.UnixMilli(id) - f.Epoch,
		UnixMs:      f.UnixMilli(id),
		Randomness:  f.Entropy(id),
	}
	p.Time = Time(p.UnixMs)
	if f.Layout.SIDBits() > 0 {
		sid := int(f.SID(id))
		p.SID = &sid
	}
	return p
}

func describeWide(id ID, f flake.Format) *WideParts {
	w := id.Wide
	r := w.Randomness()
	p := &WideParts{
		Kind:          id.Kind,
		ULID:          w.String(),
		UUID:          w.UUID(),
		U128:          w.Uint128(),
		BytesHex:      w.Hex(),
		UnixMs:        w.UnixMilli(),
		Time:          Time(w.UnixMilli()),
		RandomnessHex: hex.EncodeToString(r[:]),
		IssuedHere:    No,
	}
	if id.Kind == UUID {
		var version int
		if version, p.UUIDVariant = Version(w); p.UUIDVariant == RFC9562 {
			p.UUIDVersion = &version
		}
		if !hasTime(id) {
			p.Time = nil
		}
	}
	if from, err := w.Flake(f); err == nil {
		p.IssuedHere, p.Flake = Possible, describeFlake(from, f)
	}
	return p
}

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
