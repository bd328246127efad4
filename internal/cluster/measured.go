package cluster

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/memberlist"
)

// Measurement is how far the clock of one node is from that of the node which measured it,
// for people. Like a report it is asked for only while somebody looks.
type Measurement struct {
	Instance string        // The clock is this process's.
	Fresh    bool          // It answered lately.
	Offset   time.Duration // its issuing clock minus that of the node which measured it …
	Error    time.Duration // … give or take this
	RTT      time.Duration // The last exchange took this long.
}

// askMeasured asks a peer for its measurements. It has the form of a ping.
type askMeasured ping

// measured answers an askMeasured.
type measured struct {
	Instance uuid.UUID
	Nonce    uint64
	Clocks   []measuredClock
}

// measuredClock is a Measurement as it is sent: in µs, and the process by the first bytes of
// its instance, which is random. What is beyond the range of a field has its end.
type measuredClock struct {
	Prefix uint32
	Fresh  bool
	RTT    int64 // 31 bits
	Offset int64 // 40 bits: a clock further away than 6 days is shown as that far away
	Error  int64 // 24 bits: 16 s
}

const (
	measuredHead = 2 + 16 + 8
	measuredSize = 8 + 8
	// MaxMeasured is how many measurements a node reports: those of all others, or of those by
	// which a node of a large cluster judges its clock.
	MaxMeasured = 63

	maxSentRTT    = 1<<31 - 1
	maxSentOffset = 1<<39 - 1
	maxSentError  = 1<<24 - 1
)

func prefixOf(id uuid.UUID) uint32 { return binary.BigEndian.Uint32(id[:4]) }

// sent returns m as it is sent; ok is false for an instance that is no UUID.
func (m Measurement) sent() (c measuredClock, ok bool) {
	id, err := uuid.Parse(m.Instance)
	margin := (m.Error + time.Microsecond - 1).Microseconds() // rounded up, so that it still bounds
	return measuredClock{
		Prefix: prefixOf(id),
		Fresh:  m.Fresh,
		RTT:    min(max(m.RTT.Microseconds(), 0), maxSentRTT),
		Offset: min(max(m.Offset.Microseconds(), -maxSentOffset), maxSentOffset),
		Error:  min(max(margin, 0), maxSentError),
	}, err == nil
}

// measurement returns what was sent of a process.
func (c measuredClock) measurement(instance string) Measurement {
	us := func(v int64) time.Duration { return time.Duration(v) * time.Microsecond }
	return Measurement{instance, c.Fresh, us(c.Offset), us(c.Error), us(c.RTT)}
}

func appendAskMeasured(b []byte, a askMeasured) []byte {
	at := len(b)
	b = appendPing(b, ping(a))
	b[at+1] = kindAskMeasured
	return b
}

func appendMeasured(b []byte, m measured) []byte {
	u64 := binary.BigEndian.AppendUint64
	b = append(b, echoVersion, kindMeasured)
	b = append(b, m.Instance[:]...)
	b = u64(b, m.Nonce)
	for _, c := range m.Clocks[:min(len(m.Clocks), MaxMeasured)] {
		first := uint64(c.Prefix)<<32 | uint64(c.RTT)
		if c.Fresh {
			first |= 1 << 31
		}
		b = u64(b, first)
		b = u64(b, uint64(c.Offset)<<24|uint64(c.Error))
	}
	return b
}

// decodeMeasured reads what follows the version and the kind.
func decodeMeasured(b reader) (any, error) {
	clocks := len(b) + 2 - measuredHead
	if clocks < 0 || clocks%measuredSize != 0 || clocks/measuredSize > MaxMeasured {
		return nil, fmt.Errorf("%w: measurements of %d bytes", errMalformed, len(b)+2)
	}
	m := measured{Instance: b.uuid(), Nonce: b.u64()}
	for len(b) > 0 {
		first, second := b.u64(), b.i64()
		m.Clocks = append(m.Clocks, measuredClock{
			Prefix: uint32(first >> 32),
			Fresh:  first&(1<<31) != 0,
			RTT:    int64(first & maxSentRTT),
			Offset: second >> 24,
			Error:  second & maxSentError,
		})
	}
	for _, c := range m.Clocks {
		if c.Offset < -maxSentOffset {
			return nil, fmt.Errorf("%w: measured offset %d", errMalformed, c.Offset)
		}
	}
	return m, nil
}

// AskMeasured asks the peers that this node exchanges clocks with for their measurements, at
// most MaxMeasured of them. What they answer takes 126 KiB at most: 63 times 63 clocks of 32
// bytes. Nodes of older versions do not answer.
func (c *Cluster) AskMeasured() {
	now := c.cfg.Local.Clocks().Raw
	type asked struct {
		node *memberlist.Node
		ask  askMeasured
	}
	var all []asked
	c.mu.Lock()
	for _, p := range c.table.peers {
		if !p.Ask || len(all) == MaxMeasured {
			continue
		}
		p.measured.ask(c.table.rand.Uint64(), now)
		all = append(all, asked{p.node, askMeasured{From: c.instance, Nonce: p.measured.nonce, T1: now}})
	}
	c.mu.Unlock()
	for _, to := range all {
		c.send(to.node, appendAskMeasured(make([]byte, 0, pingSize), to.ask))
	}
}

// PeerMeasured is what a registered peer has measured.
type PeerMeasured struct {
	Clocks []Measurement
	Age    time.Duration // since it came
}

// Measured returns what peers have measured of registered nodes, by instance. Those that sent
// nothing are not there.
func (c *Cluster) Measured() map[string]PeerMeasured {
	now := c.cfg.Local.Clocks().Raw
	out := map[string]PeerMeasured{}
	c.mu.Lock()
	defer c.mu.Unlock()
	names := map[uint32]string{prefixOf(c.instance): c.instance.String()}
	for id := range c.table.peers {
		if _, taken := names[prefixOf(id)]; taken {
			names[prefixOf(id)] = "" // Nobody knows whose it is.
		} else {
			names[prefixOf(id)] = id.String()
		}
	}
	for id, p := range c.table.peers {
		if p.clocks == nil {
			continue
		}
		m := PeerMeasured{Age: time.Duration(now - p.clocksAt)}
		for _, sent := range p.clocks {
			if instance := names[sent.Prefix]; instance != "" {
				m.Clocks = append(m.Clocks, sent.measurement(instance))
			}
		}
		out[id.String()] = m
	}
	return out
}

// takeMeasured keeps measurements that were asked for.
func (t *table) takeMeasured(m measured, came int64) fault {
	p := t.peers[m.Instance]
	if p == nil {
		return notMember
	}
	if fault := p.measured.answered(m.Nonce, came); fault != none {
		return fault
	}
	p.clocks, p.clocksAt = append([]measuredClock{}, m.Clocks...), came // not nil: it answered
	return none
}

// sendMeasured answers an askMeasured.
func (c *Cluster) sendMeasured(to *memberlist.Node, nonce uint64) {
	m := measured{Instance: c.instance, Nonce: nonce}
	for _, one := range c.cfg.Measured() {
		if sent, ok := one.sent(); ok {
			m.Clocks = append(m.Clocks, sent)
		}
	}
	c.send(to, appendMeasured(make([]byte, 0, maxMessage), m))
}
