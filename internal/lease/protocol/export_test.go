package protocol

import "github.com/flakelease/allocator/internal/lease"

// FreshStatus returns the status without what earlier ones computed.
func (m *Machine) FreshStatus() lease.Status {
	m.sum = nil
	return m.Status()
}
