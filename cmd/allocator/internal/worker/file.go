//go:build linux

package worker

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/flakelease/allocator/internal/durable"
)

// The file of a worker: little-endian, and fixed but for notAfterAt, which is stored
// atomically. docs/reference/worker-file.md has the layout.
const (
	fileMagic  = "ALLOCWK1"
	fileSize   = 64
	notAfterAt = 32
	splitBits  = 5 // worker_id has this many bits in Twitter's layout; the rest is datacenter_id.
	splitMask  = 1<<splitBits - 1
)

// held is what the file of a worker says.
type held struct {
	Worker       int64 `json:"worker"`
	Term         int64 `json:"term"`
	NotBefore    int64 `json:"not_before_unix_ms"`
	NotAfter     int64 `json:"not_after_unix_ms"` // 0: the worker must stop
	DatacenterID int64 `json:"datacenter_id"`
	WorkerID     int64 `json:"worker_id"`
}

// split sets the two fields that Twitter's generator has for the number.
func (h held) split() held {
	h.DatacenterID, h.WorkerID = h.Worker>>splitBits, h.Worker&splitMask
	return h
}

func (h held) encode() []byte {
	b := make([]byte, 0, fileSize)
	b = append(b, fileMagic...)
	for _, v := range []int64{h.Worker, h.Term, h.NotBefore, h.NotAfter, 0, h.DatacenterID, h.WorkerID} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}

// errFile says that a file is not one of a worker.
var errFile = errors.New("is not the file of a worker")

func decode(b []byte) (held, error) {
	if len(b) != fileSize || string(b[:len(fileMagic)]) != fileMagic {
		return held{}, errFile
	}
	field := func(at int) int64 { return int64(binary.LittleEndian.Uint64(b[at:])) }
	return held{
		Worker:       field(8),
		Term:         field(16),
		NotBefore:    field(24),
		NotAfter:     field(notAfterAt),
		DatacenterID: field(48),
		WorkerID:     field(56),
	}, nil
}

// readFile reads the file of a worker, or enough of another one to see that it is none.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, fileSize+1))
}

// file is the file of a worker that is held.
type file struct {
	path string
	own  string // a directory that was made for it; "": none
	mem  []byte // The file is mapped here; nil after remove.
}

// createFile writes the file. path "" is one in a new directory. A file that is there is
// replaced: programs that have mapped it keep the old one.
func createFile(path string, h held) (*file, error) {
	f := &file{path: path}
	if path == "" {
		dir, err := os.MkdirTemp("", "allocator-worker-")
		if err != nil {
			return nil, err
		}
		f.own, f.path = dir, filepath.Join(dir, "worker")
	}
	if err := f.create(h); err != nil {
		f.remove()
		return nil, fmt.Errorf("--file: %w", err)
	}
	return f, nil
}

// create gives others than its user the right to read: the interval is no secret, and a sidecar has another user.
func (f *file) create(h held) error {
	return durable.Replace(f.path, 0o644, func(to *os.File) (err error) {
		if _, err = to.Write(h.encode()); err != nil {
			return err
		}
		f.mem, err = unix.Mmap(int(to.Fd()), 0, fileSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		return os.NewSyscallError("mmap", err)
	})
}

// set stores not_after.
func (f *file) set(notAfter int64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(notAfter))
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&f.mem[notAfterAt])), binary.NativeEndian.Uint64(b[:]))
}

// remove stops the readers of the file, and removes it.
func (f *file) remove() {
	if f.mem != nil {
		f.set(0)
		_ = unix.Munmap(f.mem)
		f.mem = nil
		_ = os.Remove(f.path)
	}
	if f.own != "" {
		_ = os.RemoveAll(f.own)
	}
}
