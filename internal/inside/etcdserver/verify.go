package etcdserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/internal/inside/member"
)

// Open reads every page and every record of a snapshot.
func Open(file string) (size, revision int64, keys int, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if found := recover(); found != nil {
			err = fmt.Errorf("%v", found)
		}
		if err != nil {
			err = fmt.Errorf("%s is no database of etcd, or is damaged: %w", file, err)
		}
	}()
	if err = complete(file); err != nil {
		return 0, 0, 0, err
	}
	s, err := snapshot.NewV3(zap.NewNop()).Status(file)
	return s.TotalSize, s.Revision, s.TotalKey, err
}

// complete reads all pages of a database first, and panics where a page is damaged. Etcd's own check reads them in
// goroutines of bbolt, where a panic or a page behind the end of the file ends the process, and never ends on a page
// below itself.
func complete(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	db, err := bbolt.Open(file, 0o400, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("it ends after %d of %d bytes", info.Size(), tx.Size())
		}
		size := db.Info().PageSize
		w := walk{f, size, make([]bool, tx.Size()/int64(size))}
		w.free(tx.ID())
		w.tree(uint64(tx.Cursor().Bucket().Root()), nil, nil)
		return nil
	})
}

// walk reads the pages of a database of bbolt from its file, and panics if one is damaged.
type walk struct {
	file *os.File
	size int    // bytes of a page
	seen []bool // by the ID of a page
}

func number32(b []byte) int    { return int(binary.NativeEndian.Uint32(b)) }
func number64(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }

const (
	branch, leaf, freelist = 1, 2, 16 // kinds of pages
	bucket                 = 1        // a bit of elements of leaves
)

// page returns a page, whose kind is among those given, with the number of its elements. A long page goes on in the
// pages behind it. It begins with a head of 16 bytes: ID, kind, elements, pages behind it.
func (w walk) page(id uint64, kinds ...uint16) (page []byte, kind uint16, elements int) {
	head := make([]byte, 16)
	w.read(head, id)
	kind = binary.NativeEndian.Uint16(head[8:])
	if own := number64(head); own != id || !slices.Contains(kinds, kind) {
		panic(fmt.Sprintf("page %d is damaged: it says that it is page %d of kind %d", id, own, kind))
	}
	pages := uint64(1 + number32(head[12:]))
	if left := uint64(len(w.seen)) - id; pages > left {
		panic(fmt.Sprintf("page %d is damaged: it has %d pages, and %d are left", id, pages, left))
	}
	for i := range pages {
		w.take(id + i)
	}
	page = make([]byte, int(pages)*w.size)
	w.read(page, id)
	return page, kind, int(binary.NativeEndian.Uint16(head[10:]))
}

func (w walk) read(to []byte, id uint64) {
	if id >= uint64(len(w.seen)) {
		panic(fmt.Sprintf("page %d is behind the last one", id))
	}
	if _, err := w.file.ReadAt(to, int64(id)*int64(w.size)); err != nil {
		panic(err)
	}
}

// take marks a page as seen.
func (w walk) take(id uint64) {
	if w.seen[id] {
		panic(fmt.Sprintf("page %d is in it twice", id))
	}
	w.seen[id] = true
}

// free takes the pages of metadata, and those that transaction tx lists as free. Etcd itself writes no such list.
func (w walk) free(tx int) {
	for meta := range uint64(2) {
		w.take(meta)
		page := make([]byte, w.size)
		w.read(page, meta)
		id := number64(page[48:])
		if number64(page[64:]) != uint64(tx) || id == math.MaxUint64 {
			continue
		}
		list, _, elements := w.page(id, freelist)
		list = list[16:]
		if elements == math.MaxUint16 {
			elements, list = int(number64(list)), list[8:]
		}
		for i := range elements {
			w.take(number64(list[8*i:]))
		}
	}
}

// tree takes a page and those below it, and returns the last key. All keys are in order, from least on and below
// limit; nil: any.
func (w walk) tree(id uint64, least, limit []byte) (last []byte) {
	page, kind, n := w.page(id, branch, leaf)
	last = least
	for i := range n {
		key, value := element(page, kind, i)
		order := bytes.Compare(last, key)
		if order > 0 || order == 0 && i > 0 || limit != nil && bytes.Compare(key, limit) >= 0 {
			panic(fmt.Sprintf("page %d is damaged: key %d is not in order", id, i))
		}
		last = key
		e := page[16*(i+1):]
		switch {
		case kind == branch:
			next := limit
			if i+1 < n {
				next, _ = element(page, kind, i+1)
			}
			last = w.tree(number64(e[8:]), key, next)
		case number32(e)&bucket == 0:
		case number64(value) != 0:
			w.tree(number64(value), nil, nil)
		default: // The value is the only page of that bucket.
			page := value[16:]
			if number64(page) != 0 || binary.NativeEndian.Uint16(page[8:]) != leaf {
				panic(fmt.Sprintf("page %d is damaged: the bucket of key %d has no leaf", id, i))
			}
			for i := range int(binary.NativeEndian.Uint16(page[10:])) {
				element(page, leaf, i)
			}
		}
	}
	return last
}

// element returns the key and the value of an element of a page; a branch has no values. It panics if they are not in
// the page.
func element(page []byte, kind uint16, i int) (_, value []byte) {
	e := page[16*(i+1):] // Elements have 16 bytes, with the place of the key from there on.
	if kind == branch {
		return e[number32(e):][:number32(e[4:])], nil
	}
	key, keyLen, valueLen := e[number32(e[4:]):], number32(e[8:]), number32(e[12:])
	return key[:keyLen], key[keyLen:][:valueLen:valueLen]
}

// Try restores a member from a snapshot, starts it, and calls look with its URL. Nobody else can call the member, which
// needs no password of the snapshot's users, and is gone when Try returns.
func Try(ctx context.Context, file string, checked bool, look func(endpoint string) error) error {
	dir, err := os.MkdirTemp("", "snapshot-")
	if err != nil {
		return fmt.Errorf("a directory to restore it in: %w: set TMPDIR to one that can be written", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	alone := Alone{Dir: filepath.Join(dir, "etcd"), NoSync: true, NoUsers: true, Run: member.Run{
		Client: "unix://" + filepath.Join(dir, "clients"), Peer: "http://localhost:2380"}} // Nobody listens there.
	d := member.Data{Host: name, Peer: alone.Run.Peer, Initial: name + "=" + alone.Run.Peer, Token: name}
	if err = Restore(file, checked, d, alone.Dir); err != nil {
		return fmt.Errorf("restore %s: %w", file, err)
	}
	s, err := Start(ctx, alone)
	if err != nil {
		return fmt.Errorf("start a member from %s: %w", file, err)
	}
	defer func() { _ = s.Close() }()
	return look(s.Endpoint())
}
