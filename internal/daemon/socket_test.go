package daemon_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/internal/config"
	"github.com/flakelease/allocator/internal/daemon"
	"github.com/flakelease/allocator/internal/unixsocket"
)

// onSockets has c listen on sockets of a directory.
func onSockets(c config.Config, dir string) config.Config {
	c.Listen.GRPC, c.Listen.HTTP, c.Listen.RESP = "unix:"+dir+"/g", "unix:"+dir+"/h", "unix://"+dir+"/r"
	c.Listen.Socket.Mode = 0o640
	return c
}

// TestUnixSockets: a node with TLS and tokens on its ports serves all protocols on sockets, without
// TLS there; its logs and answers name the process that called; and its sockets go when it stops.
func TestUnixSockets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var c config.Config
	f := newFortress(t, func(own *config.Config) { *own = onSockets(*own, dir); c = *own })
	if got := f.Addresses(); got.GRPC != c.Listen.GRPC || got.AdvertisedGRPC != "" || got.AdvertisedHTTP != "" {
		t.Errorf("addresses %+v", got)
	}
	for _, name := range []string{"g", "h", "r"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	ctx := t.Context()
	token := f.tokens["issue"]
	cl, err := client.New(client.Options{Targets: []string{c.Listen.GRPC},
		Token: func(context.Context) (string, error) { return token, nil }})
	fatal.If(t, err)
	defer func() { _ = cl.Close() }()
	first, err := cl.Next(ctx)
	fatal.If(t, err)
	// The scope Admin is for the node's own machine where no token is needed; here the token lacks it.
	_, err = pb.NewAdminServiceClient(cl.Conn()).Drain(ctx, &pb.DrainRequest{})
	if refusal, ok := errors.AsType[*client.Refusal](err); !ok || refusal.Reason != client.PermissionDenied {
		t.Errorf("drain: %v (%v)", err, status.Code(err) == codes.PermissionDenied)
	}
	if me := fmt.Sprintf("from=uid:%d,pid:%d", os.Getuid(), os.Getpid()); !strings.Contains(f.Log.String(), me) {
		t.Errorf("the log does not say %s:\n%s", me, f.Log)
	}

	hc := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, "h"))
	}}}
	defer hc.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://any.name.example/v1/ids?after="+first.String(), nil)
	fatal.If(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := hc.Do(req)
	fatal.If(t, err)
	body, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if res.StatusCode != 200 {
		t.Errorf("HTTP: %s %s", res.Status, body)
	}

	conn, err := net.Dial("unix", filepath.Join(dir, "r"))
	fatal.If(t, err)
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(wait.Most))
	in := bufio.NewReader(conn)
	for send, want := range map[string]string{
		"AUTH " + token + "\r\nID.NEXT\r\n": "+OK\r\n$13\r\n",
	} {
		got := make([]byte, len(want))
		if _, err := io.WriteString(conn, send); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(in, got); err != nil || string(got) != want {
			t.Errorf("RESP: %q, %v", got, err)
		}
	}

	again := f.cfg
	again.Listen.Admin, again.Listen.Gossip = "127.0.0.1:0", "127.0.0.1:0"
	second, err := daemon.New(daemon.Config{Settings: again, Logger: slog.New(slog.DiscardHandler)})
	fatal.If(t, err)
	if err := second.Run(ctx); !errors.Is(err, unixsocket.ErrInUse) || !strings.Contains(err.Error(), "listen.grpc") {
		t.Errorf("a second node on the same sockets: %v", err)
	}
	if _, err := cl.Next(ctx); err != nil {
		t.Errorf("after the second one: %v", err)
	}
	fatal.If(t, f.Stop())
	for _, name := range []string{"g", "h", "r"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the stop: %s: %v", name, err)
		}
	}
}
