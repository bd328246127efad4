package broker

// Owners returns how many clients are remembered.
func (b *Broker) Owners() int {
	b.owners.mu.Lock()
	defer b.owners.mu.Unlock()
	return len(b.owners.of)
}
