package meet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

const (
	// defragmentLimit bounds the defragmentation of one member, which answers nobody meanwhile, and the
	// compaction before. A full database may hold millions of revisions.
	defragmentLimit = 5 * time.Minute
	// settleTries is how often members are asked, each second, until all are healthy again.
	settleTries = 60
	callLimit   = 5 * time.Second
	// nearlyFull is the part of the quota, in per cent, that what is left in a database should not have.
	nearlyFull = 80
)

// Defragmentation makes the databases of members smaller, and ends the alarm of a full quota.
type Defragmentation struct {
	Full    bool // The quota of a member is full, and etcd refuses every write.
	Members []member.Status
	Targets []string // the endpoints to defragment, in this order

	g     *etcdstore.Group
	ask   func(context.Context) []member.Status
	least int64
}

// PlanDefragmentation asks the members, with ask, which of their databases would shrink by at least
// least bytes. If the quota of one is full, all are defragmented.
//
// It returns an error if a member is not healthy, with what the members said.
func PlanDefragmentation(ctx context.Context, g *etcdstore.Group, ask func(context.Context) []member.Status,
	least int64) (d Defragmentation, err error) {
	d = Defragmentation{g: g, ask: ask, least: least}
	if err := Limited(ctx, callLimit, func(ctx context.Context) (err error) {
		d.Full, err = g.NoSpace(ctx)
		return err
	}); err != nil {
		return d, err
	}
	if d.Full {
		d.least = 0
	}
	d.Members = ask(ctx)
	d.Targets, err = member.Defragment(d.Members, d.least)
	return d, err
}

// Found says how the members are, a line each.
func (d Defragmentation) Found() (lines []string) {
	for _, m := range d.Members {
		lines = append(lines, fmt.Sprintf("%s: answers %t, leader %t, %d bytes, of which %d are used", m.Endpoint,
			m.Err == nil, m.Leads, m.Size, m.InUse))
	}
	if d.Full {
		lines = append(lines, "the quota of a member is full: etcd refuses every write")
	}
	return lines
}

// Run carries the plan out, and prints each step to out.
func (d Defragmentation) Run(ctx context.Context, out io.Writer) error {
	if d.Full {
		fmt.Fprintln(out, "compacting first")
		if err := Limited(ctx, defragmentLimit, func(ctx context.Context) error {
			return d.g.Compact(ctx, d.Targets[0])
		}); err != nil {
			return err
		}
	}
	for _, e := range d.Targets {
		if err := Limited(ctx, defragmentLimit, func(ctx context.Context) error {
			return d.g.Defragment(ctx, e)
		}); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s: defragmented\n", e)
		// The next one only when all are healthy again.
		if err := d.settled(ctx); err != nil {
			return fmt.Errorf("after %s: %w", e, err)
		}
	}
	if len(d.Targets) == 0 {
		fmt.Fprintf(out, "no database would shrink by %d bytes\n", d.least)
	}
	if !d.Full {
		return nil
	}
	if err := Limited(ctx, callLimit, d.g.Disarm); err != nil {
		return err
	}
	fmt.Fprintln(out, "the alarm has ended: etcd takes writes again")
	for _, m := range d.ask(ctx) {
		if m.Quota > 0 && m.InUse*100 > m.Quota*nearlyFull {
			fmt.Fprintf(out, "%s uses %d bytes of its quota of %d: find out who writes them, or raise the quota, "+
				"before it is full again\n", m.Endpoint, m.InUse, m.Quota)
		}
	}
	return nil
}

// settled waits until all members are healthy.
func (d Defragmentation) settled(ctx context.Context) error {
	for range settleTries {
		if _, err := member.Defragment(d.ask(ctx), 0); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
	return errors.New("a member is not healthy: the others are left alone")
}

// Limited calls f with a context that ends after limit.
func Limited(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return f(ctx)
}
