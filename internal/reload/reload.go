// Package reload keeps what was made from files true to them: certificates, keys
// and tokens are replaced on disk while a node runs.
//
// Files are read every few seconds and compared by content. Watching directories
// instead would miss network file systems, and save nothing at this pace.
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

// Every is how often files are read: a new certificate or a revoked token
// takes effect within it. It is the pace of the gossip keys too.
const Every = 5 * time.Second

// maxFile is the most that a file may have, in bytes: some hundred authorities
// are a tenth of it.
const maxFile = 1 << 20

// Config says what is made from which files.
type Config[T any] struct {
	What string // for logs and errors, such as "tls"
	// Files are paths; "" is no file, and its content nil.
	Files []string
	// Parse makes the value of the files' contents, in the order of Files. Its
	// errors must not quote what is secret.
	Parse func(contents [][]byte) (T, error)
	// Changed, if set, is told of each new value but the first.
	Changed func(T)
	Logger  *slog.Logger // nil: slog.Default
}

// Value is what was last made from files that could be used. All methods are
// safe for concurrent use.
type Value[T any] struct {
	cfg     Config[T]
	now     atomic.Pointer[T]
	reloads atomic.Int64
	failing atomic.Bool
	mu      sync.Mutex        // guards the rest, and is held while files are read: nobody else waits for it
	sum     [sha256.Size]byte // of the contents in use
	problem string            // last told
}

// New reads the files and makes the first value. It starts nothing. It returns
// the first file's error, or that of Parse.
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

// Failing reports whether the files cannot be used as they are now, so that what
// was made of older ones stays in use.
func (v *Value[T]) Failing() bool { return v.failing.Load() }

// Reloads returns how often the value was replaced.
func (v *Value[T]) Reloads() int64 { return v.reloads.Load() }

// Run looks at the files again and again until ctx ends, and returns nil then.
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

// Check looks at the files now. Those that cannot be used change nothing but
// Failing, and are logged once.
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
			v.cfg.Logger.Error("files not reloaded, what was read before stays in use", "what", v.cfg.What, "error", err)
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

// read returns the contents and a hash of them all. The hash is kept in their
// place, so that a private key is not in memory twice.
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
		_ = binary.Write(h, binary.BigEndian, int64(len(b))) // a hash takes everything
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
		err = fmt.Errorf("%s: more than %d bytes", path, maxFile)
	}
	return b, err
}
