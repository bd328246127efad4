module github.com/flakelease/allocator/bench

go 1.26.0

require (
	github.com/bwmarrin/snowflake v0.3.0
	github.com/flakelease/allocator v0.0.0
	github.com/google/uuid v1.6.0
	github.com/oklog/ulid/v2 v2.1.2
	github.com/rs/xid v1.6.0
	github.com/segmentio/ksuid v1.0.4
)

replace github.com/flakelease/allocator => ../
