package gen

import "math/rand/v2"

// Random returns the source that tenures of a service draw from. It is safe for
// concurrent use and does not allocate.
//
// It is the runtime's generator: ChaCha8 with a state for each thread, seeded by the
// operating system when the process starts and reseeded regularly. IDs do not show
// which ones follow, and threads share no lock or cache line, as they would with one
// rand.ChaCha8. IDs are still not secrets: nothing may depend on their being
// unpredictable.
func Random() rand.Source { return runtimeSource{} }

type runtimeSource struct{}

func (runtimeSource) Uint64() uint64 { return rand.Uint64() }
