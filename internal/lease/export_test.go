package lease

// FreshStatus returns the status without what earlier ones computed.
func (m *Machine) FreshStatus() Status {
	m.list.summary = nil
	return m.Status()
}
