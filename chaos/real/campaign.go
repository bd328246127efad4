package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flakelease/allocator/chaos/build"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/load"
	"github.com/flakelease/allocator/chaos/real/nemesis"
	"github.com/flakelease/allocator/chaos/real/record"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/flake"
)

// runner is one run, from building the programs to the verdict.
type runner struct {
	opts     *options
	profile  string
	root     string // directory of the repository
	dir      string // directory of the results
	rig      *rig.Rig
	nemesis  *nemesis.Runner
	schedule nemesis.Schedule
	notRun   []string // "fault: why not"
	log      *progressLog
	delays   *delayMonitor

	mu     sync.Mutex // guards all below
	broken []string   // violations that clients found
}

// campaign carries out one run, and returns its verdict as an error unless
// everything passed.
func campaign(ctx context.Context, o *options, profile string, faults []nemesis.Fault, repeat bool) (err error) {
	r := &runner{opts: o, profile: profile, log: newProgressLog(os.Stderr)}
	var old *nemesis.Schedule
	if o.schedule != "" {
		if old, err = readSchedule(o.schedule); err != nil {
			return err
		}
		o.nodes, o.lasts, o.format = old.Nodes, time.Duration(old.ForMs)*time.Millisecond,
			cmp.Or(old.Format, flake.Default)
	}
	seed := rand.Uint64() >> 11 // exact in JSON too
	switch {
	case old != nil:
		seed = old.Seed
	case o.seed != "":
		seed, _ = strconv.ParseUint(o.seed, 10, 64)
	}
	if r.root, err = build.Root(ctx); err != nil {
		return err
	}
	if r.dir, err = makeDir(r.root, o.dir); err != nil {
		return err
	}
	r.log.line("%s: seed %d, results in %s", profile, seed, r.dir)
	cfg, err := r.programs(ctx, seed)
	if err != nil {
		return err
	}
	if r.rig, err = rig.New(cfg); err != nil {
		return err
	}
	r.delays = &delayMonitor{now: r.rig.Now}
	for _, why := range r.rig.Cannot {
		r.log.line("not supported on this machine: %s", why)
	}
	r.plan(seed, faults, repeat, old)
	if err := writeJSON(filepath.Join(r.dir, "schedule.json"), r.schedule); err != nil {
		return errors.Join(err, r.rig.Close())
	}
	began := time.Now()
	runErr := r.inject(ctx)
	if err := r.rig.Close(); err != nil {
		runErr = errors.Join(runErr, err)
	}
	if runErr != nil {
		r.log.line("the run failed: %v", runErr)
	}
	r.log.line("checking %d IDs", r.rig.IDs())
	res := r.results(began, time.Since(began), runErr, ctx.Err() != nil)
	if err := r.finish(res); r.nemesis != nil || ctx.Err() != nil || err == nil {
		return err
	}
	return runErr // The cluster did not start.
}

// programs builds what the run needs.
func (r *runner) programs(ctx context.Context, seed uint64) (cfg rig.Config, err error) {
	o := r.opts
	cfg = rig.Config{
		Dir:     r.dir,
		Nodes:   o.nodes,
		Format:  o.format,
		Timing:  o.timing(),
		Clocks:  true,
		Network: !o.loopback,
		Inside:  o.etcd == "inside",
		Seed:    seed,
		Limit:   o.limit << 20,
	}
	if o.lasts > time.Hour {
		cfg.Retention = time.Hour // etcd's history is followed as it grows
	}
	bin := filepath.Join(r.dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return cfg, err
	}
	began := time.Now()
	if cfg.Allocator, err = build.Allocator(ctx, bin); err != nil {
		return cfg, err
	}
	if cfg.Embedded, err = build.Embedded(ctx, bin); err != nil {
		return cfg, err
	}
	if cfg.Etcd, err = build.Etcd(ctx, bin); err != nil {
		return cfg, err
	}
	r.log.line("built in %v", time.Since(began).Round(100*time.Millisecond))
	return cfg, nil
}

// plan makes the schedule of the faults that this machine supports, or takes an
// existing one.
func (r *runner) plan(seed uint64, faults []nemesis.Fault, repeat bool, old *nemesis.Schedule) {
	can := func(f *nemesis.Fault) bool {
		return !(f.Needs == nemesis.ClockHook && !r.rig.Clocks || f.Needs == nemesis.OwnNetworks && r.rig.Net == nil)
	}
	table := nemesis.Table()
	why := func(f *nemesis.Fault) string {
		return fmt.Sprintf("%s: needs %s, not supported on this machine", f.Name, f.Needs)
	}
	if old != nil {
		r.schedule = *old
		r.schedule.Actions = slices.DeleteFunc(slices.Clone(old.Actions), func(a nemesis.Action) bool {
			f := nemesis.Find(table, a.Fault)
			if f != nil && !can(f) {
				r.notRun = append(r.notRun, why(f))
			}
			return f == nil || !can(f)
		})
		return
	}
	var possible []nemesis.Fault
	for _, f := range faults {
		if can(&f) {
			possible = append(possible, f)
		} else {
			r.notRun = append(r.notRun, why(&f))
		}
	}
	r.schedule = nemesis.Plan(nemesis.PlanConfig{
		Seed:     seed,
		For:      r.opts.lasts,
		Faults:   possible,
		Format:   r.rig.Format,
		Nodes:    r.rig.Names(),
		Embedded: r.rig.EmbeddedNode().Name,
		Timing:   r.rig.Timing,
		Repeat:   repeat,
	})
	for _, name := range r.schedule.LeftOut {
		r.notRun = append(r.notRun, fmt.Sprintf("%s: does not fit into %v", name, r.opts.lasts))
	}
}

// inject starts the cluster and the clients, carries out the schedule, and stops
// the clients when every node issues again.
func (r *runner) inject(ctx context.Context) error {
	if _, err := r.rig.History.Write(history.Op{
		Process: history.Harness,
		Type:    history.Info,
		F:       history.FSetup,
		Setup:   r.setup(),
	}); err != nil {
		return err
	}
	began := time.Now()
	if err := r.rig.Start(ctx); err != nil {
		return err
	}
	snapshot, err := r.rig.TakeSnapshot(ctx, nemesis.SnapshotPath(r.dir))
	if err != nil {
		return err
	}
	r.log.line("%d etcd members and %d nodes are up after %v", rig.Members, len(r.rig.Nodes),
		time.Since(began).Round(100*time.Millisecond))
	if err := r.idleMemory(); err != nil {
		return err
	}
	r.nemesis = &nemesis.Runner{
		Rig:      r.rig,
		Table:    nemesis.Table(),
		Snapshot: snapshot,
		Seed:     r.schedule.Seed,
		Progress: func(text string) { r.log.line("  %s", text) },
	}

	loading, stopLoad := context.WithCancel(context.WithoutCancel(ctx))
	var clients sync.WaitGroup
	l := &record.Recorder{History: r.rig.History, Format: r.rig.Format, Dial: r.rig.Dial, Broken: r.foundBroken}
	for i, c := range r.clients() {
		clients.Go(func() { l.Run(loading, i, c) })
	}
	go r.delays.watch(loading)
	reporting, stopReporting := context.WithCancel(loading)
	go r.progress(reporting)
	from := time.Now()
	r.nemesis.Run(ctx, r.schedule)
	select {
	case <-ctx.Done():
	case <-time.After(time.Until(from.Add(time.Duration(r.schedule.ForMs) * time.Millisecond))):
	}
	err = r.allServe()
	stopReporting()
	stopLoad()
	clients.Wait()
	quiet, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer cancel()
	return errors.Join(err, r.stopNodes(quiet))
}

// idleMemory finds nodes that use more memory than they may without load. Nodes with a member of etcd
// inside, and those whose sids are many, need more.
func (r *runner) idleMemory() error {
	if r.opts.etcd == "inside" || r.rig.Format.Layout != flake.Scalable {
		return nil
	}
	for _, n := range r.rig.Servers() {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", n.PID()))
		if err != nil {
			return err
		}
		var size, resident int
		if _, err := fmt.Sscan(string(data), &size, &resident); err != nil {
			return err
		}
		if mib := resident * os.Getpagesize() >> 20; mib > 64 {
			r.foundBroken(fmt.Errorf("%s uses %d MiB without load: the limit is 64", n.Name, mib))
		}
	}
	return nil
}

// allServe waits until every node issues after the last fault was healed.
func (r *runner) allServe() error {
	ctx, cancel := context.WithTimeout(context.Background(), 45*time.Second)
	defer cancel()
	for _, n := range r.rig.Nodes {
		if err := rig.Until(ctx, 45*time.Second, n.Name+" issues after every fault was healed", n.Ready); err != nil {
			r.foundBroken(err)
			return nil
		}
	}
	return nil
}

// stopNodes terminates the nodes, so that they release their sids, and waits for
// the last of etcd's records.
func (r *runner) stopNodes(ctx context.Context) error {
	var all sync.WaitGroup
	for _, n := range r.rig.Nodes {
		all.Go(func() {
			if err := n.Terminate(time.Minute); err != nil {
				r.foundBroken(err)
			} else if exit := n.Exit(); exit != "exit status 0" {
				r.foundBroken(fmt.Errorf("%s was terminated and ended with %q, not with exit status 0", n.Name, exit))
			}
		})
	}
	all.Wait()
	for _, n := range append(r.rig.Nodes, r.rig.Spare()) {
		for run := 1; run <= n.Run(); run++ {
			if _, why, found := strings.Cut("\n"+n.Output(run), "\npanic: "); found {
				r.foundBroken(fmt.Errorf("run %d of %s panicked: %s", run, n.Name, clip(why, 200)))
			}
		}
	}
	return r.rig.CatchUp(ctx)
}

func (r *runner) foundBroken(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.broken) < 100 {
		r.broken = append(r.broken, err.Error())
	}
	r.log.line("violation: %v", err)
}

// clients returns who asks: on each server six that are pinned to it (two, if nodes are
// many) and four on the embedded node; and ten that fail over between servers, six of
// them with an order of their own. Two of the ten prefetch.
func (r *runner) clients() (out []record.Client) {
	scale := time.Duration(1)
	if r.opts.lasts > 10*time.Minute {
		scale = 10 // else the history of hours would not fit on a disk
	}
	var nodes []*record.Node
	for _, n := range r.rig.Servers() {
		nodes = append(nodes,
			&record.Node{Name: n.Name, HTTP: n.HTTP, GRPC: n.GRPC, RESP: n.RESP, MayAnswer: n.MayAnswer})
	}
	e := r.rig.EmbeddedNode()
	embedded := []*record.Node{{Name: e.Name, HTTP: e.HTTP, MayAnswer: e.MayAnswer}}
	ms := func(n int) time.Duration { return scale * time.Duration(n) * time.Millisecond }
	for _, n := range nodes {
		only := []*record.Node{n}
		if len(nodes) > 9 { // else the clients would take the machine
			out = append(out, record.Client{
				Via:     load.GRPC,
				Counts:  []int{1, 10_000, 100},
				Nodes:   only,
				Every:   ms(100),
				Session: "s-" + n.Name,
			},
				record.Client{Via: load.HTTP, Counts: []int{1, 100}, Nodes: only, Every: ms(200)})
			continue
		}
		out = append(out,
			record.Client{Via: load.GRPC, Counts: []int{1}, Nodes: only, Every: ms(25)},
			record.Client{
				Via:     load.GRPC,
				Counts:  []int{1, 10, 100, 1000, 10_000},
				Nodes:   only,
				Every:   ms(40),
				Session: "s-" + n.Name,
			},
			record.Client{Via: load.Stream, Counts: []int{10_000, 10_000, 7}, Nodes: only, Every: ms(40)},
			record.Client{Via: load.HTTP, Counts: []int{1, 1, 1, 100}, Nodes: only, Every: ms(50)},
			record.Client{Via: load.HTTP, Counts: []int{1000, 10_000, 2}, Nodes: only, Every: ms(400)},
			record.Client{
				Via:     load.RESP,
				Counts:  []int{1, 1, 100},
				Nodes:   only,
				Every:   ms(50),
				Session: "resp-" + n.Name,
			},
		)
	}
	for i, counts := range [][]int{{1}, {1, 10, 1000, 10_000}, {10_000, 7}, {1, 100}} {
		out = append(out, record.Client{
			Via:     record.Embedded,
			Counts:  counts,
			Nodes:   embedded,
			Every:   ms(30 + 10*i),
			Session: []string{"", "s-" + e.Name}[i%2],
		})
	}
	for i := range 2 {
		out = append(out,
			record.Client{
				Via:     load.GRPC,
				Counts:  []int{1, 50, 10_000},
				Nodes:   nodes,
				Every:   ms(30),
				Session: fmt.Sprintf("grpc-%d", i),
			},
			record.Client{
				Via:     load.HTTP,
				Counts:  []int{1, 20},
				Nodes:   nodes,
				Every:   ms(60),
				Session: fmt.Sprintf("http-%d", i),
			},
			record.Client{Via: load.Stream, Counts: []int{1, 5000}, Nodes: nodes, Every: ms(50)},
			record.Client{
				Via:     load.SDK,
				Counts:  []int{1, 1, 1, 500},
				Nodes:   nodes,
				Every:   ms(30),
				Session: fmt.Sprintf("sdk-%d", i),
			},
			record.Client{Via: record.Prefetch, Counts: []int{1}, Nodes: nodes, Every: ms(10)},
		)
	}
	most := r.rig.MaxCount()
	for i := range out {
		for k, n := range out[i].Counts {
			out[i].Counts[k] = min(n, most)
		}
	}
	return out
}

// setup describes the run for its history.
func (r *runner) setup() *history.Setup {
	t := r.rig.Timing
	s := &history.Setup{
		Layout:    r.rig.Format.Layout.String(),
		EpochMs:   r.rig.Format.Epoch,
		StartMs:   r.rig.StartWall(),
		MaxSkewMs: rig.MaxSkew.Milliseconds(),
		MaxLeadMs: rig.MaxLead.Milliseconds(),
		WindowMs:  t.Window.Milliseconds(),
		Profile:   r.profile,
		Seed:      strconv.FormatUint(r.schedule.Seed, 10),
		Nodes:     r.rig.Names(),
		NotRun:    r.notRun,
		Versions:  versions(r.root),
	}
	for _, a := range r.schedule.Actions {
		if !slices.Contains(s.Faults, a.Fault) {
			s.Faults = append(s.Faults, a.Fault)
		}
	}
	return s
}

// versions returns what the run was made with: commit, Go, kernel, machine.
func versions(root string) []string {
	first := func(name string, args ...string) string {
		cmd := exec.Command(name, args...)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			return "unknown"
		}
		return strings.TrimSpace(string(out))
	}
	commit := first("git", "rev-parse", "--short=12", "HEAD")
	if first("git", "status", "--porcelain", "--untracked-files=no") != "" {
		commit += " with changes"
	}
	return []string{"commit " + commit, runtime.Version(), first("uname", "-sr"),
		fmt.Sprintf("%s/%s, %d cores", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()),
		fmt.Sprintf("uid %d", os.Getuid())}
}

// makeDir makes the directory of a run: dir, or a new one in bin of the repository.
func makeDir(root, dir string) (string, error) {
	if dir == "" {
		dir = filepath.Join(root, "bin", "chaos-"+time.Now().Format("20060102-150405"))
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 {
		return "", usageError{fmt.Errorf("--dir %s is not empty", dir)}
	}
	return dir, os.MkdirAll(dir, 0o755)
}

func readSchedule(name string) (*nemesis.Schedule, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, usageError{err}
	}
	var s nemesis.Schedule
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", name, err)}
	}
	var nodes []string
	for i := range s.Nodes {
		nodes = append(nodes, fmt.Sprintf("n%d", i+1))
	}
	if err := s.Check(nemesis.Table(), nodes); err != nil {
		return nil, usageError{fmt.Errorf("%s: %w", name, err)}
	}
	return &s, nil
}

func writeJSON(name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(name, append(data, '\n'), 0o644)
}
