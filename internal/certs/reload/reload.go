// Package reload loads files again when they change: certificates, keys and tokens are
// replaced on disk while a node runs.
//
// Files are read every few seconds and compared by content. Watching directories would
// miss changes on network file systems, and would save nothing at this interval.
//
// Only regular files are read, up to 1 MiB and for a few seconds: a named pipe or a hanging
// mount in the place of a file is an error like any other, and delays no stop.
package reload

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Every is the interval of reading files. A new certificate or a revoked token takes effect
// within it.
const Every = 5 * time.Second

// Config has the files and the function that parses them.
type Config[T any] struct {
	What  string // for logs and errors, such as "tls"
	Files []File
	// Parse makes the value from the contents, in the order of Files. Its errors must
	// not quote secrets.
	Parse func(contents [][]byte) (T, error)
	// Problem, if set, returns what is wrong with a value that is used all the same, such
	// as a line that was skipped; nil: nothing.
	Problem func(T) error
	// Changed, if set, is called with each value after the first.
	Changed func(T)
	// Stale, if set, is called once when the files were not usable for longer than
	// StaleAfter, with the reason. Usable files are followed by Changed then, even if
	// they are those from before.
	Stale      func(error)
	StaleAfter time.Duration
	Logger     *slog.Logger // nil: slog.Default
}

// Value is the last valid value of the files. All methods are safe for concurrent use.
type Value[T any] struct {
	cfg     Config[T]
	now     atomic.Pointer[T]
	reloads atomic.Int64
	failing atomic.Bool
	again   chan struct{} // asks Run for a check

	mu      sync.Mutex // guards the rest; held while files are read, since only Check locks it
	files   reader
	sum     [sha256.Size]byte // The contents in use have this hash.
	usable  time.Time         // when the files were last usable
	stale   bool              // Stale was called since
	problem string            // last logged
	exposed []string          // by file, as logged
}

// New reads the files and makes the first value. It returns the error of the first file
// that cannot be read, or that of Parse.
func New[T any](cfg Config[T]) (*Value[T], error) {
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	v := &Value[T]{cfg: cfg, files: reader{files: cfg.Files}, again: make(chan struct{}, 1), usable: time.Now()}
	c := v.files.read(context.Background())
	if c.err != nil {
		return nil, c.err
	}
	made, err := cfg.Parse(c.files)
	if err != nil {
		return nil, err
	}
	v.warn(c.exposed)
	v.sum = c.sum
	v.now.Store(&made)
	v.report(v.problemOf(made), "files loaded, but parts of them are ignored; correct the files")
	return v, nil
}

// Get returns the value. It reads no file.
func (v *Value[T]) Get() T { return *v.now.Load() }

// Failing reports whether something is wrong with the current files: the value of older
// ones stays in use, or a part of them is ignored.
func (v *Value[T]) Failing() bool { return v.failing.Load() }

// Reloads returns how often the value was replaced.
func (v *Value[T]) Reloads() int64 { return v.reloads.Load() }

// Reload makes Run check the files now. It does not wait.
func (v *Value[T]) Reload() {
	select {
	case v.again <- struct{}{}:
	default:
	}
}

// Run checks the files at each interval until ctx ends, and returns nil then.
func (v *Value[T]) Run(ctx context.Context) error {
	tick := time.NewTicker(Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-v.again:
		}
		v.check(ctx)
	}
}

// Check reads the files now. Unusable files change only Failing, unless they are stale, and
// are logged once.
func (v *Value[T]) Check() { v.check(context.Background()) }

func (v *Value[T]) check(ctx context.Context) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := v.files.settled(ctx, v.sum)
	if ctx.Err() != nil {
		return
	}
	if c.err == nil {
		v.warn(c.exposed)
	}
	made, err := v.Get(), c.err
	changed := err == nil && (c.sum != v.sum || v.stale)
	if changed {
		made, err = v.cfg.Parse(c.files)
	}
	if err != nil {
		v.unusable(err)
		return
	}
	v.usable, v.stale = time.Now(), false
	if changed {
		v.sum, v.problem = c.sum, ""
		v.now.Store(&made)
		if v.cfg.Changed != nil {
			v.cfg.Changed(made)
		}
		v.reloads.Add(1)
		v.cfg.Logger.Info("files reloaded", "what", v.cfg.What)
	}
	v.report(v.problemOf(made), "files reloaded, but parts of them are ignored; correct the files")
}

// warn logs each file whose mode has come to give others too much.
func (v *Value[T]) warn(exposed []string) {
	for i, who := range exposed {
		if who != "" && (v.exposed == nil || v.exposed[i] != who) {
			v.cfg.Files[i].warn(v.cfg.Logger, who)
		}
	}
	v.exposed = exposed
}

// unusable handles files without a valid value.
func (v *Value[T]) unusable(err error) {
	age := time.Since(v.usable)
	if v.cfg.Stale != nil && age > v.cfg.StaleAfter && !v.stale {
		v.stale = true
		v.cfg.Stale(err)
		v.cfg.Logger.Error("previous contents of the files withdrawn: the files have not been usable for too long; "+
			"correct the files",
			"what", v.cfg.What, "for", age.Round(time.Second), "limit", v.cfg.StaleAfter, "error", err)
	}
	switch {
	case v.stale:
		v.failing.Store(true)
		v.problem = err.Error() // logged as withdrawn
		return
	case errors.Is(err, errChanging):
		return // the next check finds them complete
	}
	v.report(err, "files not reloaded: they are not usable, and the previous contents stay in use; correct the files")
}

func (v *Value[T]) problemOf(made T) error {
	if v.cfg.Problem == nil {
		return nil
	}
	return v.cfg.Problem(made)
}

// report sets Failing, and logs a problem once.
func (v *Value[T]) report(err error, message string) {
	v.failing.Store(err != nil)
	switch {
	case err == nil && v.problem != "":
		v.problem = ""
		v.cfg.Logger.Info("files are usable again: nothing is wrong with what they have now", "what", v.cfg.What)
	case err == nil:
	case v.problem != err.Error():
		v.problem = err.Error()
		v.cfg.Logger.Error(message, "what", v.cfg.What, "error", err)
	}
}
