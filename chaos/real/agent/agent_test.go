package agent

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/history"
	"github.com/flakelease/allocator/chaos/pages"
	"github.com/flakelease/allocator/chaos/real/rig"
	"github.com/flakelease/allocator/chaos/real/rigtest"
	"github.com/flakelease/allocator/chaos/tier"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/flake"
)

func TestMain(m *testing.M) { rigtest.Main(m) }

// cluster starts three nodes, and returns what starts an agent of them at a socket.
func cluster(t *testing.T) (*rig.Rig, func(name, socket string) *rig.Process) {
	t.Helper()
	r := rigtest.New(t, rig.Default, false)
	fatal.If(t, r.Start(t.Context()))
	return r, func(name, socket string) *rig.Process {
		p := &rig.Process{Name: name, Place: rig.Loopback{}, Path: r.Allocator, Dir: t.TempDir(),
			Args: []string{"agent", "--addr", strings.Join(rigtest.Addresses(r), ","), "--listen.resp", "unix:" + socket}}
		t.Cleanup(func() {
			_ = p.Kill()
			rigtest.Log(t, p)
		})
		return p
	}
}

// request is what a program was given.
type request struct {
	began, ended time.Time
	ids          []flake.ID
}

// drawn collects what programs were given.
type drawn struct {
	mu       sync.Mutex // guards the rest
	seen     map[flake.ID]string
	requests []request
	retries  map[string]int
}

// note takes what a program printed.
func (d *drawn) note(who string, began time.Time, printed string) error {
	r := request{began: began, ended: time.Now()}
	d.mu.Lock()
	defer d.mu.Unlock()
	for line := range strings.Lines(printed) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word == "RETRIES" {
			n, err := strconv.Atoi(rest)
			if err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			d.retries[who] += n
			continue
		}
		id, err := flake.Parse(word)
		if err != nil {
			return fmt.Errorf("%q is no ID: %w", line, err)
		}
		if other := d.seen[id]; other != "" {
			return fmt.Errorf("the ID %v came twice: to %s and to %s", id, other, who)
		}
		d.seen[id] = who
		r.ids = append(r.ids, id)
	}
	if len(r.ids) == 0 {
		return fmt.Errorf("no ID: %q", printed)
	}
	d.requests = append(d.requests, r)
	return nil
}

func (d *drawn) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.seen)
}

// disorder returns a pair of requests of one run of the agent of which the later has the lower ID, or
// "". Runs are the times at which they were ready, and at which they were told to end.
func (d *drawn) disorder(runs [][2]time.Time) (compared int, wrong string) {
	for _, run := range runs {
		in := slices.DeleteFunc(slices.Clone(d.requests), func(r request) bool {
			return r.began.Before(run[0]) || r.ended.After(run[1])
		})
		compared += len(in)
		ended := slices.Clone(in)
		slices.SortFunc(in, func(a, b request) int { return a.began.Compare(b.began) })
		slices.SortFunc(ended, func(a, b request) int { return a.ended.Compare(b.ended) })
		var highest flake.ID // Requests that ended before this one began had none above it.
		for _, r := range in {
			for len(ended) > 0 && ended[0].ended.Before(r.began) {
				highest = max(highest, slices.Max(ended[0].ids))
				ended = ended[1:]
			}
			if lowest := slices.Min(r.ids); lowest <= highest || !slices.IsSorted(r.ids) {
				return compared, fmt.Sprintf("a request that began at %v got %v, and one before it %v", r.began, r.ids, highest)
			}
		}
	}
	return compared, ""
}

// TestFaults draws IDs in PHP-FPM, in gunicorn and by redis-cli, while the agent is stopped and
// killed, and nodes are killed and paused.
func TestFaults(t *testing.T) {
	tier.Check(t, "three real nodes, PHP-FPM and gunicorn, for half a minute")
	rounds := tier.Of(t, "rounds of all faults", 1, 1, 10)
	nodes, start := cluster(t)
	dir := t.TempDir()
	socket := filepath.Join(dir, "agent.sock")
	agent := start("agent", socket)

	var callers []*caller
	for _, kind := range []func(dir, agent string) (*caller, error){fpm, gunicorn, redisCLI} {
		c, err := kind(dir, socket)
		if err != nil {
			t.Logf("not run: %v", err)
			continue
		}
		callers = append(callers, c)
	}
	if len(callers) == 0 {
		t.Skip("none of the programs is installed")
	}
	d := &drawn{seen: map[flake.ID]string{}, retries: map[string]int{}}
	var runs [][2]time.Time
	up := func() {
		t.Helper()
		fatal.If(t, agent.Start())
		wait.Until(t, "the agent listens", func() bool {
			return strings.Contains(agent.Output(agent.Run()), "msg=listening")
		})
		runs = append(runs, [2]time.Time{time.Now(), time.Now().Add(time.Hour)})
	}
	down := func() { runs[len(runs)-1][1] = time.Now() }
	up()

	draw := func(ctx context.Context, c *caller) error {
		within, end := context.WithTimeout(ctx, wait.Most)
		defer end()
		began := time.Now()
		out, err := c.draw(within)
		if err == nil {
			err = d.note(c.name, began, out)
		}
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	progress := map[string]*atomic.Int64{}
	for _, c := range callers {
		if p := c.process; p != nil {
			fatal.If(t, p.Start())
			t.Cleanup(func() {
				_ = p.Terminate(5 * time.Second)
				if t.Failed() {
					t.Logf("--- the log of %s\n%s", c.name, p.Output(p.Run()))
				}
			})
		}
		wait.NoError(t, c.name+" begins", func() error { return draw(ctx, c) })
		n := new(atomic.Int64)
		progress[c.name] = n
		for range c.atOnce {
			all.Go(func() {
				for ctx.Err() == nil {
					// A request that is under way at the end may finish.
					if err := draw(context.WithoutCancel(ctx), c); err != nil {
						t.Errorf("%s: %v", c.name, err)
						return
					}
					n.Add(1)
				}
			})
		}
	}
	onward := func(what string) {
		t.Helper()
		for _, c := range callers {
			from := progress[c.name].Load()
			wait.Until(t, what+", "+c.name+" goes on", func() bool {
				if t.Failed() {
					t.FailNow()
				}
				return progress[c.name].Load() >= from+2*int64(c.atOnce)
			})
		}
		t.Logf("%s: %d IDs", what, d.count())
	}
	onward("at first")
	for round := range rounds {
		down()
		fatal.If(t, agent.Terminate(wait.Most))
		up()
		onward("after the agent was stopped")
		down()
		fatal.If(t, agent.Kill())
		if _, err := os.Stat(socket); err != nil {
			t.Errorf("a killed agent leaves its socket: %v", err)
		}
		up()
		onward("after the agent was killed")
		n := nodes.Nodes[round%3]
		fatal.If(t, n.Kill())
		onward("after a node was killed")
		fatal.If(t, n.Start())
		n = nodes.Nodes[(round+1)%3]
		fatal.If(t, n.Pause())
		time.Sleep(3 * time.Second)
		onward("while a node is paused")
		fatal.If(t, n.Resume())
		onward("after it went on")
	}
	cancel()
	all.Wait()
	down()
	compared, wrong := d.disorder(runs)
	if wrong != "" {
		history.Violated(t, "I2", "%s", wrong)
	}
	t.Logf("%d IDs, each once; %d of %d requests were compared; retries: %v", d.count(), compared, len(d.requests), d.retries)
	if compared < len(d.requests)/2 {
		t.Error("the order of most requests is not known")
	}
}

// TestDisorder: the check of the order notices a later request with a lower ID.
func TestDisorder(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	d := &drawn{requests: []request{
		{at(1), at(2), []flake.ID{5, 6}}, {at(3), at(4), []flake.ID{3}}, {at(9), at(10), []flake.ID{1}},
	}}
	if _, wrong := d.disorder([][2]time.Time{{at(0), at(20)}}); wrong == "" {
		t.Error("a lower ID was not noticed")
	}
	if _, wrong := d.disorder([][2]time.Time{{at(0), at(2)}, {at(3), at(5)}, {at(8), at(20)}}); wrong != "" {
		t.Errorf("of several runs: %s", wrong)
	}
	d = &drawn{seen: map[flake.ID]string{}, retries: map[string]int{}}
	if err := d.note("a", at(0), flake.ID(7).String()+"\nRETRIES 2\n"); err != nil || d.retries["a"] != 2 {
		t.Errorf("%v, %v", err, d.retries)
	}
	for _, printed := range []string{flake.ID(7).String(), "ERROR refused", "", "RETRIES x"} {
		if err := d.note("b", at(0), printed); err == nil {
			t.Errorf("%q was taken", printed)
		}
	}
}

const page = "../../../docs/how-to/ids-in-php-and-other-short-lived-processes.md"

// TestPage runs the commands of the how-to page.
func TestPage(t *testing.T) {
	tier.Check(t, "three real nodes")
	for name, args := range map[string][]string{
		"redis-cli": {"redis-cli", "--version"}, "curl": {"curl", "--version"}, "python3": {debianPython, "--version"},
		"php-redis": {"php", "-r", `class_exists("Redis") or exit(1);`},
	} {
		if err := exec.Command(args[0], args[1:]...).Run(); err != nil {
			t.Skipf("not run: %s is not installed: %v", name, err)
		}
	}
	python, err := filepath.Abs("../../../clients/python/src") // stands for the package, which is not published yet
	fatal.If(t, err)
	nodes, _ := cluster(t)
	dir := t.TempDir()
	fatal.If(t, os.WriteFile(filepath.Join(dir, ".curlrc"), []byte("silent\nshow-error\n"), 0o600))
	sh := pages.NewShell(t, pages.Config{
		Dir: dir,
		Env: []string{
			"FAKETTY=1", "CURL_HOME=" + dir, "PYTHONPATH=" + python, "PYTHONDONTWRITEBYTECODE=1",
			"PATH=" + rigtest.Programs + ":" + filepath.Dir(debianPython) + ":" + os.Getenv("PATH"),
		},
		Here: strings.NewReplacer("/run/allocator/", dir+"/", "/run/allocator", dir,
			"node1:9000,node2:9000,node3:9000", strings.Join(rigtest.Addresses(nodes), ",")),
	})
	pages.Open(t, page).Follow(t, sh)
}
