package dev

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/server/console"
	"github.com/flakelease/allocator/internal/server/httpserver"
)

// devConsolePort is where the console is, unless another program has the port.
const devConsolePort = 7950

// listen opens the port of the console: a port of its own, since a page that a node
// serves is gone when that node is paused or killed.
func (d *dev) listen(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	port := devConsolePort
	if d.httpPort == 0 {
		port = 0
	}
	l, err := lc.Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		if l, err = lc.Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
	}
	d.console = "http://" + l.Addr().String() + console.Path
	return l, nil
}

// servePages serves the console of the first node that runs.
func (d *dev) servePages(ctx context.Context, l net.Listener) error {
	nobody := console.New(console.Config{Format: d.space, Break: d})
	var first sync.Once
	pages := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first.Do(func() { close(d.wanted) })
		if r.URL.Path == "/" {
			http.Redirect(w, r, console.Path+"break", http.StatusSeeOther)
			return
		}
		for _, m := range d.members {
			if one := m.healthy(); one != nil {
				one.Console().ServeHTTP(w, r)
				return
			}
		}
		nobody.ServeHTTP(w, r)
	})
	s := httpserver.NewServer(httpserver.NewHosts().Handler(pages), cli.Logger(d.log(), d.Err))
	stop := context.AfterFunc(ctx, func() {
		within, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = s.Shutdown(within)
		_ = s.Close()
	})
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
