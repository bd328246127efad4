// Package ulid reads and writes 128-bit ULIDs, and the same 16 bytes as UUIDs.
//
//	id, err := ulid.Parse("01J26VJTFDFES8CAJTB9D5MPJT")
//	id.Time() // 2024-07-07 15:04:17.133 UTC
//	id.UUID() // "01908db9-69ed-7bb2-862a-5a5a5a5a5a5a", a UUIDv7
//
// An Offline makes ULIDs without a cluster. Those that a cluster issues come from
// package client.
//
// A ULID is a time and 80 random bits:
//
//	 127             80 79                                 0
//	+------------------+------------------------------------+
//	|   Unix ms (48)   |            random (80)             |
//	+------------------+------------------------------------+
//
// The wide IDs of this project are ULIDs made of one Ulid-Flake and 54 random
// bits, with UUIDv7's version and variant in their places:
//
//	 127             80 79    76 75          64 63 62 61         54 53        0
//	+------------------+--------+--------------+-----+-------------+-----------+
//	|   Unix ms (48)   |  0111  | flake 19..8  | 10  |  flake 7..0 |  random   |
//	+------------------+--------+--------------+-----+-------------+-----------+
//
// So a wide ID is a ULID and a legal UUIDv7 at once, sorts as its flake does
// (claim I8: one order), and gives its flake back. The flake's low bits, with
// the sid among them, lie in rand_a and the top of rand_b: the ID shows
// which holder issued it. (RFC 9562, section 6.4, would rather have
// node IDs in a UUIDv8; v7 is what databases and tools sort and recognize.)
//
// # Forms
//
//	text     26 characters of Crockford's Base32, upper case
//	UUID     36 characters, 8-4-4-4-12 lower-case hexadecimal digits
//	u128     decimal, 0 to 2^128−1
//	hex      32 lower-case digits
//	binary   16 bytes, big endian
//	JSON     a string of the 26 characters
//	SQL      the 26 characters
//
// All but u128 sort as the bytes do. Parsers accept what these forms are and no
// more; only ParseLenient reads what a person may have meant, and Repair reports what
// it made of it.
//
// The package issues nothing: Make, FromFlake and Increment compute IDs from
// what they are given, and Offline from a clock and random bits, without
// coordination. Except Offline, all functions are pure and safe for concurrent
// use, and no method but Unmarshal… and Scan changes anything; Offline is safe
// for concurrent use too.
//
// Source: ULID specification (github.com/ulid/spec); RFC 9562, sections 5.7 and
// 6.2.
package ulid
