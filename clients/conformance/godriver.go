package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/client"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/worker"
)

// goDriver drives package client. It gets the nodes' gRPC addresses.
type goDriver struct {
	out     sync.Mutex // held while an answer is written
	encoder *json.Encoder

	mu      sync.Mutex // guards the rest
	clients map[string]*client.Client
	workers map[string]*worker.Worker
	running map[int]context.CancelFunc // calls, by their IDs
}

// serveGo answers the calls in in until it ends.
func serveGo(in io.Reader, out io.Writer) error {
	d := &goDriver{
		encoder: json.NewEncoder(out),
		clients: map[string]*client.Client{},
		workers: map[string]*worker.Worker{},
		running: map[int]context.CancelFunc{},
	}
	var work sync.WaitGroup
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background())
		d.mu.Lock()
		d.running[c.ID] = cancel // before the next line is read, which may cancel this call
		d.mu.Unlock()
		run := func() {
			a := d.answer(ctx, c)
			a.ID = c.ID
			d.mu.Lock()
			delete(d.running, c.ID)
			d.mu.Unlock()
			cancel()
			d.out.Lock()
			defer d.out.Unlock()
			_ = d.encoder.Encode(a)
		}
		if c.Op == "open" || c.Op == "cancel" {
			run()
		} else {
			work.Go(run)
		}
	}
	work.Wait()
	for _, c := range d.clients {
		_ = c.Close()
	}
	for _, w := range d.workers {
		_ = w.Close()
	}
	return lines.Err()
}

// answer carries a call out.
func (d *goDriver) answer(ctx context.Context, c call) answer {
	if c.TimeoutMs > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.TimeoutMs)*time.Millisecond)
		defer cancel()
	}
	d.mu.Lock()
	cl, w := d.clients[c.Client], d.workers[c.Client]
	d.mu.Unlock()
	if w != nil {
		return ofWorker(w, c)
	}
	switch c.Op {
	case "open":
		return d.open(c)
	case "worker":
		return d.lend(ctx, c)
	case "cancel":
		d.mu.Lock()
		defer d.mu.Unlock()
		if cancel := d.running[c.Call]; cancel != nil {
			cancel()
		}
		return answer{}
	case "parse", "timeOf", "sidOf", "firstOf":
		return offline(c)
	case "next", "nextMany", "concurrent", "nextNow", "watermark", "waitFor", "close":
	default:
		return answer{Error: &failure{Kind: "unsupported", Message: "there is no op " + c.Op}}
	}
	if cl == nil {
		return answer{Error: &failure{Kind: "invalid", Message: "there is no client " + c.Client}}
	}
	var after flake.ID
	if c.After != "" {
		var err error
		if after, err = anyID(c.After); err != nil {
			return answer{Error: &failure{Kind: "invalid", Message: err.Error()}}
		}
	}
	switch c.Op {
	case "next", "nextMany":
		n := 1
		if c.Op == "nextMany" {
			n = c.Count
		}
		b, err := cl.BlockAfter(ctx, n, after)
		return texts(b, c.Form, err)
	case "concurrent":
		ids, errs := make([]string, c.Count), make([]error, c.Count)
		var all sync.WaitGroup
		for i := range ids {
			all.Go(func() {
				id, err := cl.Next(ctx)
				ids[i], errs[i] = strconv.FormatInt(id.Int64(), 10), err
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return answer{Error: failureOf(err)}
		}
		return answer{IDs: ids}
	case "nextNow":
		b, ok := cl.Prefetched(1)
		if !ok {
			return answer{Error: &failure{Kind: "empty", Message: "no ID is held"}}
		}
		return texts(b, c.Form, nil)
	case "watermark":
		w, err := cl.Watermark(ctx)
		return mark(w, err)
	case "waitFor":
		w, err := cl.WaitFor(ctx, after)
		return mark(w, err)
	}
	return answer{Error: failureOf(cl.Close())}
}

// lend opens a worker.
func (d *goDriver) lend(ctx context.Context, c call) answer {
	w, err := worker.Open(ctx, worker.Config{
		Name:        "conformance",
		Unit:        time.Duration(c.UnitMs) * time.Millisecond,
		OpenTimeout: time.Duration(c.Options.TimeoutMs) * time.Millisecond,
		Client: client.Options{
			Targets:        c.GRPC,
			AttemptTimeout: time.Duration(c.Options.AttemptTimeoutMs) * time.Millisecond,
		},
	})
	if err != nil {
		return answer{Error: failureOf(err)}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.workers[c.Client] = w
	return answer{Value: strconv.FormatInt(w.Number(), 10)}
}

// ofWorker carries out a call to a worker.
func ofWorker(w *worker.Worker, c call) answer {
	switch c.Op {
	case "permit":
		err := w.Permit(c.At)
		if errors.Is(err, worker.ErrLost) {
			err = w.Err()
		}
		return answer{Error: failureOf(err)}
	case "close":
		return answer{Error: failureOf(w.Close())}
	}
	return answer{Error: &failure{Kind: "unsupported", Message: "a worker has no op " + c.Op}}
}

func mark(w client.Watermark, err error) answer {
	if err != nil {
		return answer{Error: failureOf(err)}
	}
	return answer{Watermark: strconv.FormatInt(w.ID.Int64(), 10)}
}

// open makes a client.
func (d *goDriver) open(c call) answer {
	o := client.Options{
		Targets:        c.GRPC,
		Timeout:        time.Duration(c.Options.TimeoutMs) * time.Millisecond,
		AttemptTimeout: time.Duration(c.Options.AttemptTimeoutMs) * time.Millisecond,
		TokenFile:      c.Options.TokenFile,
		PlaintextToken: true,
		MaxAge:         time.Duration(c.Options.PrefetchMaxAgeMs) * time.Millisecond,
	}
	if c.Options.Prefetch > 0 {
		o.Mode = client.Prefetch
	}
	if c.Options.CAFile != "" {
		pem, err := os.ReadFile(c.Options.CAFile)
		if err != nil {
			return answer{Error: &failure{Kind: "invalid", Message: err.Error()}}
		}
		o.TLS = &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
		o.TLS.RootCAs.AppendCertsFromPEM(pem)
	}
	cl, err := client.New(o)
	if err != nil {
		return answer{Error: &failure{Kind: "invalid", Message: err.Error()}}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.clients[c.Client] = cl
	return answer{}
}

// texts returns the IDs of a block in a form.
func texts(b client.Block, form string, err error) (a answer) {
	if err != nil {
		return answer{Error: failureOf(err)}
	}
	for i := range b.Count {
		switch form {
		case "ulid", "uuid":
			w, err := b.ULID(i)
			if err != nil {
				return answer{Error: failureOf(err)}
			}
			if form == "uuid" {
				a.IDs = append(a.IDs, w.UUID())
			} else {
				a.IDs = append(a.IDs, w.String())
			}
		case "flake":
			a.IDs = append(a.IDs, b.At(i).String())
		default:
			a.IDs = append(a.IDs, strconv.FormatInt(b.At(i).Int64(), 10))
		}
	}
	return a
}

// failureOf returns the kind of an error; nil for none.
func failureOf(err error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Kind: "unavailable", Message: err.Error()}
	r := (*client.Refusal)(nil)
	switch {
	case errors.Is(err, worker.ErrNotYet):
		f.Kind, f.Reason = "refused", "NOT_YET"
	case errors.Is(err, worker.ErrExpired):
		f.Kind, f.Reason = "refused", "EXPIRED"
	case errors.Is(err, worker.ErrLost):
		f.Kind = "lost"
	case errors.Is(err, worker.ErrClosed):
		f.Kind = "closed"
	case errors.Is(err, context.Canceled):
		f.Kind = "canceled"
	case errors.Is(err, client.ErrClosed):
		f.Kind = "closed"
	case errors.As(err, &r):
		f.Kind, f.Reason, f.RetryAfterMs = "refused", string(r.Reason), r.RetryAfter.Milliseconds()
		if r.Node == "" && r.Reason == client.InvalidCount { // before any request
			f.Kind, f.Reason = "invalid", ""
		}
	case strings.Contains(err.Error(), "broke the contract"):
		f.Kind = "protocol"
	case errors.Is(err, context.DeadlineExceeded):
		f.Kind = "timeout"
	}
	return f
}

// offline answers what needs no client.
func offline(c call) answer {
	invalid := func(err error) answer { return answer{Error: &failure{Kind: "invalid", Message: err.Error()}} }
	if c.Op == "firstOf" {
		at, err := time.Parse(time.RFC3339, c.Time)
		if err != nil {
			return invalid(err)
		}
		id, err := flake.Default.Min(at.UnixMilli())
		if err != nil {
			return invalid(err)
		}
		return answer{IDs: []string{strconv.FormatInt(id.Int64(), 10)}}
	}
	id, err := anyID(c.Text)
	if err != nil {
		return invalid(err)
	}
	switch c.Op {
	case "timeOf":
		return answer{Value: flake.Default.Time(id).UTC().Format("2006-01-02T15:04:05.000Z")}
	case "sidOf":
		return answer{Value: fmt.Sprint(flake.Default.SID(id))}
	}
	return answer{IDs: []string{strconv.FormatInt(id.Int64(), 10)}}
}
