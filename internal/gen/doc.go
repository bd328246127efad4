// Package gen turns a millisecond clock, a sid and a window into IDs.
//
// A [Tenure] is one process's hold of one sid. Its whole state is one integer,
// the word: time since the epoch in the layout's units, which are mostly
// milliseconds, then the entropy bits of the last ID issued. [Tenure.Next] computes a block of IDs
// on local values and commits it with one compare-and-swap: it needs no lock, never waits, and a
// refusal changes nothing.
//
//	 63   62                            k  k-1          0
//	+---+---------------------------------+--------------+
//	| S |     time since the epoch        |   entropy    |   word
//	+---+---------------------------------+--------------+
//	  sealed            43                       k           an ID is word<<sid bits | sid
//
// Where the layout has the sid above the sequence, it lies between the two in an ID,
// and a block lies within one unit.
//
// Within one tenure the package upholds I2 (every call's IDs are larger than those of
// calls that returned before it began), I3 (nothing below base or at or above the
// ceiling), I6 (nothing at or below after) and I7 (refusing changes nothing). Package
// lease ensures that two tenures never share a millisecond of one sid (I4), and this
// package uses only units that lie in the window as a whole. It does not check base and
// ceiling, and reads no clock.
//
// In the service only package node may hold a Tenure. It also orders the tenures of
// one process, by starting each above the last ID of the one before.
package gen
