//go:build nodev

package cli

// TryDev is how to start a cluster for a trial. Release builds leave dev out: the
// etcd server that it starts is half of the binary and most of its modules.
const TryDev = `run "go run ./cmd/allocator dev" in a checkout of the source`
