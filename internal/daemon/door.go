package daemon

import (
	"net"
	"sync"
	"sync/atomic"
)

// door is a listener that keeps so many connections and no more. One too many is
// closed at once: its client learns that now, and asks another node, where a
// place in a queue would leave it waiting for an answer that may never come.
type door struct {
	net.Listener
	most    int64 // 0: no limit
	open    atomic.Int64
	refused atomic.Int64
}

func newDoor(l net.Listener, most int) *door {
	return &door{Listener: l, most: int64(most)}
}

// Accept returns the next connection that there is room for.
func (d *door) Accept() (net.Conn, error) {
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if n := d.open.Add(1); d.most == 0 || n <= d.most {
			return &guest{Conn: c, door: d}, nil
		}
		d.open.Add(-1)
		d.refused.Add(1)
		_ = c.Close()
	}
}

// guest is a connection that a door counts until it is closed.
type guest struct {
	net.Conn
	door *door
	once sync.Once
}

// Close closes the connection and makes room for another.
func (g *guest) Close() error {
	g.once.Do(func() { g.door.open.Add(-1) })
	return g.Conn.Close()
}
