package etcdpod

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"

	"github.com/flakelease/allocator/cmd/allocator/internal/cli"
	"github.com/flakelease/allocator/internal/inside/meet"
	"github.com/flakelease/allocator/internal/inside/member"
	"github.com/flakelease/allocator/internal/lease/etcdstore"
)

// stamp is the time in the name of a snapshot, so that names sort by time.
const stamp = "2006-01-02t15-04-05z"

// suffix ends the names of complete snapshots.
const suffix = ".snapshot"

// storeFlags adds the flags of commands that write snapshots.
func storeFlags(cmd *cobra.Command) func() (meet.Snapshots, error) {
	dir := cmd.Flags().String("dir", "/snapshots", "directory for snapshots; \"\": none are taken")
	keep := cmd.Flags().Int("keep", 48, "number of snapshots to keep")
	return func() (meet.Snapshots, error) {
		if *keep < 1 {
			return meet.Snapshots{}, cli.UsageError("--keep is %d: keep at least one snapshot", *keep)
		}
		return meet.Snapshots{Dir: *dir, Layout: stamp, Suffix: suffix, Keep: *keep}, nil
	}
}

func snapshotCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Write a snapshot of etcd now, and list all",
		Args:  cobra.NoArgs,
	}
	open := storeFlags(cmd)
	limit := cmd.Flags().Duration("timeout", 10*time.Minute, "timeout of the snapshot")
	connect := adminFlags(a, cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := open()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *limit)
		defer cancel()
		c, err := connect()
		if err != nil {
			return err
		}
		defer c.Close()
		list, removed, err := s.Take(ctx, c, "", time.Now())
		if err != nil {
			return cli.Exit(cli.ExitUnavailable, fmt.Errorf("snapshot into %s: %w", s.Dir, err))
		}
		fmt.Fprintf(a.Out, "%s: %d bytes; removed %d; there are:\n", filepath.Base(list[0].Path), list[0].Size, removed)
		for _, one := range slices.Backward(list) {
			fmt.Fprintln(a.Out, "  "+filepath.Base(one.Path))
		}
		return nil
	}
	return cmd
}

// The periods of the keeper are looked at this often.
const keeperTick = 10 * time.Second

func keepCommand(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "keep",
		Short: "Take snapshots, offer them to members that are restored, and defragment, until stopped",
		Long: `Keep takes a snapshot when the last one is older than --every, and defragments one member after
the other every --defragment-every. It offers snapshots to members on port 2382, and metrics on 2381.`,
		Args: cobra.NoArgs,
	}
	k := &snapshotKeeper{app: a, connect: adminFlags(a, cmd), failing: map[string]bool{}}
	open := storeFlags(cmd)
	cmd.Flags().DurationVar(&k.every, "every", time.Hour, "time between two snapshots")
	cmd.Flags().DurationVar(&k.defragmentEvery, "defragment-every", 24*time.Hour,
		"time between two defragmentations; 0: none")
	dirTLS := cmd.Flags().String("tls", "/etc/etcd/server", "directory with a member's certificate")
	listen := cmd.Flags().String("listen", "0.0.0.0", "address to listen on; 0.0.0.0: all, also those of IPv6")
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if k.store, err = open(); err != nil {
			return err
		}
		if k.every < keeperTick || k.defragmentEvery < 0 {
			return cli.UsageError("--every is %v, --defragment-every %v: snapshots are at least %v apart, and no time "+
				"is negative", k.every, k.defragmentEvery, keeperTick)
		}
		return k.run(cmd.Context(), *listen, *dirTLS)
	}
	return cmd
}

// snapshotKeeper takes snapshots and defragments. Its metrics are those of package prometheus.
type snapshotKeeper struct {
	app                    *cli.App
	store                  meet.Snapshots
	every, defragmentEvery time.Duration
	connect                func() (*etcdstore.Group, error)

	failing      map[string]bool
	taken        prometheus.Gauge
	size         prometheus.Gauge
	failures     *prometheus.CounterVec
	defragmented time.Time
}

func (k *snapshotKeeper) run(ctx context.Context, listen, dir string) error {
	log := logger(k.app)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	registry := prometheus.NewRegistry()
	k.taken = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "allocator_etcd_snapshot_timestamp_seconds",
		Help: "When the last snapshot of etcd was taken, in Unix time; 0: never.",
	})
	k.size = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "allocator_etcd_snapshot_bytes",
		Help: "Size of the last snapshot of etcd that this process took.",
	})
	k.failures = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "allocator_etcd_upkeep_failures_total",
		Help: "Snapshots and defragmentations of etcd that failed.",
	}, []string{"task"})
	registry.MustRegister(k.size, k.failures)
	for _, task := range []string{"snapshot", "defragment"} {
		k.failures.WithLabelValues(task)
	}
	if k.store.Dir != "" {
		registry.MustRegister(k.taken)
	}
	go func() {
		cancel(serve(ctx, net.JoinHostPort(listen, reportPort), dir, offer(k.store.Dir), log))
	}()
	metrics := &http.Server{
		Addr:              net.JoinHostPort(listen, metricsPort),
		Handler:           cli.NoSniff(promhttp.HandlerFor(registry, promhttp.HandlerOpts{})),
		ReadHeaderTimeout: 5 * time.Second,
	}
	go func() { cancel(metrics.ListenAndServe()) }()
	defer func() { _ = metrics.Close() }()
	// The first defragmentation is a period after the start, so that restarts add none.
	k.defragmented = time.Now()
	for {
		k.do(ctx, time.Now())
		if pause(ctx, keeperTick) != nil {
			return ended(ctx, nil)
		}
	}
}

// do does what is due.
func (k *snapshotKeeper) do(ctx context.Context, now time.Time) {
	if k.store.Dir != "" {
		list, err := k.store.List(now)
		switch {
		case err == nil && meet.Due(list, now, k.every):
			err = k.snapshot(ctx, now)
		case err == nil:
			k.taken.Set(float64(list[0].At.Unix()))
		}
		k.outcome("snapshot", err)
	}
	if k.defragmentEvery > 0 && now.Sub(k.defragmented) >= k.defragmentEvery {
		err := k.defragment(ctx)
		k.outcome("defragment", err)
		if err == nil {
			k.defragmented = now
		}
	}
}

func (k *snapshotKeeper) snapshot(ctx context.Context, now time.Time) error {
	c, err := k.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	list, removed, err := k.store.Take(ctx, c, "", now)
	if err != nil {
		return fmt.Errorf("snapshot into %s: %w", k.store.Dir, err)
	}
	last := list[0]
	logger(k.app).Info("snapshot taken", "name", filepath.Base(last.Path), "bytes", last.Size, "removed", removed)
	k.taken.Set(float64(last.At.Unix()))
	k.size.Set(float64(last.Size))
	return nil
}

// leastGain is by how many bytes a database has to shrink, or its member is left alone.
const leastGain = 64 << 20

// defragment says in the log what it does.
func (k *snapshotKeeper) defragment(ctx context.Context) error {
	c, err := k.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	ask := func(ctx context.Context) []member.Status { return c.Ask(ctx) }
	d, err := meet.PlanDefragmentation(ctx, c, ask, leastGain)
	for _, line := range d.Found() {
		fmt.Fprintln(k.app.Err, line)
	}
	if err != nil {
		return err
	}
	return d.Run(ctx, k.app.Err)
}

// outcome counts failures, and logs them when they begin and end.
func (k *snapshotKeeper) outcome(task string, err error) {
	if err != nil {
		k.failures.WithLabelValues(task).Inc()
	}
	switch log := logger(k.app); {
	case err != nil && !k.failing[task]:
		log.Error("upkeep of etcd fails, and is tried again", "task", task, "error", err)
	case err == nil && k.failing[task]:
		log.Info("upkeep of etcd succeeds again", "task", task)
	}
	k.failing[task] = err != nil
}

// offer answers members with the snapshots of a directory.
func offer(dir string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /snapshots/{name}", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		switch {
		case !isMember(r):
			http.Error(w, "the certificate is not that of a member", http.StatusForbidden)
		case dir == "" || filepath.Base(name) != name || !strings.HasSuffix(name, suffix):
			http.Error(w, "that is not the name of a snapshot", http.StatusBadRequest)
		default:
			http.ServeFile(w, r, filepath.Join(dir, name))
		}
	})
	for _, path := range []string{"GET /livez", "GET /readyz"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	}
	return mux
}
