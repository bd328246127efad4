// Package sim plays whole clusters in one goroutine: the lease machines,
// generators, anchored clocks, estimates and gates of several nodes, on hosts
// whose clocks go wrong, over a network that loses and delays, against an etcd
// that forgets requests, answers late and changes leaders. Everything is drawn
// from one seed, time included, so that a seed is a run that can be repeated.
//
// A seed is played in one of three modes. [Everything] has all faults and all
// guards; [Unclocked] has the same faults and no guard that reads a clock,
// for I1 to I4 must need none; [Tampered] changes etcd's records behind the
// nodes' backs, which is outside what I1 promises, and asks that they notice,
// stop, and serve again once an operator has begun a new era. Each seed enables
// some of the faults, at intensities of its own, and ends with all of them
// repaired: every process that can have a sid then has to issue again.
//
// Claims I1 to I4 are judged by package history, on what was answered and what
// the store held. I2 per sid, I5 where most hosts are sound, I6 and I7 are
// checked as requests are served. What a run must have reached to mean anything
// is counted as points; see [Points].
//
// Only tests import this package, and what shows a run in a page: see [Live]. It reads no clock
// and starts no goroutine.
package sim
