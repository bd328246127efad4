package embed

import (
	"context"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/status"
	"github.com/flakelease/allocator/internal/watermark"
)

// Watermark returns the watermark of the space as this program has read it: no ID below its ID
// is issued any more, by any node. It asks nobody and never goes back. It is refused with
// STARTING while none was read, and with HISTORY_REWOUND after etcd was restored from a backup.
func (a *Allocator) Watermark() (client.Watermark, error) {
	return a.mark(a.daemon.Marks().Read())
}

// WaitFor returns the watermark once it is above id: no ID at or below id can appear any more.
// It waits until ctx ends, whose error it returns then, or the allocator is closed: ErrClosed.
// Its other errors are those of Watermark, and INVALID_ID for an id that cannot be of the space.
func (a *Allocator) WaitFor(ctx context.Context, id flake.ID) (client.Watermark, error) {
	marks := a.daemon.Marks()
	if bad := marks.Check(id, 0); bad != nil {
		return client.Watermark{}, a.refusal(bad)
	}
	for {
		answer, err := marks.Wait(ctx, id, watermark.MaxWait)
		if err != nil || answer.Complete(id) {
			return a.mark(answer, err)
		}
		select {
		case <-marks.Ended():
			return client.Watermark{}, ErrClosed
		default:
		}
	}
}

func (a *Allocator) mark(answer watermark.Answer, err error) (client.Watermark, error) {
	if err != nil {
		return client.Watermark{}, a.refusal(err)
	}
	return client.WatermarkOf(status.WatermarkProto(answer)), nil
}
