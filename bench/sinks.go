//lint:file-ignore U1000 sinks are written and never read

package bench

import (
	"github.com/bwmarrin/snowflake"
	"github.com/google/uuid"
	oklog "github.com/oklog/ulid/v2"
	"github.com/rs/xid"
	"github.com/segmentio/ksuid"

	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/ulid"
)

// Sinks keep the compiler from dropping what is measured.
var (
	sinkBytes []byte
	sink      int
	sinkText  string
	sinkErr   error
	sinkFlake flake.ID
	sinkID    ulid.ID
	sinkOklog oklog.ULID
	sinkUUID  uuid.UUID
	sinkXID   xid.ID
	sinkKSUID ksuid.KSUID
	sinkSnow  snowflake.ID
	sinkWord  uint64
)
