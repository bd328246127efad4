// Package flake reads and writes time-sorted IDs that fit an int64 and 13
// characters: 64-bit Ulid-Flakes, and the Snowflakes of other systems.
//
//	id, err := flake.Parse("00F5PEXFDQCGR") // an ID that a node issued
//	id.Time()                               // 2024-07-07 15:04:17.133 UTC
//	id.Int64()                              // for a BIGINT column
//
// To get new IDs, use package client or package embed.
//
// A Ulid-Flake:
//
//	 63  62                            20  19            0
//	+---+--------------------------------+----------------+
//	| 0 |  milliseconds since the epoch  |    low bits    |
//	+---+--------------------------------+----------------+
//	  1                 43                       20
//
//	low bits     scalable  15 entropy   5 sid      32 holders
//	             standalone 20 entropy  0 sid       1 holder
//	             fleet     10 entropy  10 sid   1,024 holders
//
// A Snowflake, as Twitter's and most others, has the sid above a sequence that counts:
//
//	+---+--------------------------+----------+--------------+
//	| 0 |  milliseconds since its  |  worker  |   sequence   |
//	|   |  epoch            41     |    10    |      12      |
//	+---+--------------------------+----------+--------------+
//
// The built-in layouts have names; ParseLayout reads any other. The epoch of ours is
// 2024-01-01T00:00:00Z unless a space chose another; it and the layout are constants
// of the space and are not in the ID. A Format holds the two and gives the bits their
// meaning. What needs no Format, such as every text form, is a method of ID or a
// function.
//
// # Forms
//
//	text     00F5PEXFDQCGR   13 characters of Crockford's Base32, upper case; in
//	                         the scalable layout the last character is the sid
//	integer  decimal, 0 to 2^63−1
//	hex      0x1F, or 16 padded digits
//	bin      0b11111, output only
//	binary   8 bytes, big endian
//	JSON     a string of the 13 characters, never a number: every ID of the default
//	         epoch made since 2024-04-09 exceeds 2^53, above which a float64
//	         cannot hold each integer; a Decimal is a string of digits in JSON, as the
//	         clients for other languages give IDs
//	SQL      BIGINT
//
// Text, 16-digit hex and binary forms sort as the integers do, and integers as
// time does (claim I8: one order). Parsers accept what these forms are and no
// more; only ParseLenient reads what a person may have meant, and Repair reports what
// it made of it.
//
// # What it does not do
//
// The package issues nothing. Make and Increment compute IDs from what they are
// given, and Offline from a clock and random bits; none knows of another
// process: only an allocator that leases its sid and reserves its milliseconds
// can promise that an ID is new. But for Offline, all functions are pure and
// safe for concurrent use, and no method but Unmarshal… and Scan changes
// anything; Offline is safe for concurrent use too.
//
// Source: Ulid-Flake specification. The layout fleet, the strictness of the
// parsers and JSON strings are ours. Where its text and its implementations
// differ we follow the latter: a binary form of 8 bytes, sids from 0 to 31, and
// entropy sizes in bytes.
package flake
