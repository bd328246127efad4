package flake

import (
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
)

// ErrJSON is returned for JSON that is no string. It says why a number is none
// of ours.
var ErrJSON = errors.New("flake: ID is not a JSON string (numbers lose digits above 2^53)")

// AppendBinary appends the 8 bytes of id, big endian, to b. It returns ErrRange
// for a negative ID, and b unchanged.
func (id ID) AppendBinary(b []byte) ([]byte, error) {
	if id < 0 {
		return b, negative(id)
	}
	return binary.BigEndian.AppendUint64(b, uint64(id)), nil
}

// MarshalBinary returns the 8 bytes of id, big endian. It returns ErrRange for
// a negative ID.
func (id ID) MarshalBinary() ([]byte, error) { return id.AppendBinary(make([]byte, 0, BinaryLen)) }

// UnmarshalBinary sets id as FromBytes reads b. After an error id is unchanged.
func (id *ID) UnmarshalBinary(b []byte) error { return id.set(FromBytes(b)) }

// set sets id to v, unless there is an error, which it returns.
func (id *ID) set(v ID, err error) error {
	if err == nil {
		*id = v
	}
	return err
}

// FromBytes returns the ID in the 8 bytes of b, big endian. It returns
// ErrLength, or ErrRange if bit 63 is set; the ID is then zero.
func FromBytes(b []byte) (ID, error) {
	if len(b) != BinaryLen {
		return 0, fmt.Errorf("%w: %d bytes, not %d", ErrLength, len(b), BinaryLen)
	}
	v := binary.BigEndian.Uint64(b)
	if v>>63 != 0 {
		return 0, fmt.Errorf("%w: bit 63 is set", ErrRange)
	}
	return ID(v), nil
}

// AppendJSON appends id to b as a JSON string. It returns ErrRange for a
// negative ID, and b unchanged.
func (id ID) AppendJSON(b []byte) ([]byte, error) {
	if id < 0 {
		return b, negative(id)
	}
	b, _ = id.AppendText(append(b, '"')) // fails for a negative ID only
	return append(b, '"'), nil
}

// MarshalJSON returns id as a JSON string of its 13 characters. It returns
// ErrRange for a negative ID.
func (id ID) MarshalJSON() ([]byte, error) { return id.AppendJSON(make([]byte, 0, TextLen+2)) }

// UnmarshalJSON sets id from a JSON string as Parse reads it; null leaves id as
// it is. Anything else is ErrJSON, numbers among it: one above 2^53 may have
// lost digits on its way here. Escapes are not decoded, so a string with a
// backslash escape in it is ErrLength. After an error id is unchanged.
func (id *ID) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return ErrJSON
	}
	return id.UnmarshalText(b[1 : len(b)-1])
}

// Decimal is an ID whose text, in JSON too, is its decimal digits, as the clients for other languages give
// IDs and as BIGINT columns show them. In JSON the digits are a string, never a number. They have no leading
// zeros: compare Decimals as the integers that they are, and not their texts.
type Decimal ID

// String returns the digits of d.
func (d Decimal) String() string { return strconv.FormatInt(int64(d), 10) }

// MarshalText returns the digits of d. It returns ErrRange for a negative ID.
func (d Decimal) MarshalText() ([]byte, error) {
	if d < 0 {
		return nil, negative(ID(d))
	}
	return ID(d).AppendInt(nil), nil
}

// UnmarshalText sets d from digits as ParseInt reads them, and returns its errors; d is then unchanged.
func (d *Decimal) UnmarshalText(b []byte) error {
	id, err := ParseInt(string(b))
	if err == nil {
		*d = Decimal(id)
	}
	return err
}

// Value returns id as an int64, for a BIGINT column. It returns ErrRange for a
// negative ID.
func (id ID) Value() (driver.Value, error) {
	if id < 0 {
		return nil, negative(id)
	}
	return int64(id), nil
}

// Scan sets id from a database value: an int64, the 13 characters as a string or
// []byte, or the 8 bytes of the binary form as a []byte. After an error, id is
// unchanged.
//
// It returns ErrType for other types and for NULL (use sql.Null[ID] where a
// column may hold it), else the errors of FromInt64, Parse and FromBytes.
func (id *ID) Scan(src any) error {
	var v ID
	var err error
	switch src := src.(type) {
	case int64:
		v, err = FromInt64(src)
	case string:
		v, err = Parse(src)
	case []byte:
		if len(src) == BinaryLen {
			v, err = FromBytes(src)
		} else {
			err = v.UnmarshalText(src)
		}
	default:
		err = fmt.Errorf("%w %T", ErrType, src)
	}
	return id.set(v, err)
}
