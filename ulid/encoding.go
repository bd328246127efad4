package ulid

import (
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrJSON is returned for JSON that is no string.
var ErrJSON = errors.New("ulid: ID is not a JSON string")

// AppendBinary appends the 16 bytes of id to b. The error is always nil.
func (id ID) AppendBinary(b []byte) ([]byte, error) {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, id.hi), id.lo), nil
}

// MarshalBinary returns the 16 bytes of id. The error is always nil.
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

// FromBytes returns the ID in the 16 bytes of b. It returns ErrLength; the ID
// is then zero.
func FromBytes(b []byte) (ID, error) {
	if len(b) != BinaryLen {
		return ID{}, wrongLength(len(b), BinaryLen)
	}
	return FromArray([BinaryLen]byte(b)), nil
}

// AppendJSON appends id to b as a JSON string. The error is always nil.
func (id ID) AppendJSON(b []byte) ([]byte, error) {
	b, _ = id.AppendText(append(b, '"'))
	return append(b, '"'), nil
}

// MarshalJSON returns id as a JSON string of its 26 characters. The error is
// always nil.
func (id ID) MarshalJSON() ([]byte, error) { return id.AppendJSON(make([]byte, 0, TextLen+2)) }

// UnmarshalJSON sets id from a JSON string as Parse reads it; null leaves id as
// it is. Anything else is ErrJSON. Escapes are not decoded, so one
// with a backslash escape in it is ErrLength. After an error id is unchanged.
func (id *ID) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	if len(b) < 2 || b[0] != '"' || b[len(b)-1] != '"' {
		return ErrJSON
	}
	return id.UnmarshalText(b[1 : len(b)-1])
}

// Value returns the 26 characters of id, which CHAR(26) columns of any database
// hold, show and sort. For a column of type uuid pass UUID(), for one of bytes
// what MarshalBinary returns; Scan reads them all.
func (id ID) Value() (driver.Value, error) { return id.String(), nil }

// Scan sets id from a database value: 26 characters or a UUID of 36 characters, as
// a string or []byte, or the 16 bytes themselves as a []byte. After an error, id
// is unchanged.
//
// It returns ErrType for other types and for NULL (use sql.Null[ID] where a
// column may hold it), ErrLength for other sizes, else the errors of Parse and
// ParseUUID.
func (id *ID) Scan(src any) error {
	var v ID
	var err error
	switch src := src.(type) {
	case string:
		v, err = parseColumn(src)
	case []byte:
		if len(src) == BinaryLen {
			v, err = FromBytes(src)
		} else {
			v, err = parseColumn(string(src))
		}
	default:
		err = fmt.Errorf("%w %T", ErrType, src)
	}
	return id.set(v, err)
}

func parseColumn(s string) (ID, error) {
	switch len(s) {
	case TextLen:
		return Parse(s)
	case UUIDLen:
		return ParseUUID(s)
	}
	return ID{}, fmt.Errorf("%w: %d bytes, not 26 (ULID), 36 (UUID) or 16 (binary)", ErrLength, len(s))
}
