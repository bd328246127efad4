package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/flakelease/allocator/internal/lease"
	"github.com/flakelease/allocator/internal/lease/repair"
	"github.com/flakelease/allocator/internal/operate"
	"github.com/flakelease/allocator/internal/server/adminserver"
	"github.com/flakelease/allocator/internal/server/console"
	"github.com/flakelease/allocator/internal/server/httpserver"
	"github.com/flakelease/allocator/internal/server/quota"
)

// Space reads the node's space from etcd. It may be called while the node runs.
func (d *Daemon) Space(ctx context.Context) (lease.View, error) { return d.etcd.store.Load(ctx) }

// AdminHandler returns the handler of the admin port without profiles, for a program that has a node in it. It
// may be called when Listening is closed.
func (d *Daemon) AdminHandler() http.Handler { return d.adminHandler(false) }

func (d *Daemon) adminHandler(profiles bool) http.Handler {
	c := d.adminConfig()
	c.Profiles = profiles
	c.Metrics = promhttp.HandlerFor(d.metrics, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
	if d.cfg.ServesConsole() {
		c.Console = d.console
	}
	return adminserver.New(c)
}

func (d *Daemon) adminConfig() adminserver.Config {
	return adminserver.Config{
		Node:   d.node,
		Ready:  d.node.Ready,
		Alive:  d.alive,
		Clocks: d.watch.Report,
		Guard:  d.security.guard,
	}
}

// Console returns the pages for operators, without the check of Host. It may be called
// when Listening is closed.
func (d *Daemon) Console() http.Handler { return d.console }

func (d *Daemon) newConsole() *console.Console {
	cfg := console.Config{
		Snapshot:   d.reader.Snapshot,
		Since:      d.reader.Since,
		FalseSince: d.reader.FalseSince,
		Describe:   d.reader.Describe,
		Node:       d.node,
		Feed:       d.feed,
		Conditions: d.adminConfig().Conditions,
		Format:     d.cfg.Format(),
		Settings:   d.sources,
		API:        d.addrs.AdvertisedHTTP,
		GRPC:       d.addrs.AdvertisedGRPC,
		Guard:      d.security.guard,
		Break:      d.host.Break,
		Log:        d.log,
	}
	if d.cfg.Console.Operate {
		cfg.Operate = operate.New(operate.Config{
			Store: d.etcd.store,
			Ask:   d.askNodes,
			Author: func() repair.Author {
				return repair.Author{ // Its log has who was logged in.
					Who:      "the console of " + d.cfg.Node.Name,
					Instance: lease.Instance(uuid.NewString()),
					Nonce:    rand.Text(),
					Now:      d.clock.Now().Wall,
				}
			},
			Bounds:  d.cfg.Bounds(),
			Drainer: d.drainer,
			Etcd:    strings.Join(d.cfg.Etcd.Addresses(), ","),
			GRPC:    cmp.Or(d.addrs.AdvertisedGRPC, "HOST:PORT"),
		})
	}
	return console.New(cfg)
}

// callers returns those that hold most of this node, and no more than a person reads.
func (d *Daemon) callers() []quota.Caller { return d.security.quota.Callers(10) }

// hosts returns the names in the Host header by which clients may call a port; nil: any.
// check says whether the port checks them at all.
func (d *Daemon) hosts(check bool) *httpserver.Hosts {
	if !check {
		return nil
	}
	names := d.cfg.HTTP.Hosts
	for _, address := range []string{d.addrs.AdvertisedHTTP, d.addrs.AdvertisedGRPC, d.cfg.Listen.HTTP,
		d.cfg.Listen.Admin} {
		if name, _, err := net.SplitHostPort(address); err == nil {
			names = append(slices.Clip(names), name)
		}
	}
	if u, err := url.Parse(d.addrs.AdvertisedConsole); err == nil {
		names = append(slices.Clip(names), u.Hostname())
	}
	return httpserver.NewHosts(names...)
}

// maxScrapes is how many scrapes are answered at a time.
const maxScrapes = 4

// release releases the node's sid for an operator who drains the node, and returns when
// etcd has confirmed it. The node refuses requests before the call. The process keeps
// running, and its clock still counts for the other nodes.
func (d *Daemon) release(ctx context.Context) error {
	d.log.Info("drain requested by an operator", "node", d.cfg.Node.Name)
	d.watch.Drain()
	for {
		s, changed := d.keeper.Watch()
		if s.Idle && !s.GateOpen {
			return nil
		}
		select {
		case <-ctx.Done():
			err := fmt.Errorf("sid %d is not released yet: %w: %s; its lease is kept until the process stops",
				s.Grant.SID, ctx.Err(), s.Problem)
			d.log.Warn("release of the sid failed", "error", err)
			return err
		case <-changed:
		}
	}
}

// resume lets the node acquire a sid again.
func (d *Daemon) resume() {
	d.watch.Undrain()
	d.log.Info("drain undone by an operator", "node", d.cfg.Node.Name)
}
