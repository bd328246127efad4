// Package clock gives the time and decides how far it can be trusted.
//
// Inside the program wall time is [Millis] and elapsed time is [Mono]: two
// types, so that the two are never mixed. IDs carry anchored time (a wall
// reading taken once, plus monotonic time since), so a step of the machine's
// wall clock reaches no ID.
//
// Nothing here keeps two IDs apart: uniqueness (I1) rests on the windows of
// package lease alone. The clock keeps IDs close to real time (I5).
//
// Other packages take a [Reading] as an argument; only shells hold a [Source],
// and only [System] reads the machine's clocks.
package clock
