// Package worker gives a generator of another kind, such as a Snowflake library, a
// worker number that nobody else has, for an interval of time that is kept extended.
//
//	w, err := worker.Open(ctx, worker.Config{
//		Name:   "orders",
//		Client: client.Options{Targets: []string{"allocator-0:9000", "allocator-1:9000"}},
//	})
//	…
//	defer w.Close()
//	node, err := snowflake.NewNode(w.Number())
//	…
//	id := node.Generate()
//	if err := w.Permit(id.Time()); err != nil {
//		return err // the ID must not be used
//	}
//
// A worker is a sid of the space that is held by a program which is no node. etcd has
// recorded that it is this worker's in the milliseconds [not_before, not_after), and no
// one else is ever granted the number for these. So IDs of two workers differ, whatever
// crashes, pauses and clocks do, if each ID's own time lies in its worker's interval.
// Permit checks that.
//
// # Permit
//
// Make the ID first, then ask Permit with the ID's own time, and only then use the ID. A
// check before the ID is made shows nothing: the program may be paused in between.
// Permit takes some nanoseconds, and no lock.
//
// Without Permit the promise rests on clocks, and on the program being stopped in time.
//
// # What all workers must have in common
//
// The number and the time are only a part of an ID. All generators whose IDs are compared
// have the same layout and epoch, and each takes its number from the same space. One
// worker is for one generator: two generators with the same number make the same IDs.
//
// A generator whose unit of time is longer than a millisecond needs Config.Unit. Only
// units that lie in the interval as a whole are permitted: if the interval ends within a
// unit, neither this worker nor the next one has that unit.
//
// # Loss
//
// A worker is lost when nodes no longer know it: an operator has quarantined its number, etcd
// was restored, or it was unreachable for so long that the number is somebody else's. It is
// lost too when the wall clock was set forward by a second or more, even if that corrects an
// earlier step back: the machine may be a copy of one that was saved, and the other copy has
// the number as well. So let the clock be synchronized before the program starts. Then
// nothing more is permitted and Worker.Lost is closed. The program closes the worker, which
// ends its connections, and opens another, which may have another number. Until then a worker
// that cannot be extended is only expired: Permit permits again when nodes can be reached.
//
// A program that is a node itself, by package embed, needs no server: embed.Allocator.Workers.
// Programs that cannot be changed are run by "allocator worker run".
package worker
