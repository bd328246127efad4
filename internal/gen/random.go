package gen

import "math/rand/v2"

// Random returns the source that tenures of a service draw from. It is safe for
// concurrent use and does not allocate.
//
// It is the runtime's own generator: ChaCha8 with a state for each thread,
// seeded by the operating system when the process starts and reseeded on the
// way. So what a caller sees of IDs does not tell the next ones, and no lock or
// shared cache line joins the threads, which a rand.ChaCha8 of our own would
// need. IDs still are no secrets: nothing may rest on their being unguessable.
func Random() rand.Source { return runtimeSource{} }

type runtimeSource struct{}

func (runtimeSource) Uint64() uint64 { return rand.Uint64() }
