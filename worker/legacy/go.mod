// Adapters that give Snowflake libraries a leased worker number. A module of its own, so
// that these libraries are not in the module graph of those who compile against the product.
module github.com/flakelease/allocator/worker/legacy

go 1.26.0

replace github.com/flakelease/allocator => ../..

require (
	github.com/bwmarrin/snowflake v0.3.0
	github.com/flakelease/allocator v0.0.0-00010101000000-000000000000
	github.com/sony/sonyflake v1.2.0
	google.golang.org/grpc v1.85.0
)

require (
	golang.org/x/net v0.61.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
