package etcdpod

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/flakelease/allocator/internal/durable"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
)

// A volume is the directory of one cluster in a member's volume. Its name is the cluster's
// token, so that a restored cluster begins beside the one before.
type volume struct{ dir string }

func (v volume) data() string { return filepath.Join(v.dir, "data") }

// state says what the volume holds, and the member ID in the data, 0 if it is not known.
func (v volume) state() (member.Holds, uint64, error) {
	has, err := meet.HasLog(v.data())
	if err != nil {
		return "", 0, err
	}
	if has {
		var id struct{ Member uint64 }
		b, err := os.ReadFile(filepath.Join(v.dir, "identity"))
		if errors.Is(err, fs.ErrNotExist) {
			return member.HoldsData, 0, nil
		}
		if err != nil {
			return "", 0, err
		}
		if err := json.Unmarshal(b, &id); err != nil {
			return "", 0, fmt.Errorf("%s: %w; remove the file", filepath.Join(v.dir, "identity"), err)
		}
		return member.HoldsData, id.Member, nil
	}
	switch _, err := os.Stat(filepath.Join(v.dir, "intended")); {
	case err == nil:
		return member.HoldsIntent, 0, nil
	case errors.Is(err, fs.ErrNotExist):
		return member.HoldsNothing, 0, nil
	default:
		return "", 0, err
	}
}

// intend writes that this member begins the cluster.
func (v volume) intend() error { return v.write("intended", nil) }

// identify writes whose data these are. From then on the member has voted, so that without its
// data it may not begin the cluster any more.
func (v volume) identify(id uint64) error {
	if err := os.RemoveAll(filepath.Join(v.dir, "intended")); err != nil {
		return err
	}
	return v.write("identity", struct{ Member uint64 }{id})
}

// prepare makes room for the data of a member that begins or joins. Data without a log of writes
// were never used.
func (v volume) prepare() error {
	return errors.Join(os.RemoveAll(v.data()), os.RemoveAll(filepath.Join(v.dir, "identity")))
}

// discard moves the data of a removed member out of the way, and removes those that were
// moved before.
func (v volume) discard() error {
	old := filepath.Join(v.dir, "removed")
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	if err := os.Rename(v.data(), old); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(filepath.Join(v.dir, "identity")), os.RemoveAll(filepath.Join(v.dir, "intended")),
		durable.SyncDir(v.dir))
}

// write writes a file so that it is there after a crash, whole or not at all.
func (v volume) write(name string, content any) error {
	if err := os.MkdirAll(v.dir, 0o700); err != nil {
		return err
	}
	return errors.Join(meet.WriteJSON(filepath.Join(v.dir, name), content), durable.SyncDir(filepath.Dir(v.dir)))
}
