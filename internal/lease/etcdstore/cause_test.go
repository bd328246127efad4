package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/clock"
)

// A call that ends with its deadline states why nothing answered.
func TestDeadlineNamesItsCause(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secret := httptest.NewUnstartedServer(http.NotFoundHandler())
	secret.Config.ErrorLog = log.New(io.Discard, "", 0)
	secret.StartTLS()
	defer secret.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	fatal.If(t, closed.Close())
	// etcd ends a connection that begins with TLS where it speaks without.
	clear, err := net.Listen("tcp", "127.0.0.1:0")
	fatal.If(t, err)
	defer clear.Close()
	go func() {
		for {
			conn, err := clear.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 64<<10))
			_ = conn.Close()
		}
	}()
	for name, c := range map[string]struct{ endpoint, want string }{
		"closed port": {"http://" + closed.Addr().String(), "connection refused"},
		"web server":  {plain.URL, "no client port of etcd"},
		"no TLS":      {"https://" + clear.Addr().String(), "servers without TLS"},
		"TLS":         {"http://" + secret.Listener.Addr().String(), "uses TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := Dial(Config{Endpoints: []string{c.endpoint}})
			fatal.If(t, err)
			defer client.Close()
			s, err := New(client, "allocator", "default")
			fatal.If(t, err)
			names := func(err error) error { // Until an attempt to connect has ended there is no cause.
				if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), c.want) {
					return fmt.Errorf("%v, want %q", err, c.want)
				}
				return nil
			}
			wait.NoError(t, "Load names its cause", func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				_, err := s.Load(ctx)
				return names(err)
			})
			wait.NoError(t, "Members names its cause", func() error {
				return names((&Group{client}).Members(t.Context(), clock.NewSystem(nil))[0].Err)
			})
		})
	}
}
