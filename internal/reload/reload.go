// Package reload loads files again when they change: certificates, keys and tokens are
// replaced on disk while a node runs.
//
// Files are read every few seconds and compared by content. Watching directories would
// miss changes on network file systems, and would save nothing at this interval.
package reload

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Every is the interval of reading files. A new certificate or a revoked token takes effect
// within it. Gossip keys have the same interval.
const Every = 5 * time.Second

// maxFile is the maximum size of a file, in bytes. A hundred authorities take a tenth of
// it.
const maxFile = 1 << 20

// Config has the files and the function that parses them.
type Config[T any] struct {
	What string // for logs and errors, such as "tls"
	// Files are paths; "" means no file, with nil as its contents.
	Files []string
	// Parse makes the value from the contents, in the order of Files. Its errors must
	// not quote secrets.
	Parse func(contents [][]byte) (T, error)
	// Changed, if set, is called with each value after the first.
	Changed func(T)
	Logger  *slog.Logger // nil: slog.Default
}

// Value is the last valid value of the files. All methods are safe for concurrent use.
type Value[T any] struct {
	cfg     Config[T]
	now     atomic.Pointer[T]
	reloads atomic.Int64
	failing atomic.Bool
	mu      sync.Mutex        // guards the rest; held while files are read, since only Check locks it
	sum     [sha256.Size]byte // of the contents in use
	problem string            // last logged
}

// New reads the files and makes the first value. It returns the error of the first file
// that cannot be read, or that of Parse.
func New[T any](cfg Config[T]) (*Value[T], error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	v := &Value[T]{cfg: cfg}
	contents, sum, err := v.read()
	if err != nil {
		return nil, err
	}
	made, err := cfg.Parse(contents)
	if err != nil {
		return nil, err
	}
	v.sum = sum
	v.now.Store(&made)
	return v, nil
}

// Get returns the value. It reads no file.
func (v *Value[T]) Get() T { return *v.now.Load() }

// Failing reports whether the current files are invalid, so that the value of older ones
// stays in use.
func (v *Value[T]) Failing() bool { return v.failing.Load() }

// Reloads returns how often the value was replaced.
func (v *Value[T]) Reloads() int64 { return v.reloads.Load() }

// Run checks the files at each interval until ctx ends, and returns nil then.
func (v *Value[T]) Run(ctx context.Context) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			v.Check()
		}
	}
}

// Check reads the files now. Invalid files change only Failing, and are logged once.
func (v *Value[T]) Check() {
	v.mu.Lock()
	defer v.mu.Unlock()
	contents, sum, err := v.read()
	if err == nil && sum == v.sum {
		v.failing.Store(false)
		v.problem = ""
		return
	}
	var made T
	if err == nil {
		made, err = v.cfg.Parse(contents)
	}
	if err != nil {
		v.failing.Store(true)
		if v.problem != err.Error() {
			v.problem = err.Error()
			v.cfg.Logger.Error("files not reloaded: they are invalid, and the previous contents stay in use; correct the files", "what", v.cfg.What, "error", err)
		}
		return
	}
	v.sum, v.problem = sum, ""
	v.now.Store(&made)
	if v.cfg.Changed != nil {
		v.cfg.Changed(made)
	}
	v.reloads.Add(1)
	v.failing.Store(false)
	v.cfg.Logger.Info("files reloaded", "what", v.cfg.What)
}

// read returns the contents and a hash of all of them. Only the hash is kept for the next
// comparison, so that a private key is not in memory twice.
func (v *Value[T]) read() (contents [][]byte, sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, path := range v.cfg.Files {
		var b []byte
		if path != "" {
			if b, err = readFile(path); err != nil {
				return nil, sum, err
			}
		}
		contents = append(contents, b)
		_ = binary.Write(h, binary.BigEndian, int64(len(b))) // never fails on a hash
		h.Write(b)
	}
	h.Sum(sum[:0])
	return contents, sum, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes: check that it is the right file", path, maxFile)
	}
	return b, err
}
