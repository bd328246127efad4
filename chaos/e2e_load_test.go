package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	allocatorv1 "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/clock"
	"github.com/flakelease/allocator/internal/history"
)

// Recorder keeps what clients were answered. It is safe for concurrent use.
type Recorder struct {
	began time.Time
	ids   atomic.Int64

	mu     sync.Mutex // guards all below
	issues []history.Issue
	fails  map[string]int // by node and reason
}

// NewRecorder returns an empty record that counts time from now.
func NewRecorder() *Recorder { return &Recorder{began: time.Now(), fails: map[string]int{}} }

// IDs returns how many IDs clients have got.
func (r *Recorder) IDs() int64 { return r.ids.Load() }

// Issues returns what was answered so far.
func (r *Recorder) Issues() []history.Issue {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]history.Issue(nil), r.issues...)
}

// Failures returns how many calls failed, by "node: reason".
func (r *Recorder) Failures() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make(map[string]int, len(r.fails))
	for k, v := range r.fails {
		out[k] = v
	}
	return out
}

func (r *Recorder) now() clock.Mono { return clock.Mono(time.Since(r.began)) }

func (r *Recorder) add(i history.Issue) {
	i.End = r.now()
	r.ids.Add(int64(i.Count))
	r.mu.Lock()
	r.issues = append(r.issues, i)
	r.mu.Unlock()
}

func (r *Recorder) fail(node, reason string) {
	r.mu.Lock()
	r.fails[node+": "+reason]++
	r.mu.Unlock()
}

// Target is a node that clients ask.
type Target struct {
	Name       string // node name
	HTTP, GRPC string // host:port
	run        atomic.Int64
}

// process names the present run of the node: what is told apart by I2.
func (t *Target) process() string { return fmt.Sprintf("%s#%d", t.Name, t.run.Load()) }

// Restarted tells that the node's process is a new one from now on.
func (t *Target) Restarted() { t.run.Add(1) }

// Runs returns the names of all runs so far.
func (t *Target) Runs() []string {
	var out []string
	for i := range t.run.Load() + 1 {
		out = append(out, fmt.Sprintf("%s#%d", t.Name, i))
	}
	return out
}

// Pace is how long a client rests after each call, and after a failed one.
type Pace struct{ Call, Failure time.Duration }

// rest waits, and reports whether the load goes on.
func rest(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// LoadHTTP asks for count IDs a call, as text, until ctx ends.
func LoadHTTP(ctx context.Context, t *Target, count int, pace Pace, r *Recorder) error {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
	defer client.CloseIdleConnections()
	url := fmt.Sprintf("http://%s/v1/ids?count=%d", t.HTTP, count)
	for ok := true; ok; {
		issue := history.Issue{Process: t.process(), Begin: r.now()}
		ids, err := postIDs(ctx, client, url)
		if err != nil {
			if ctx.Err() == nil {
				r.fail(t.Name, reasonOf(err))
			}
			ok = rest(ctx, pace.Failure)
			continue
		}
		blocks, err := contiguous(ids)
		if err != nil || len(ids) != count {
			return fmt.Errorf("%s answered %d of %d IDs: %w", t.Name, len(ids), count, err)
		}
		issue.First, issue.Count, issue.Stride = blocks.First, blocks.Count, blocks.Stride
		r.add(issue)
		ok = rest(ctx, pace.Call)
	}
	return nil
}

// refusedError is an answer that is not IDs.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return e.reason }

func reasonOf(err error) string {
	var refused *refusedError
	if errors.As(err, &refused) {
		return refused.reason
	}
	return "connection"
}

func postIDs(ctx context.Context, client *http.Client, url string) ([]flake.ID, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/plain")
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if resp.StatusCode != http.StatusOK {
		reason := resp.Status
		for lines.Scan() {
			if _, rest, ok := strings.Cut(lines.Text(), `"reason":"`); ok {
				reason, _, _ = strings.Cut(rest, `"`)
			}
		}
		return nil, &refusedError{reason}
	}
	var ids []flake.ID
	for lines.Scan() {
		id, err := flake.Parse(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("answer %q: %w", lines.Text(), err)
		}
		ids = append(ids, id)
	}
	return ids, lines.Err()
}

// contiguous returns the block that ids are. A batch is one block by contract.
func contiguous(ids []flake.ID) (history.Issue, error) {
	if len(ids) == 0 {
		return history.Issue{}, errors.New("an empty answer")
	}
	stride := int64(1) << flake.Scalable.SIDBits()
	for i, id := range ids {
		if want := ids[0] + flake.ID(int64(i)*stride); id != want {
			return history.Issue{}, fmt.Errorf("ID %d is %v, not %v: no contiguous block", i, id, want)
		}
	}
	return history.Issue{First: ids[0], Count: len(ids), Stride: stride}, nil
}

// Dial connects to a node's gRPC port. The connection is made when first used,
// and again whenever the node comes back.
func Dial(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// LoadUnary asks for count IDs a call over gRPC, until ctx ends. Each call names
// the ID before as its after, as a client does that wants order.
func LoadUnary(ctx context.Context, t *Target, count int, pace Pace, r *Recorder) error {
	conn, err := Dial(t.GRPC)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := allocatorv1.NewAllocatorServiceClient(conn)
	after := int64(0)
	for ok := true; ok; {
		issue := history.Issue{Process: t.process(), Begin: r.now()}
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		resp, err := client.Allocate(call, &allocatorv1.AllocateRequest{Count: int32(count), After: after})
		cancel()
		if err != nil {
			if ctx.Err() == nil {
				r.fail(t.Name, grpcReason(err))
			}
			ok = rest(ctx, pace.Failure)
			continue
		}
		if resp.GetFirst() <= after {
			return fmt.Errorf("%s answered %d to after %d", t.Name, resp.GetFirst(), after)
		}
		issue.First, issue.Count, issue.Stride = flake.ID(resp.GetFirst()), int(resp.GetCount()), resp.GetStride()
		after = int64(issue.Last())
		r.add(issue)
		ok = rest(ctx, pace.Call)
	}
	return nil
}

// LoadStream asks for blocks of count IDs over one stream, until ctx ends.
func LoadStream(ctx context.Context, t *Target, count int, pace Pace, r *Recorder) error {
	conn, err := Dial(t.GRPC)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := allocatorv1.NewAllocatorServiceClient(conn)
	for ok := true; ok; {
		if err := stream(ctx, client, t, count, pace, r); err != nil && ctx.Err() == nil {
			r.fail(t.Name, grpcReason(err))
		}
		ok = rest(ctx, pace.Failure)
	}
	return nil
}

func stream(ctx context.Context, client allocatorv1.AllocatorServiceClient, t *Target, count int, pace Pace, r *Recorder) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := client.AllocateStream(ctx)
	if err != nil {
		return err
	}
	process := t.process()
	for seq := int64(1); ; seq++ {
		issue := history.Issue{Process: process, Begin: r.now()}
		if err := s.Send(&allocatorv1.AllocateStreamRequest{
			Sequence: seq, Request: &allocatorv1.AllocateRequest{Count: int32(count)}}); err != nil {
			return err
		}
		resp, err := s.Recv()
		if err != nil {
			return err
		}
		if resp.GetSequence() != seq {
			return fmt.Errorf("answer %d to request %d", resp.GetSequence(), seq)
		}
		if refusal := resp.GetRefusal(); refusal != nil {
			r.fail(t.Name, strings.TrimPrefix(refusal.GetReason().String(), "REASON_"))
			if !rest(ctx, max(pace.Failure, time.Duration(refusal.GetRetryAfterMs())*time.Millisecond)) {
				return nil
			}
			continue
		}
		b := resp.GetResponse()
		issue.First, issue.Count, issue.Stride = flake.ID(b.GetFirst()), int(b.GetCount()), b.GetStride()
		r.add(issue)
		if !rest(ctx, pace.Call) {
			return nil
		}
	}
}

func grpcReason(err error) string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(interface{ GetReason() string }); ok {
			return info.GetReason()
		}
	}
	return status.Code(err).String()
}
