package etcdpod

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/flakelease/allocator/internal/etcdpod"
)

// A volume is the directory of one cluster in a member's volume. Its name is the cluster's
// token, so that a restored cluster begins beside the one before.
type volume struct{ dir string }

func (v volume) data() string { return filepath.Join(v.dir, "data") }

// state says what the volume holds, and the member ID in the data, 0 if it is not known.
func (v volume) state() (etcdpod.Data, uint64, error) {
	logs, err := filepath.Glob(filepath.Join(v.data(), "member", "wal", "*.wal"))
	if err != nil {
		return "", 0, err
	}
	if len(logs) > 0 {
		var id struct{ Member uint64 }
		b, err := os.ReadFile(filepath.Join(v.dir, "identity"))
		if errors.Is(err, fs.ErrNotExist) {
			return etcdpod.DataPresent, 0, nil
		}
		if err != nil {
			return "", 0, err
		}
		if err := json.Unmarshal(b, &id); err != nil {
			return "", 0, fmt.Errorf("%s: %w; remove the file", filepath.Join(v.dir, "identity"), err)
		}
		return etcdpod.DataPresent, id.Member, nil
	}
	switch _, err := os.Stat(filepath.Join(v.dir, "intended")); {
	case err == nil:
		return etcdpod.DataIntended, 0, nil
	case errors.Is(err, fs.ErrNotExist):
		return etcdpod.DataNone, 0, nil
	default:
		return "", 0, err
	}
}

// intend writes that this member begins the cluster.
func (v volume) intend() error { return v.write("intended", nil) }

// identify writes whose data these are. From then on the member has voted, so that without its
// data it may not begin the cluster any more.
func (v volume) identify(id uint64) error {
	b, err := json.Marshal(struct{ Member uint64 }{id})
	if err != nil {
		return err
	}
	if err := remove(filepath.Join(v.dir, "intended")); err != nil {
		return err
	}
	return v.write("identity", b)
}

// prepare makes room for the data of a member that begins or joins. Data without a log of writes
// were never used.
func (v volume) prepare() error {
	return errors.Join(os.RemoveAll(v.data()), remove(filepath.Join(v.dir, "identity")))
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
	return errors.Join(remove(filepath.Join(v.dir, "identity")), remove(filepath.Join(v.dir, "intended")),
		syncDir(v.dir))
}

// write writes a file so that it is there after a crash, whole or not at all.
func (v volume) write(name string, b []byte) (err error) {
	if err := os.MkdirAll(v.dir, 0o700); err != nil {
		return err
	}
	temp := filepath.Join(v.dir, name+".part")
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(temp, filepath.Join(v.dir, name)); err != nil {
		return err
	}
	return errors.Join(syncDir(v.dir), syncDir(filepath.Dir(v.dir)))
}

// remove removes a file that may not be there.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
