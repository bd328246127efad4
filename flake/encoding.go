package flake

import (
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
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
func (id *ID) UnmarshalBinary(b []byte) error {
	v, err := FromBytes(b)
	if err != nil {
		return err
	}
	*id = v
	return nil
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
	if err != nil {
		return err
	}
	*id = v
	return nil
}
