// Package gen turns a millisecond clock, a sid and a window into IDs.
//
// A [Tenure] is one process's hold of one sid. Its whole state is one integer,
// the word: milliseconds since the epoch, then the entropy bits of the last ID
// handed out. [Tenure.Next] computes a block of IDs on local values and commits
// it with one compare-and-swap, so it needs no lock, never waits, and a refusal
// leaves no trace.
//
//	 63   62                            k  k-1          0
//	+---+---------------------------------+--------------+
//	| S |  milliseconds since the epoch   |   entropy    |   word
//	+---+---------------------------------+--------------+
//	  sealed            43                       k           an ID is word<<sid bits | sid
//
// The package upholds, for what it is given: I2 (every call's IDs are larger
// than those of calls that returned before it began), I3 (nothing below base or
// at or above the ceiling), I6 (nothing at or below after) and I7 (refusing
// changes nothing). That two tenures never share a millisecond of one sid (I4)
// is for package lease to arrange: this one believes the base and ceiling it is
// told, and reads no clock itself.
//
// Only package node may hold a Tenure in the service; it also keeps tenures of
// one process in order, by starting each above the last ID of the one before.
package gen
