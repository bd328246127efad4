package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// call is what a driver is asked, one JSON object a line.
type call struct {
	ID        int      `json:"id"`
	Op        string   `json:"op"`
	Client    string   `json:"client,omitempty"`
	Nodes     []string `json:"nodes,omitempty"` // URLs
	GRPC      []string `json:"grpc,omitempty"`  // gRPC addresses of the same nodes
	Options   options  `json:"options,omitzero"`
	Form      string   `json:"form,omitempty"`
	Count     int      `json:"count"`
	After     string   `json:"after,omitempty"`
	Call      int      `json:"call,omitempty"`
	TimeoutMs int      `json:"timeoutMs,omitempty"`
	Text      string   `json:"text"`
	Time      string   `json:"time,omitempty"`
	WallMs    int      `json:"wallMs,omitempty"`
	Ms        int      `json:"ms,omitempty"`
	UnitMs    int      `json:"unitMs,omitempty"`
	At        int64    `json:"at,omitempty"` // Unix ms
}

// options are those of a client.
type options struct {
	TimeoutMs        int    `json:"timeoutMs,omitempty"`
	AttemptTimeoutMs int    `json:"attemptTimeoutMs,omitempty"`
	TokenFile        string `json:"tokenFile,omitempty"`
	CAFile           string `json:"caFile,omitempty"`
	Prefetch         int    `json:"prefetch,omitempty"`
	PrefetchMaxAgeMs int    `json:"prefetchMaxAgeMs,omitempty"`
	PrefetchForm     string `json:"prefetchForm,omitempty"`
}

// answer is what a driver answers.
type answer struct {
	ID        int      `json:"id"`
	IDs       []string `json:"ids,omitempty"`
	Value     string   `json:"value,omitempty"`
	Watermark string   `json:"watermark,omitempty"`
	Error     *failure `json:"error,omitempty"`
}

// failure is the error of a call.
type failure struct {
	Kind         string `json:"kind"`
	Reason       string `json:"reason,omitempty"`
	Message      string `json:"message,omitempty"`
	RetryAfterMs int64  `json:"retryAfterMs,omitempty"`
}

// driver is a running driver. All methods are safe for concurrent use.
type driver struct {
	in  io.WriteCloser
	end func() error // waits for its end

	writing sync.Mutex // held while a call is written, and not with mu: the driver may answer first

	mu      sync.Mutex // guards the rest
	last    int
	pending map[int]chan answer
	broken  error
	ended   chan struct{}
}

// begin starts to read the answers in out.
func begin(in io.WriteCloser, out io.Reader, end func() error) *driver {
	d := &driver{in: in, end: end, pending: map[int]chan answer{}, ended: make(chan struct{})}
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 64<<20)
		var err error
		for err == nil && lines.Scan() {
			err = d.take(lines.Bytes())
		}
		d.mu.Lock()
		d.broken = errors.Join(err, lines.Err(), errors.New("the driver's output has ended"))
		d.mu.Unlock()
		close(d.ended)
		_, _ = io.Copy(io.Discard, out)
	}()
	return d
}

func (d *driver) take(line []byte) error {
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		return fmt.Errorf("the driver printed %.200q: %w", line, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	to := d.pending[a.ID]
	if to == nil {
		return fmt.Errorf("the driver answered call %d, which is none or was answered", a.ID)
	}
	delete(d.pending, a.ID)
	to <- a
	return nil
}

// inside starts a driver that is a function.
func inside(serve func(io.Reader, io.Writer) error) *driver {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := serve(inR, outW)
		_ = inR.Close() // nobody reads what is written from now on
		_ = outW.CloseWithError(err)
		done <- err
	}()
	return begin(inW, outR, func() error { return <-done })
}

// run starts the driver COMMAND.
func run(ctx context.Context, command []string) (*driver, error) {
	if command[0] == "go" && len(command) == 1 {
		return inside(serveGo), nil
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return begin(in, out, cmd.Wait), nil
}

// send begins a call, and returns its number and where its answer comes.
func (d *driver) send(ctx context.Context, c call) (int, <-chan answer, error) {
	to := make(chan answer, 1)
	d.mu.Lock()
	d.last++
	c.ID = d.last
	d.pending[c.ID] = to
	d.mu.Unlock()
	line, err := json.Marshal(c)
	if err != nil {
		return 0, nil, err
	}
	written := make(chan error, 1)
	go func() {
		d.writing.Lock()
		defer d.writing.Unlock()
		_, err := d.in.Write(append(line, '\n'))
		written <- err
	}()
	select {
	case err = <-written:
	case <-ctx.Done():
		err = errors.New("the driver does not read its calls")
	}
	return c.ID, to, err
}

// wait returns the answer of a call.
func (d *driver) wait(ctx context.Context, from <-chan answer) (answer, error) {
	select {
	case a := <-from:
		return a, nil
	case <-d.ended:
		select {
		case a := <-from:
			return a, nil
		default:
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return answer{}, d.broken
	case <-ctx.Done():
		return answer{}, fmt.Errorf("the driver gave no answer: %w", context.Cause(ctx))
	}
}

// close closes the driver's input, and waits for its end: nothing may keep it alive.
func (d *driver) close(ctx context.Context) error {
	if err := d.in.Close(); err != nil {
		return err
	}
	select {
	case <-d.ended:
		return d.end()
	case <-ctx.Done():
		return errors.New("the driver did not end after its input did: something keeps it alive")
	}
}
