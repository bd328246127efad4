package etcdserver

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/dev/loopback"
	"github.com/flakelease/allocator/internal/inside/member"
)

func dial(t *testing.T, s *Server) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Endpoint()}, Logger: zap.NewNop()})
	fatal.If(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func TestRestartKeepsDataAndAddress(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*wait.Most)
	defer cancel()
	s, err := Start(ctx, Alone{NoSync: true})
	fatal.If(t, err)
	defer s.Close()
	c := dial(t, s)
	if _, err := c.Put(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}
	watch := c.Watch(ctx, "k", clientv3.WithCreatedNotify()) // must not hold the stop up
	<-watch
	endpoint := s.Endpoint()
	for _, at := range []string{s.cfg.Run.Client, s.cfg.Run.Peer} {
		port, err := strconv.Atoi(at[strings.LastIndexByte(at, ':')+1:])
		fatal.If(t, err)
		if port < 10_000 || port >= 20_000 {
			t.Errorf("port %d is not of %s: an outgoing connection can take it while the server is stopped", port, loopback.Range)
		}
	}
	if err := s.Restart(ctx); !errors.Is(err, ErrStart) {
		t.Errorf("restart of a running server: got %v, want ErrStart", err)
	}

	began := time.Now()
	s.Stop()
	s.Stop()
	if took := time.Since(began); took > wait.Most { // the watch itself lasts as long as ctx
		t.Errorf("stop with an open watch took %v, want it not to wait for the watch", took)
	}
	if s.Failed() != nil {
		t.Error("a stopped server has a failure channel")
	}
	if _, err := net.DialTimeout("tcp", strings.TrimPrefix(endpoint, "http://"), time.Second); err == nil {
		t.Error("stopped server accepts connections")
	}

	fatal.If(t, s.Restart(ctx))
	if s.Endpoint() != endpoint {
		t.Errorf("endpoint after restart: got %s, want %s", s.Endpoint(), endpoint)
	}
	r, err := c.Get(ctx, "k")
	if err != nil || len(r.Kvs) != 1 || string(r.Kvs[0].Value) != "v" {
		t.Errorf("get after restart: got %v, %v, want the value put before", r, err)
	}
	if _, err := c.Put(ctx, "k", "w"); err != nil {
		t.Fatal(err)
	}
	select {
	case w := <-watch:
		if len(w.Events) == 0 {
			t.Errorf("watch after restart: got %+v, want an event", w)
		}
	case <-ctx.Done():
		t.Error("watch did not survive the restart")
	}

	dir := s.cfg.Dir
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("temporary directory after close: got %v, want it gone", err)
	}
	if err := s.Restart(ctx); !errors.Is(err, ErrStart) {
		t.Errorf("restart of a closed server: got %v, want ErrStart", err)
	}
}

func TestStartRefuses(t *testing.T) {
	l, err := net.Listen("tcp", loopback.Any)
	fatal.If(t, err)
	defer l.Close()
	file := filepath.Join(t.TempDir(), "file")
	fatal.If(t, os.WriteFile(file, nil, 0o600))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	for _, tc := range []struct {
		name string
		ctx  context.Context
		cfg  Alone
	}{
		{"port taken", t.Context(), Alone{Run: member.Run{Client: "http://" + l.Addr().String()}}},
		{"directory is a file", t.Context(), Alone{Dir: file}},
		{"cancelled", cancelled, Alone{NoSync: true}},
		{"deadline", late, Alone{NoSync: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := Start(tc.ctx, tc.cfg)
			if !errors.Is(err, ErrStart) {
				t.Errorf("got %v, want ErrStart", err)
			}
			if s != nil {
				t.Error("got a server along with the error")
				s.Close()
			}
		})
	}
}
