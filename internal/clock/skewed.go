package clock

import "time"

// NewSkewedSystem is NewSystemWith on a machine whose wall clock is by ahead of
// what it is. It is for demonstrations: nothing that serves users calls it.
func NewSkewedSystem(cfg AnchorConfig, by time.Duration) *System {
	origin := time.Now()
	return newSystem(cfg, origin, skewed{machine{origin}, by})
}

type skewed struct {
	machine
	by time.Duration
}

func (s skewed) Read() Readings {
	r := s.machine.Read()
	r.Wall += int64(s.by)
	return r
}
