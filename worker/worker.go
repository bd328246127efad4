package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/flakelease/allocator/api/allocator/v1"
	"github.com/flakelease/allocator/client"
)

// Worker is a worker number that this program holds. All methods are safe for concurrent
// use.
//
//  1. A time that Permit allows lies in an interval that etcd has confirmed to be this
//     worker's, and nobody else is ever granted the number for it.
//  2. After Close has begun, nothing is permitted that the release does not count as
//     used.
//  3. A call of Permit that begins after the watermark was told a floor allows nothing below it.
//  4. Once the wall clock was set forward by a second, nothing is permitted: this memory may be a copy.
type Worker struct {
	notBefore, unit int64        // ms
	floor           atomic.Int64 // Nothing below it is permitted: notBefore, or what the watermark was told.
	notAfter        atomic.Int64 // Unix ms; 0: closed or lost, and never set again
	used            atomic.Int64 // the end of the last unit asked for; Unix ms
	sound           atomic.Int64 // Unix ms up to which IDs are permitted without a clock read
	isLost          atomic.Bool  // It is set before notAfter is 0, so that Permit says which end it was.

	ahead func() time.Duration // by how much the wall clock is ahead of the monotonic clock
	seen  atomic.Int64         // what ahead showed last

	name    string
	tells   bool         // Config.Watermark or Floor
	below   func() int64 // Config.Floor
	got     *pb.Worker   // the answer to the acquisition
	service pb.WorkerServiceClient
	client  *client.Client // The service uses it; nil: the connection is the caller's.

	demand chan struct{} // has one element since a Permit was refused as expired
	lost   chan struct{}
	stop   context.CancelFunc
	ended  chan struct{} // closed when the loop has ended

	mu       sync.Mutex // guards the rest
	cause    error      // ErrLost and why, or ErrClosed; nil: held
	last     error      // why the last call to extend failed; nil: it did not
	released bool
}

// releaseTimeout bounds Close.
const releaseTimeout = 5 * time.Second

// Open acquires a worker, waits until its interval has begun by this machine's clock, and
// keeps the interval extended until Close. The errors are
//
//   - ErrConfig, or an error of package client about Config.Client, at once;
//   - a *client.Refusal, at once, with a reason that waiting does not help against, such
//     as WORKERS_OFF, WORKER_QUOTA, PERMISSION_DENIED, or CALLER_CLOCK if the round trip does not explain it;
//   - a *client.Refusal, such as NO_WORKER, or client.ErrUnavailable, with the error of ctx
//     or context.DeadlineExceeded, where no number was to be had in time. After lost answers this may be
//     WORKER_QUOTA: a number that this call acquired counts until its interval has passed.
//
// After an error nothing is left running. A number that was acquired without an answer in
// time is reserved until its interval has passed.
func Open(ctx context.Context, cfg Config) (*Worker, error) {
	host, _ := os.Hostname()
	cfg, err := cfg.withDefaults(host, os.Getpid())
	if err != nil {
		return nil, err
	}
	w := &Worker{
		unit: cfg.Unit.Milliseconds(), name: cfg.Name, service: cfg.Service,
		tells: cfg.Watermark || cfg.Floor != nil, below: cfg.Floor, ahead: aheadSince(time.Now()),
		demand: make(chan struct{}, 1), lost: make(chan struct{}), ended: make(chan struct{}),
	}
	if w.service == nil {
		if w.client, err = client.New(cfg.Client); err != nil {
			return nil, err
		}
		w.service = pb.NewWorkerServiceClient(w.client.Conn())
	}
	w.seen.Store(int64(w.ahead()))
	opening, cancel := context.WithTimeout(ctx, cfg.OpenTimeout)
	defer cancel()
	began := time.Now()
	k, err := w.acquire(opening, began)
	if err == nil {
		var running context.Context
		running, w.stop = context.WithCancel(context.WithoutCancel(ctx))
		go w.run(running, k, began)
		if err = w.untilBegun(opening); err == nil {
			return w, nil
		}
		return nil, errors.Join(err, w.Close())
	}
	if w.client != nil {
		_ = w.client.Close() // always nil
	}
	return nil, err
}

// acquire calls until a worker is acquired, with one secret, so that an acquisition whose
// answer was lost is found again. One whose worker was extended since is not given out a
// second time: then it goes on with another secret, and that worker ends by itself.
//
// A node compares the time in the request with its own when the request has come. It does not
// know how long that took, and this side does: a clock that was refused, and that may be right
// by the time of the round trip, is judged here and not told again.
func (w *Worker) acquire(ctx context.Context, began time.Time) (*keep, error) {
	secret, asked := rand.Text(), 0
	judged, abandoned := false, false
	for fails := 0; ; fails++ {
		sent := time.Now()
		asked++
		req := &pb.AcquireWorkerRequest{Name: w.name, Secret: secret, TellsFloor: w.tells}
		if !judged {
			req.ClockUnixMs = sent.UnixMilli()
		}
		res, err := w.service.AcquireWorker(ctx, req)
		if err == nil {
			k, err := newKeep(res, sent.Sub(began))
			if err != nil {
				return nil, err
			}
			w.got, w.notBefore = res, k.notBefore
			w.floor.Store(max(k.notBefore, k.floor))
			w.used.Store(k.notBefore)
			w.notAfter.Store(k.notAfter)
			return k, nil
		}
		err = typed(err)
		if asked > 1 && is(err, client.InvalidFormat) {
			secret, asked, abandoned = rand.Text(), 0, true
			continue
		}
		if !judged && wasSlow(err, time.Since(sent)) {
			judged = true
		} else if hopeless(err, abandoned) {
			return nil, fmt.Errorf("worker: acquire: %w", err)
		}
		select {
		case <-ctx.Done():
			if !errors.Is(err, ctx.Err()) {
				err = fmt.Errorf("%w: %w", ctx.Err(), err)
			}
			return nil, fmt.Errorf("worker: acquire: %w", err)
		case <-time.After(min(firstRetry<<min(fails, 10), lastRetry)):
		}
	}
}

// untilBegun waits until a unit of the interval has begun by the wall clock.
func (w *Worker) untilBegun(ctx context.Context) error {
	for {
		// The unit that contains notBefore may have begun before it.
		wait := w.notBefore + w.unit - 1 - time.Now().UnixMilli()
		if wait <= 0 {
			return nil
		}
		select {
		case <-time.After(min(ms(wait), time.Second)): // the clock may be set meanwhile
		case <-w.lost:
			return w.Err()
		case <-ctx.Done():
			return fmt.Errorf("%w: worker %s begins in %v: every number was used a short time ago: %w",
				ErrNotYet, w.ID(), ms(wait), ctx.Err())
		}
	}
}

// run is the shell of keep.
func (w *Worker) run(ctx context.Context, k *keep, began time.Time) {
	defer close(w.ended)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		extend, again := k.next(time.Since(began))
		if !extend {
			timer.Reset(again - time.Since(began))
			select {
			case <-ctx.Done():
			case <-timer.C:
			case <-w.demand:
				k.wanted()
			}
			continue
		}
		if !w.look() {
			return
		}
		sent := time.Since(began)
		var floor int64
		if w.tells {
			// What is told has to hold from the moment it is sent.
			if floor = k.passed(sent, time.Now().UnixMilli()) - w.unit; w.below != nil {
				floor = w.below()
			}
			floor = w.raise(floor)
		}
		res, err := w.call(ctx, k, floor)
		if err == nil {
			err = k.answered(res, sent)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			k.failed(typed(err), time.Since(began), mathrand.Float64())
		default:
			w.raise(k.floor) // Nothing below it is permitted by what is published next.
			w.extend(k.notAfter)
		}
		w.note(k.refusal)
		if k.lost != nil {
			w.lose(k.lost)
			return
		}
	}
}

// call makes a call to extend.
func (w *Worker) call(ctx context.Context, k *keep, floor int64) (*pb.Worker, error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	return w.service.ExtendWorker(ctx, &pb.ExtendWorkerRequest{
		Handle:         k.handle,
		NotAfterUnixMs: k.notAfter,
		FloorUnixMs:    floor,
	})
}

// raise raises the floor to ms, unless it is higher, and returns it. It is called by one goroutine.
func (w *Worker) raise(ms int64) int64 {
	ms = max(ms, w.floor.Load())
	w.floor.Store(ms)
	return ms
}

// extend publishes a new end of the interval, unless the interval was ended.
func (w *Worker) extend(to int64) {
	for was := w.notAfter.Load(); was != 0 && !w.notAfter.CompareAndSwap(was, to); was = w.notAfter.Load() {
	}
}

// note keeps why extending fails.
func (w *Worker) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = err
}

// lose ends the interval, and the loop.
func (w *Worker) lose(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause == nil {
		w.cause = fmt.Errorf("%w: %w", ErrLost, cause)
		w.isLost.Store(true)
		defer close(w.lost) // once nothing is permitted
	}
	w.notAfter.Store(0)
	w.stop()
}

// Permit returns nil if an ID of the worker may be used whose own time is ms, in Unix
// milliseconds: that is its millisecond, or the first one of its unit if Config.Unit is
// longer. Ask it after the ID was made and before it is used.
//
// Otherwise the ID must not be used, and the error is ErrNotYet, ErrBehind, ErrExpired, ErrLost
// or ErrClosed. Permit does not wait, and allocates nothing. It reads clocks some ten times a second.
func (w *Worker) Permit(ms int64) error {
	if ms > w.sound.Load() {
		w.look()
	}
	used := w.used.Load() // before notAfter: see Close
	if ms < w.floor.Load() || ms > w.notAfter.Load()-w.unit {
		return w.refuse(ms)
	}
	if end := ms + w.unit; end > used {
		w.use(end)
		if w.notAfter.Load() == 0 {
			return w.refuse(ms)
		}
	}
	// Close ends the interval before it reads used. Here the interval was seen not to have
	// ended after used was seen to include ms, so what is permitted is counted there.
	// Otherwise notAfter only grows: the first check still holds.
	return nil
}

// use raises used.
func (w *Worker) use(end int64) {
	for used := w.used.Load(); end > used && !w.used.CompareAndSwap(used, end); used = w.used.Load() {
	}
}

// refuse returns why ms is not permitted.
func (w *Worker) refuse(ms int64) error {
	switch {
	case w.notAfter.Load() == 0:
		if w.isLost.Load() {
			return ErrLost
		}
		return ErrClosed
	case ms < w.notBefore:
		return ErrNotYet
	case ms < w.floor.Load():
		return ErrBehind
	}
	select {
	case w.demand <- struct{}{}: // after a suspend, no timer has noticed it
	default:
	}
	return ErrExpired
}

// Number returns the worker number, a sid of the space.
func (w *Worker) Number() int64 { return int64(w.got.GetWorker()) }

// Term returns how often the number was acquired, this time included.
func (w *Worker) Term() int64 { return w.got.GetTerm() }

// ID returns the number and the term, such as "17-4". It is no secret.
func (w *Worker) ID() string { return w.got.GetId() }

// Name returns what people know the worker by.
func (w *Worker) Name() string { return w.name }

// Interval returns the milliseconds [notBefore, notAfter) in which the worker may make
// IDs, as they are now. notAfter is 0 after Close and after a loss. It reads clocks, as Permit does.
func (w *Worker) Interval() (notBefore, notAfter int64) {
	w.look()
	return w.notBefore, w.notAfter.Load()
}

// Lost returns a channel that is closed when the worker is lost: see ErrLost. Err says
// why.
func (w *Worker) Lost() <-chan struct{} { return w.lost }

// Err returns nil while the worker is extended as it should be, and else why not: an
// error that wraps ErrLost, ErrClosed, or why the last call to extend it failed, which
// is repeated.
func (w *Worker) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cause != nil {
		return w.cause
	}
	return w.last
}

// Close ends the interval and gives the number back. It states that no ID of this worker
// is used that Permit did not allow: the next worker with the number begins after the
// last time that Permit allowed. Programs that do not ask Permit call Release.
//
// It returns an error if the number could not be given back, as when no node answers. It
// is then reserved until the interval has passed. Later calls do nothing.
func (w *Worker) Close() error { return w.release(0, true) }

// Release is Close for a generator that does not ask Permit. It states that no ID of the
// worker has a time of usedUntil (Unix ms) or later and none will. 0 states nothing: the
// number stays reserved until the interval has passed.
func (w *Worker) Release(usedUntil int64) error { return w.release(usedUntil, false) }

func (w *Worker) release(usedUntil int64, asked bool) error {
	w.look() // The other copy goes on with the number.
	w.mu.Lock()
	done := w.released
	w.released = true
	isLost := w.cause != nil
	if w.cause == nil {
		w.cause = ErrClosed
	}
	w.mu.Unlock()
	if done {
		return nil
	}
	// The interval ends before used is read: see Permit.
	w.notAfter.Store(0)
	if asked {
		usedUntil = w.used.Load()
	}
	w.stop()
	<-w.ended
	var err error
	if !isLost {
		ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
		defer cancel()
		_, err = w.service.ReleaseWorker(ctx,
			&pb.ReleaseWorkerRequest{Handle: w.got.GetHandle(), UsedUntilUnixMs: usedUntil})
		if err = typed(err); is(err, client.UnknownWorker) { // an earlier attempt did it
			err = nil
		}
		if err != nil {
			err = fmt.Errorf("worker: release %s: %w", w.ID(), err)
		}
	}
	if w.client != nil {
		_ = w.client.Close() // always nil
	}
	return err
}
