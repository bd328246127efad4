package respserver_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/servertest"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/access"
)

// FuzzConnection: whatever a client sends, and however it is cut, it is answered
// with well-formed replies, and its connection ends when it leaves. An
// unauthenticated client gets no ID.
func FuzzConnection(f *testing.F) {
	tokens, _ := servertest.Tokens(f, "admin")
	next := "*1\r\n$7\r\nID.NEXT\r\n"
	f.Add([]byte(next+next+"PING\r\n"+next+"ID.NEXT COUNT 3 FORMAT uuid\r\n"), 7, false)
	f.Add([]byte("HELLO 3\r\nAUTH a b\r\n"+next+"RESET\r\nHGET id next\r\nHELLO 3 AUTH a b\r\n"+next+"HGET id ulid\r\n"), 50, true)
	f.Add([]byte("COMMAND\r\nINFO\r\nCLIENT SETNAME x\r\nCLIENT GETNAME\r\nID.DECODE 5 KIND int\r\nID.STATUS\r\nQUIT\r\n"+next), 3, false)
	f.Add([]byte("ID.NEXT COUNT 10000 FORMAT uuid\r\nID.NEXT AFTER 0000000000001\r\nECHO \x00\r\nINCR x\r\n*1\r\n$-1\r\n"), 1000, false)
	f.Fuzz(func(t *testing.T, in []byte, size int, guarded bool) {
		here, there := net.Pipe()
		p := &pipe{conn: make(chan net.Conn, 1), ended: make(chan struct{})}
		p.conn <- there
		var guard *access.Guard
		if guarded {
			guard = access.New(access.Config{Tokens: tokens})
		}
		w := newGuardedFixture(t, guard)
		ended := make(chan error, 1)
		go func() { ended <- w.listener.Serve(p) }()
		read := make(chan error, 1)
		go func() {
			c := newClient(t, here)
			for {
				if _, err := c.read(); err != nil {
					read <- err
					return
				}
			}
		}()
		size = min(max(size, 1), 5000)
		for len(in) > 0 {
			n := min(size, len(in))
			if _, err := here.Write(in[:n]); err != nil {
				break // the server has closed the connection
			}
			in = in[n:]
		}
		// No more input: all requests are answered, and the connection ends.
		_ = there.SetReadDeadline(time.Unix(0, 1))
		if err := <-read; err != io.EOF {
			t.Errorf("the answer ends in %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
		defer cancel()
		if err := w.listener.Shutdown(ctx); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		<-ended
		if n := w.node.Stats().Issued; guarded && n != 0 {
			t.Errorf("an unauthenticated client got %d IDs", n)
		}
	})
}
