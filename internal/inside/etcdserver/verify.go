package etcdserver

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// Open reads every page and every record of a snapshot.
func Open(file string) (size, revision int64, keys int, err error) {
	s := snapshot.Status{}
	if err = complete(file); err == nil {
		s, err = snapshot.NewV3(zap.NewNop()).Status(file)
	}
	if err != nil {
		err = fmt.Errorf("%s is no database of etcd, or is damaged: %w", file, err)
	}
	return s.TotalSize, s.Revision, s.TotalKey, err
}

// complete reads all records of a database first, since damage that etcd's own check comes upon may end the process:
// a page behind the end of the file, or one that is not where another says. No check would end on a page below itself.
func complete(file string) (err error) {
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
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if found := recover(); found != nil {
			err = fmt.Errorf("%v", found)
		}
	}()
	return db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("it ends after %d of %d bytes", info.Size(), tx.Size())
		}
		size := db.Info().PageSize
		once(f, size, make([]bool, tx.Size()/int64(size)), int(tx.Cursor().Bucket().Root()))
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(key, value []byte) error {
				_, err := fmt.Fprintf(io.Discard, "%s%s", key, value)
				return err
			})
		})
	})
}

// once panics if a page is damaged or was seen, of the one with an ID and those below it.
func once(f *os.File, size int, seen []bool, id int) {
	number := func(b []byte) int { return int(binary.NativeEndian.Uint32(b)) }
	read := func(pages int) []byte {
		page := make([]byte, pages*size)
		if _, err := f.ReadAt(page, int64(id)*int64(size)); err != nil {
			panic(err)
		}
		return page
	}
	if seen[id] {
		panic(fmt.Sprintf("page %d is in it twice", id))
	}
	seen[id] = true
	page := read(len(seen[id : id+1+number(read(1)[12:])])) // It may go on in the pages behind it.
	for i := range int(binary.NativeEndian.Uint16(page[10:])) {
		const branch, leaf, bucket = 1, 2, 1
		e := page[16*(i+1):] // The head and each element have 16 bytes.
		switch kind := page[8]; {
		case kind == branch:
			once(f, size, seen, int(binary.NativeEndian.Uint64(e[8:])))
		case kind == leaf && number(e) == bucket:
			root := binary.NativeEndian.Uint64(e[number(e[4:])+number(e[8:]):])
			if root != 0 { // else it has its page in its value
				once(f, size, seen, int(root))
			}
		}
	}
}

// Try restores a member from a snapshot, starts it, and returns the space that it has. Nobody else can call the
// member, which needs no password of the snapshot's users, and is gone when Try returns.
func Try(ctx context.Context, file string, checked bool, root, space string) (v lease.View, err error) {
	const peer = "http://localhost:2380" // Nobody listens there.
	dir, err := os.MkdirTemp("", "snapshot-")
	if err != nil {
		return v, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	data := filepath.Join(dir, "etcd")
	d := member.Data{Host: "snapshot", Peer: peer, Initial: "snapshot=" + peer, Token: "snapshot"}
	if err = Restore(file, checked, d, data); err != nil {
		return v, fmt.Errorf("restore %s: %w", file, err)
	}
	cfg, err := config(member.Run{Name: d.Host, Client: "unix://" + filepath.Join(dir, "clients"), Peer: peer,
		IP: "127.0.0.1", Initial: d.Initial, Token: d.Token}, data)
	if err != nil {
		return v, err
	}
	cfg.UnsafeNoFsync = true
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger(slog.NewTextHandler(os.Stderr, nil), zap.PanicLevel))
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return v, fmt.Errorf("start a member from %s: %w", file, err)
	}
	defer etcd.Close()
	select {
	case <-etcd.Server.ReadyNotify():
	case <-ctx.Done():
		return v, fmt.Errorf("start a member from %s: %w", file, ctx.Err())
	}
	etcd.Server.AuthStore().AuthDisable()
	client := v3client.New(etcd.Server)
	defer client.Close()
	store, err := etcdstore.New(client, root, space)
	if err != nil {
		return v, err
	}
	return store.Load(ctx)
}
