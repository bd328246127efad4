package etcdserver

import (
	"context"
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
// a page behind the end of the file, or one that is not where another says.
func complete(file string) (err error) {
	info, err := os.Stat(file)
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
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(key, value []byte) error {
				_, err := fmt.Fprintf(io.Discard, "%s%s", key, value)
				return err
			})
		})
	})
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
