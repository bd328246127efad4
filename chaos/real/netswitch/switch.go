package netswitch

import (
	"container/heap"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	mtu = 9000 // bytes; larger packets carry more, and smaller ones spread loss better

	// maxLate bounds the packets that wait to be due: at 9 kB each, 150 MB.
	maxLate = 16 << 10
)

// Switch carries packets between hosts. It is safe for concurrent use.
type Switch struct {
	seed   uint64
	routes atomic.Pointer[map[[4]byte]*Host]
	strays atomic.Uint64 // packets without a known receiver or format
	lost   atomic.Uint64 // packets that could not be delivered
	wg     sync.WaitGroup
	late   *late

	mu     sync.Mutex // guards the fields below, the wires of hosts, and the lists of faults against other writers
	hosts  []*Host
	closed bool
}

// Host is a network namespace with an address. It is safe for concurrent use.
type Host struct {
	Name string

	s      *Switch
	index  int
	addr   [4]byte
	device io.ReadWriteCloser
	wires  atomic.Pointer[[]*wire] // indexed by host
	place
}

// New returns a switch without hosts. It costs nothing until one is added.
//
// It returns ErrUnsupported as Supported does.
func New(seed uint64) (*Switch, error) {
	if err := Supported(); err != nil {
		return nil, err
	}
	return newSwitch(seed), nil
}

func newSwitch(seed uint64) *Switch {
	s := &Switch{seed: seed}
	s.routes.Store(&map[[4]byte]*Host{})
	s.late = &late{wake: make(chan struct{}, 1), quit: make(chan struct{})}
	s.wg.Go(func() { s.late.run(s.deliver) })
	return s
}

// AddHost makes a host that can reach all others, and be reached.
func (s *Switch) AddHost(name string) (*Host, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	n := len(s.hosts) + 1
	if n >= 1<<16-1 {
		return nil, fmt.Errorf("netswitch: %d hosts are enough", n-1)
	}
	h := &Host{Name: name, s: s, index: len(s.hosts), addr: [4]byte{10, 77, byte(n >> 8), byte(n)}}
	if err := h.open(); err != nil {
		return nil, fmt.Errorf("netswitch: host %s: %w", name, err)
	}
	s.join(h)
	return h, nil
}

// join connects a host whose device is open. s.mu is held.
func (s *Switch) join(h *Host) {
	s.hosts = append(s.hosts, h)
	routes := map[[4]byte]*Host{}
	for _, from := range s.hosts {
		routes[from.addr] = from
		var wires []*wire
		if old := from.wires.Load(); old != nil {
			wires = slices.Clone(*old)
		}
		for to := len(wires); to < len(s.hosts); to++ {
			wires = append(wires, newWire(s.seed, from.index, to))
		}
		from.wires.Store(&wires)
	}
	s.routes.Store(&routes)
	s.wg.Go(h.read)
}

// IP returns the host's address.
func (h *Host) IP() string {
	return fmt.Sprintf("%d.%d.%d.%d", h.addr[0], h.addr[1], h.addr[2], h.addr[3])
}

// Start starts cmd inside the host.
func (h *Host) Start(cmd *exec.Cmd) error { return h.Do(cmd.Start) }

// Apply makes an effect happen, to packets that m admits on the given wires, until
// the fault is lifted.
func (s *Switch) Apply(e Effect, m Match, pairs ...Pair) (*Fault, error) {
	if err := e.Validate(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range pairs {
		if p.From == p.To || p.From.s != s || p.To.s != s {
			return nil, fmt.Errorf("netswitch: no wire from %s to %s", p.From.Name, p.To.Name)
		}
	}
	f := &Fault{s: s, effect: e, match: Match{m.Proto, slices.Clone(m.Ports)}, pairs: slices.Clone(pairs)}
	for _, p := range pairs {
		w := p.wire()
		faults := append(slices.Clone(*w.faults.Load()), f)
		w.faults.Store(&faults)
	}
	return f, nil
}

func (s *Switch) lift(f *Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range f.pairs {
		w := p.wire()
		faults := slices.DeleteFunc(slices.Clone(*w.faults.Load()), func(g *Fault) bool { return f == g })
		w.faults.Store(&faults)
	}
}

// Heal lifts all faults.
func (s *Switch) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.hosts {
		for _, w := range *h.wires.Load() {
			w.faults.Store(&[]*Fault{})
		}
	}
}

// Traffic counts what hosts have sent.
type Traffic struct{ Packets, Bytes uint64 }

// Traffic returns what came to be sent on a wire, whatever became of it.
func (s *Switch) Traffic(p Pair) Traffic {
	w := p.wire()
	return Traffic{w.packets.Load(), w.bytes.Load()}
}

// Lost counts packets that the switch itself lost, because too many were delayed
// or a device did not take them. The kernels at both ends may lose more, as any do
// whose queues are full: 500 packets or more in front of the switch.
func (s *Switch) Lost() uint64 { return s.lost.Load() }

func (p Pair) wire() *wire { return (*p.From.wires.Load())[p.To.index] }

// read carries what the host sends, until its device is closed.
func (h *Host) read() {
	buffer := make([]byte, 1<<16)
	for {
		n, err := h.device.Read(buffer)
		if err != nil {
			return // closed
		}
		h.s.carry(h, buffer[:n])
	}
}

// carry applies the faults to a packet that a host has sent.
func (s *Switch) carry(from *Host, data []byte) {
	p, ok := parse(data)
	to := (*s.routes.Load())[p.dst]
	if !ok || to == nil || to == from {
		s.strays.Add(1) // IPv6 router solicitations, and the like
		return
	}
	f := (*from.wires.Load())[to.index].meet(p)
	for range f.copies {
		if f.delay == 0 {
			s.deliver(to, data)
		} else if !s.late.add(f.delay, to, slices.Clone(data)) {
			s.lost.Add(1)
		}
	}
}

// deliver puts a packet into a host's device.
func (s *Switch) deliver(to *Host, data []byte) {
	if _, err := to.device.Write(data); err != nil {
		s.lost.Add(1)
	}
}

// Close ends the network: the devices, the threads of its hosts, and with them the
// processes that were started there with a Pdeathsig. It returns when all
// goroutines have ended. Close may be called again.
func (s *Switch) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	hosts := s.hosts
	s.mu.Unlock()
	close(s.late.quit)
	var first error
	for _, h := range hosts {
		if err := h.close(); err != nil && first == nil {
			first = fmt.Errorf("netswitch: host %s: %w", h.Name, err)
		}
	}
	s.wg.Wait()
	return first
}

// late holds packets until they are due.
type late struct {
	wake chan struct{} // 1 deep: something is due earlier than before
	quit chan struct{}

	mu     sync.Mutex // guards the fields below
	queue  queue
	number uint64
}

type waiting struct {
	due    time.Time
	number uint64 // packets that are due at once arrive as they came
	to     *Host
	data   []byte
}

func (l *late) add(delay time.Duration, to *Host, data []byte) bool {
	due := time.Now().Add(delay)
	l.mu.Lock()
	if len(l.queue) >= maxLate {
		l.mu.Unlock()
		return false
	}
	l.number++
	w := waiting{due, l.number, to, data}
	heap.Push(&l.queue, w)
	first := l.queue[0].number == w.number
	l.mu.Unlock()
	if first {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// next returns what is due, or the time until then.
func (l *late) next() (w waiting, due bool, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return waiting{}, false, time.Hour
	}
	if wait := time.Until(l.queue[0].due); wait > 0 {
		return waiting{}, false, wait
	}
	return heap.Pop(&l.queue).(waiting), true, 0
}

func (l *late) run(deliver func(to *Host, data []byte)) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		w, due, wait := l.next()
		if due {
			deliver(w.to, w.data)
			continue
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-l.wake:
		case <-l.quit:
			return
		}
	}
}

// queue is a heap of packets, the next one first.
type queue []waiting

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	if !q[i].due.Equal(q[j].due) {
		return q[i].due.Before(q[j].due)
	}
	return q[i].number < q[j].number
}
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(waiting)) }
func (q *queue) Pop() any {
	last := len(*q) - 1
	w := (*q)[last]
	(*q)[last] = waiting{}
	*q = (*q)[:last]
	return w
}
