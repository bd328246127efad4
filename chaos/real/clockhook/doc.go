// Package clockhook gives a running program other clocks than the machine's, and
// slower or failing disk syncs and failing writes, from outside: the program is not
// rebuilt, not linked with anything, and not notified.
//
// It works on Go programs for linux/amd64 that keep their symbol table, which is
// what `go build` makes (with -ldflags=-s it is gone). Elsewhere [Start] returns
// [ErrUnsupported] with the reason. The program is our child, so no privilege is
// needed; a sandbox may forbid ptrace all the same (see [Supported]).
//
// # How
//
// Start runs the program under ptrace up to runtime.main: it has one thread then,
// and the runtime has looked up the vDSO. Into the stopped process it maps one
// page of code, and one of values that it shares with us; then it makes two
// changes and lets go. No tracing goes on after that.
//
//   - The variable runtime.vdsoClockgettimeSym, through which the runtime reads
//     its two clocks, holds the address of a stub. It asks the real vDSO and adds
//     the offsets of the shared page. This reaches time.Now, timers, deadlines and
//     every library in the program.
//   - The first 13 bytes of the one function through which packages syscall and
//     golang.org/x/sys/unix enter the kernel jump to a second stub. It lets all
//     calls pass, but for clock_gettime (CLOCK_BOOTTIME, CLOCK_MONOTONIC_RAW and
//     the rest), adjtimex, fsync, fdatasync, and write, pwrite64 and fallocate on
//     files. The function's bytes are compared with those we know before they are
//     changed.
//
// A change of the shared page is seen by the next reading of any clock, of all
// threads at once. A reading that a change has overtaken is taken again, so no
// thread adds the new offset to an old reading, and a change of rate is no step.
//
// # What it does not change
//
//   - The kernel's waits. A sleep, a timer or a poll that the runtime has entered
//     lasts its real time, since it was asked for as a duration; when it ends, the
//     runtime reads the clock we give it and sleeps again if it is early by that.
//     So a monotonic clock set forward fires timers at the next such read
//     (at the latest when the earliest of them is due in real time), and one set
//     back by d keeps all of them waiting for d longer. Drift acts on both.
//   - gettimeofday (syscall.Gettimeofday, syscall.Time), which has a pointer of its
//     own; timestamps that the kernel makes (files, sockets); what other processes
//     see of this one.
//   - Programs that the hooked one starts.
//   - Reads before runtime.main: the runtime's random seeds.
//
// A monotonic clock that is set back while the program runs is no clock that a
// kernel makes; [Hook.Suspend] holds the process while it does that, so the
// process cannot notice.
package clockhook
