package maelstrom

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
)

// wire sends messages as one node and hands answers to those who wait for them.
// It is safe for concurrent use.
type wire struct {
	out  chan []byte   // lines, for the one goroutine that writes
	over chan struct{} // closed once nothing is sent or received any more
	end  sync.Once

	mu      sync.Mutex // guards the fields below
	node    string     // our ID; "" before init
	last    int64      // msg_id
	waiting map[int64]chan Message
}

// errOver is what calls return once the streams have ended.
var errOver = errors.New("maelstrom: the streams have ended")

// firstIDs bounds the first msg_id: any JSON reader keeps twice as much exactly.
const firstIDs = 1 << 52

// newWire returns a wire whose msg_ids begin at a random number. Should the
// process follow another of the same ID, late answers to that one must not pass
// for answers to this one: a cas_ok taken for another's would confirm a ceiling
// that was never written (I3).
func newWire() *wire {
	return &wire{
		out: make(chan []byte, 64), over: make(chan struct{}), waiting: map[int64]chan Message{},
		last: rand.Int64N(firstIDs),
	}
}

func (w *wire) close() { w.end.Do(func() { close(w.over) }) }

// write copies lines to out until out fails, which closes the wire, or the wire
// is closed: then it writes what was queued by then.
func (w *wire) write(out io.Writer) error {
	defer w.close()
	for closed := false; ; {
		var line []byte
		if closed {
			select {
			case line = <-w.out:
			default:
				return nil
			}
		} else {
			select {
			case line = <-w.out:
			case <-w.over:
				closed = true
				continue
			}
		}
		if _, err := out.Write(line); err != nil {
			return fmt.Errorf("write stdout: %w", err)
		}
	}
}

// send queues a message. It gives up when the wire is closed or ctx ends.
func (w *wire) send(ctx context.Context, src, dest string, body any) error {
	line, err := encode(src, dest, body)
	if err != nil {
		return err
	}
	select {
	case w.out <- line:
		return nil
	case <-w.over:
		return errOver
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call sends a request to dest and waits for its answer. body is given the
// msg_id that it must carry.
//
// It returns an *Error that dest answered with. Any other error says that there
// was no answer, and nothing about what dest did.
func (w *wire) call(ctx context.Context, dest string, body func(id int64) any) (Message, error) {
	if err := ctx.Err(); err != nil {
		return Message{}, err
	}
	answer := make(chan Message, 1)
	w.mu.Lock()
	w.last++
	id, src := w.last, w.node
	w.waiting[id] = answer
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.waiting, id)
	}()
	if err := w.send(ctx, src, dest, body(id)); err != nil {
		return Message{}, err
	}
	select {
	case m := <-answer:
		return m, parseError(m)
	case <-w.over:
		return Message{}, errOver
	case <-ctx.Done():
		return Message{}, fmt.Errorf("no answer from %s: %w", dest, ctx.Err())
	}
}

// deliver hands an answer to who waits for it. One that nobody waits for any
// more is dropped.
func (w *wire) deliver(m Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.waiting[*m.InReplyTo]; c != nil {
		delete(w.waiting, *m.InReplyTo) // a second answer must not block
		c <- m
	}
}

func (w *wire) setNode(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.node = id
}

// linKV is Maelstrom's service of that name. It implements KV.
type linKV struct{ wire *wire }

const linKVName = "lin-kv"

type kvRequest struct {
	Type   string  `json:"type"`
	MsgID  int64   `json:"msg_id"`
	Key    string  `json:"key"`
	From   *string `json:"from,omitempty"`
	To     *string `json:"to,omitempty"`
	Create bool    `json:"create_if_not_exists,omitempty"`
}

// Read returns the value under key.
func (kv linKV) Read(ctx context.Context, key string) (value string, err error) {
	m, err := kv.wire.call(ctx, linKVName, func(id int64) any {
		return kvRequest{Type: "read", MsgID: id, Key: key}
	})
	if err != nil {
		return "", err
	}
	var body struct{ Value *string }
	if err := json.Unmarshal(m.Body, &body); m.Type != "read_ok" || err != nil || body.Value == nil {
		return "", fmt.Errorf("lin-kv answered %.40q to a read, and not with a string", m.Type)
	}
	return *body.Value, nil
}

// CAS sets key from one value to another.
func (kv linKV) CAS(ctx context.Context, key, from, to string) error {
	m, err := kv.wire.call(ctx, linKVName, func(id int64) any {
		return kvRequest{Type: "cas", MsgID: id, Key: key, From: &from, To: &to, Create: from == ""}
	})
	if err == nil && m.Type != "cas_ok" {
		err = fmt.Errorf("lin-kv answered %.40q to a cas", m.Type)
	}
	return err
}

// maxLine bounds a line of stdin, in bytes. A space with 32 sids and full
// ledgers takes about 1 MB.
const maxLine = 8 << 20

// readLines calls f for each line of in that is not blank, and tooLong for each
// that is over maxLine, which is skipped. It returns nil at the end of in.
func readLines(in io.Reader, f func(line []byte) error, tooLong func()) error {
	r := bufio.NewReaderSize(in, 64<<10)
	var line []byte
	skip := false
	for {
		part, err := r.ReadSlice('\n')
		switch {
		case skip:
		case len(line)+len(part) > maxLine:
			tooLong()
			line, skip = nil, true
		default:
			line = append(line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if whole := bytes.TrimSpace(line); len(whole) > 0 && !skip {
			if err := f(bytes.Clone(whole)); err != nil {
				return err
			}
		}
		line, skip = line[:0], false
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read stdin: %w", err)
		}
	}
}
