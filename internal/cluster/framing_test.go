package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hashicorp/go-msgpack/v2/codec"
	"github.com/hashicorp/memberlist"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/agreement"
	"github.com/flakelease/allocator/internal/clock"
)

// knownLibrary is the release of memberlist whose framing framing.go has.
const knownLibrary = "v0.7.0"

// TestLibraryVersion fails when memberlist is upgraded, because TestFraming sees only
// the messages that nodes send today, and not what else a release would read.
func TestLibraryVersion(t *testing.T) {
	mod, err := os.ReadFile("../../go.mod")
	fatal.If(t, err)
	m := regexp.MustCompile(`github.com/hashicorp/memberlist (\S+)`).FindSubmatch(mod)
	if m == nil || string(m[1]) != knownLibrary {
		t.Fatalf("go.mod has memberlist %q, and framing.go knows %s: compare the library's net.go, security.go and "+
			"label.go with framing.go, run TestFraming and FuzzStream, then change knownLibrary", m, knownLibrary)
	}
}

// recorder is a transport that keeps what the library sends.
type recorder struct {
	*socket
	silent bool // It loses packets, so the library probes over streams.

	mu      sync.Mutex // It guards what follows.
	packets [][]byte
	streams []*recorded
}

// recorded is a dialed connection, with what was written on it.
type recorded struct {
	net.Conn
	mu   sync.Mutex // It guards sent.
	sent bytes.Buffer
}

func (r *recorded) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent.Write(b)
	return r.Conn.Write(b)
}

func (r *recorder) WriteToAddress(b []byte, a Address) (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.packets = append(r.packets, slices.Clone(b))
	if r.silent {
		return time.Time{}, nil
	}
	return r.socket.WriteToAddress(b, a)
}

func (r *recorder) DialAddressTimeout(a Address, timeout time.Duration) (net.Conn, error) {
	conn, err := r.socket.DialAddressTimeout(a, timeout)
	if err != nil {
		return nil, err
	}
	s := &recorded{Conn: conn}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams = append(r.streams, s)
	return s, nil
}

// sent returns what was written on streams and in packets.
func (r *recorder) sent() (streams, packets [][]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.streams {
		s.mu.Lock()
		streams = append(streams, slices.Clone(s.sent.Bytes()))
		s.mu.Unlock()
	}
	return streams, slices.Clone(r.packets)
}

// stopped is a Local whose clocks do not move.
type stopped struct{}

func (stopped) Clocks() clock.Snapshot   { return clock.Snapshot{Raw: 1} }
func (stopped) Status() agreement.Status { return agreement.Status{SID: -1} }

const testLabel = "allocator/framing"

func testKeys(t testing.TB) *Keys {
	t.Helper()
	file := filepath.Join(t.TempDir(), "keys")
	key := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", 32)))
	fatal.If(t, os.WriteFile(file, []byte(key), 0o600))
	keys, err := NewKeys(file, slog.New(slog.DiscardHandler))
	fatal.If(t, err)
	return keys
}

// member runs the library as a node does, with quick probes.
func member(t *testing.T, name string, keys *Keys, silent bool) (*memberlist.Memberlist, *recorder, string) {
	t.Helper()
	cfg := Config{
		Node:       name,
		Instance:   uuid.NewString(),
		Label:      testLabel,
		Pool:       "pool-1",
		Bind:       "127.0.0.1:0",
		Keys:       keys,
		Local:      stopped{},
		OnExchange: func(agreement.Exchange) {},
	}
	transport, addr, err := Listen(cfg)
	fatal.If(t, err)
	r := &recorder{socket: transport.(*socket), silent: silent}
	r.serve(newFraming(testLabel, keys))
	cfg.Transport = r
	c, err := New(cfg)
	fatal.If(t, err)
	conf, err := c.library()
	fatal.If(t, err)
	conf.ProbeInterval, conf.ProbeTimeout = 50*time.Millisecond, 10*time.Millisecond
	list, err := memberlist.Create(conf)
	fatal.If(t, err)
	t.Cleanup(func() { _ = list.Shutdown() })
	return list, r, addr
}

// readBy returns the kind of a stream of the library, and what follows it in clear. It
// knows nothing of framing.go but how to open a seal.
func readBy(t *testing.T, f *framing, b []byte) (kind byte, body []byte) {
	t.Helper()
	b, label, err := memberlist.RemoveLabelHeaderFromPacket(b)
	if err != nil || label != testLabel {
		t.Fatalf("label %q, %v", label, err)
	}
	if f.keys == nil {
		return b[0], b[1:]
	}
	gcm := (*f.keys.ciphers.Load())[0]
	plain, err := gcm.Open(nil, b[6:18], b[18:], append(slices.Clone(b[:5]), label...))
	if err != nil || b[5] != 1 {
		t.Fatalf("version %d of the seal: %v", b[5], err)
	}
	return plain[0], plain[1:]
}

// TestFraming lets two members of the library talk, and passes each message that they
// send through the checks: framing.go must know what the library writes.
func TestFraming(t *testing.T) {
	for name, keys := range map[string]*Keys{"clear": nil, "sealed": testKeys(t)} {
		t.Run(name, func(t *testing.T) {
			_, listening, addr := member(t, "a", keys, false)
			list, r, _ := member(t, "b", keys, true)
			if _, err := list.Join([]string{addr}); err != nil {
				t.Fatal(err)
			}
			f, kinds, packets := newFraming(testLabel, keys), map[byte]int{}, 0
			ctx, cancel := context.WithTimeout(t.Context(), wait.Most)
			defer cancel()
			for kinds[kindState] == 0 || kinds[kindProbe] == 0 || packets == 0 {
				select {
				case <-ctx.Done():
					t.Fatalf("streams by kind: %v, %d packets", kinds, packets)
				case <-time.After(20 * time.Millisecond):
				}
				var streams, sent [][]byte
				streams, sent = r.sent()
				_, more := listening.sent()
				packets = len(sent) * len(more) // Both have sent some.
				for _, p := range append(sent, more...) {
					checkPacket(t, f, p)
				}
				clear(kinds)
				for _, s := range streams {
					if len(s) > len(f.head) { // It was written.
						kinds[checkStream(t, f, s)]++
					}
				}
			}
			if len(kinds) != 2 {
				t.Errorf("nodes open streams with messages of kinds %v, and intake refuses all but %d and %d",
					kinds, kindState, kindProbe)
			}
		})
	}
}

// checkStream returns the kind of a stream's message, which must pass.
func checkStream(t *testing.T, f *framing, sent []byte) byte {
	t.Helper()
	seen, err := f.examine(bytes.NewReader(sent))
	if err != nil {
		t.Fatalf("refused: %v: %x", err, sent)
	}
	if !bytes.HasPrefix(sent, seen.Bytes()) || f.keys != nil && seen.Len() != len(sent) {
		t.Fatalf("of %x it read %x", sent, seen.Bytes())
	}
	kind, body := readBy(t, f, sent)
	if kind != kindState {
		return kind
	}
	// A field that has another name in the library would be 0 here, and unbounded there.
	h, err := readStateHeader(bytes.NewReader(body))
	var inLibrary map[string]any
	fatal.If(t, codec.NewDecoderBytes(body, &codec.MsgpackHandle{}).Decode(&inLibrary))
	if err != nil || h.Nodes < 1 || h.Nodes > 2 || len(inLibrary) != 3 || inLibrary["UserStateLen"] == nil {
		t.Fatalf("header %+v, %v; in the library %v", h, err, inLibrary)
	}
	return kind
}

func checkPacket(t *testing.T, f *framing, p []byte) {
	t.Helper()
	if !f.passes(p) {
		t.Fatalf("dropped: %x", p)
	}
	if forged := bytes.Clone(p); f.keys != nil {
		forged[len(forged)-1]++
		if f.passes(forged) {
			t.Fatalf("passed with a wrong seal: %x", forged)
		}
	}
}

// bytesConn is a connection on which a stream comes, and zeros behind it.
type bytesConn struct {
	net.Conn
	in   io.Reader
	read int
}

func (c *bytesConn) Read(b []byte) (int, error) {
	n, err := c.in.Read(b)
	if err == io.EOF {
		clear(b)
		n = len(b)
	}
	c.read += n
	return n, nil
}

func (c *bytesConn) Close() error       { return nil }
func (*bytesConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2), Port: 7} }

// FuzzStream: of a stream in clear that passes, the library reads the bytes that came, at
// most maxStream of them, and they make it allocate for at most maxMembers.
func FuzzStream(f *testing.F) {
	unsealed := newFraming(testLabel, nil)
	add := func(message string) { f.Add(append(bytes.Clone(unsealed.head), message...)) }
	add("\x06\x83\xa5Nodes\x03\xacUserStateLen\x00\xa4Join\xc3")
	add("\x06\x83\xa5Nodes\xd2\x00\x0f\xff\xff\xacUserStateLen\x00\xa4Join\xc3")
	add("\x06\x82\xa5Nodes\x03\xa5Nodes\xd2\x00\x0f\xff\xff")
	add("\x06\x93\x03\x00\xc3")
	add("\x00\x81\xa5SeqNo\x01")
	add("\x0a\x00\x00\x00\x09123456789")
	f.Add([]byte("\xf4\x01x\x06"))
	f.Fuzz(func(t *testing.T, b []byte) {
		conn := &bytesConn{in: bytes.NewReader(b)}
		var in intake
		s := in.admit(conn)
		if s.examine(unsealed) != nil {
			if len(in.open) != 0 || in.held != 0 {
				t.Fatalf("a refused stream stays: %d open, %d bytes", len(in.open), in.held)
			}
			return
		}
		given, _ := io.ReadAll(s)
		if conn.read > maxStream || len(given) != conn.read || !bytes.HasPrefix(given, b[:min(len(b), maxStream)]) {
			t.Fatalf("%d bytes were read, and the library was given %d", conn.read, len(given))
		}
		message, label, err := memberlist.RemoveLabelHeaderFromPacket(given)
		if err != nil || label != testLabel {
			t.Fatalf("label %q, %v", label, err)
		}
		switch message[0] {
		case kindProbe:
		case kindState:
			var h struct {
				Nodes, UserStateLen int
				Join                bool
			}
			err := codec.NewDecoder(bytes.NewReader(message[1:]), &codec.MsgpackHandle{}).Decode(&h)
			if err == nil && (h.Nodes < 0 || h.Nodes > maxMembers || h.UserStateLen != 0) {
				t.Fatalf("the library reads %+v", h)
			}
		default:
			t.Fatalf("kind %d passes", message[0])
		}
	})
}

// FuzzPacked: what the library finds in a packet in clear that passes is no list inside of
// a list, and nothing to decompress.
func FuzzPacked(f *testing.F) {
	unsealed := newFraming(testLabel, nil)
	for _, seed := range []string{
		"\x07\x02\x00\x01\x00\x01\x09\x03", "\x0c\x00\x00\x00\x00\x09", "\x07\x01\x00\x05\x07\x01\x00\x01\x09", "\x07\x01\x00\x01\x08",
		"\x0c\x00\x00\x00\x00\x07\x01\x00\x02\x07\x01", "\x09\x80", "\x07\x02\x00\x01\x00\xff\x08\x09",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if !unsealed.passes(append(bytes.Clone(unsealed.head), b...)) {
			return
		}
		if len(b) >= 5 && b[0] == kindChecksum {
			b = b[5:]
		}
		// found follows the library: it takes as many parts as came whole.
		var found func(b []byte, depth int)
		found = func(b []byte, depth int) {
			switch {
			case len(b) == 0:
				return
			case b[0] == kindCompressed:
				t.Fatalf("something to decompress passes, in list %d", depth)
			case b[0] == kindCompound && depth > 0:
				t.Fatal("a list in a list passes")
			case b[0] != kindCompound || len(b) < 2 || len(b) < 2+2*int(b[1]):
				return
			}
			parts := b[2+2*int(b[1]):]
			for i := range int(b[1]) {
				n := int(binary.BigEndian.Uint16(b[2+2*i:]))
				if n > len(parts) {
					return
				}
				found(parts[:n], depth+1)
				parts = parts[n:]
			}
		}
		found(b, 0)
	})
}

// FuzzSealed: without the key nobody makes a stream or a packet that passes.
func FuzzSealed(f *testing.F) {
	sealed := newFraming(testLabel, testKeys(f))
	f.Add([]byte("\x0a\x00\x00\x00\x1d\x01123456789012"))
	f.Add(append([]byte("\x0a\x00\x00\x02\x58\x01"), make([]byte, 600)...))
	f.Add([]byte("\x06\x83\xa5Nodes\x03\xacUserStateLen\x00\xa4Join\xc3"))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = append(bytes.Clone(sealed.head), b...)
		if _, err := sealed.examine(bytes.NewReader(b)); err == nil {
			t.Fatal("a stream passes")
		}
		if sealed.passes(b) {
			t.Fatal("a packet passes")
		}
	})
}
