package check

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/flakelease/allocator/chaos/devtest"
	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

var live = flag.String("live", "", "path of the Prometheus to run; without it, TestLive is skipped")

// prometheus is a running Prometheus.
type prometheus struct{ addr string }

// shorten changes only durations, so that a test does not wait for minutes: every
// `for` and `keep_firing_for` that is not 0 becomes a second, and rates cover 10 s.
func shorten(text string) string {
	text = regexp.MustCompile(`(?m)^( +(?:keep_firing_)?for:) [1-9].*$`).ReplaceAllString(text, "$1 1s")
	return regexp.MustCompile(`\[(2|5|10)m\]`).ReplaceAllString(text, "[10s]")
}

// run starts a Prometheus with these rules, which scrapes the nodes of each job every second.
func run(t *testing.T, jobs map[string][]devtest.Node) prometheus {
	t.Helper()
	dir := t.TempDir()
	var c strings.Builder
	c.WriteString("global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: [rules.yaml]\nscrape_configs:\n")
	for _, job := range slices.Sorted(maps.Keys(jobs)) {
		fmt.Fprintf(&c, "  - job_name: %s\n    static_configs:\n      - labels: {namespace: live}\n        targets:\n", job)
		for _, n := range jobs[job] {
			fmt.Fprintf(&c, "          - %s\n", n.Admin)
		}
	}
	for name, text := range map[string]string{"prometheus.yaml": c.String(), "rules.yaml": shorten(readFile(t, rulesFile))} {
		fatal.If(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	p := prometheus{loopback.Address()}
	devtest.Start(t, nil, *live, "--config.file", filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path", filepath.Join(dir, "data"), "--web.listen-address", p.addr, "--log.level", "warn")
	wait.NoError(t, "Prometheus is ready", func() error {
		_, err := get(t.Context(), "http://"+p.addr+"/-/ready")
		return err
	})
	return p
}

// ask decodes the answer to an API call.
func (p prometheus) ask(ctx context.Context, path string, into any) error {
	b, err := get(ctx, "http://"+p.addr+"/api/v1/"+path)
	if err != nil {
		return err
	}
	var answer struct{ Data json.RawMessage }
	if err := json.Unmarshal(b, &answer); err != nil {
		return err
	}
	return json.Unmarshal(answer.Data, into)
}

// firing returns the alerts of a job that fire, as "name" and "name node".
func (p prometheus) firing(t *testing.T, job string) (map[string]bool, error) {
	t.Helper()
	var list struct {
		Alerts []struct {
			Labels, Annotations map[string]string
			State               string
		}
	}
	if err := p.ask(t.Context(), "alerts", &list); err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, a := range list.Alerts {
		for key, text := range a.Annotations {
			if regexp.MustCompile(`<no value>|error expanding|%!|\{\{|NaN`).MatchString(text) {
				t.Errorf("%s: %s: %q", a.Labels["alertname"], key, text)
			}
		}
		if a.Labels["job"] == job && a.State == "firing" {
			out[a.Labels["alertname"]] = true
			out[a.Labels["alertname"]+" "+a.Labels["node"]] = true
		}
	}
	return out, nil
}

// await waits until the alerts in fire are firing for a job, and those in quiet are not.
func (p prometheus) await(t *testing.T, job string, fire, quiet []string) {
	t.Helper()
	began := time.Now()
	wait.NoError(t, job+": alerts", func() error {
		got, err := p.firing(t, job)
		if err != nil {
			return err
		}
		for _, a := range fire {
			if !got[a] {
				err = errors.Join(err, fmt.Errorf("%s is not firing", a))
			}
		}
		for _, a := range quiet {
			if got[a] {
				err = errors.Join(err, fmt.Errorf("%s is firing", a))
			}
		}
		return err
	})
	t.Logf("%s: after %v: %v", job, time.Since(began).Round(time.Second), fire)
}

// Alerts fire in a real Prometheus while faults are injected into real nodes: the etcd of
// two nodes is paused, and of three others one has a clock that is a second ahead.
func TestLive(t *testing.T) {
	if *live == "" {
		t.Skip("not run: it needs a Prometheus; see make chart")
	}
	program := devtest.Program(t)
	skewed := devtest.Dev(t, program, 3)
	res, err := http.PostForm(skewed[0].Console+"break", url.Values{"target": {"node-3"}, "action": {"skew"}})
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%v %v", res, err)
	}
	_ = res.Body.Close()
	etcd := devtest.Dev(t, program, 1)[0]
	if out, err := exec.Command(program, "init", "--fresh", "--space", "cut", "--etcd.endpoints", etcd.Etcd).CombinedOutput(); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	var cut []devtest.Node
	for _, name := range []string{"cut-1", "cut-2"} {
		cut = append(cut, devtest.Serve(t, program, etcd.Etcd, name, "--space", "cut", "--lease.window", "10s",
			"--lease.ttl", "10s"))
	}
	ctx, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	defer callers.Wait()
	defer stop()
	for _, n := range cut {
		callers.Go(func() {
			for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
				r, err := http.Post("http://"+n.HTTP+"/v1/ids", "application/json", strings.NewReader("{}"))
				if err == nil {
					_, _ = io.Copy(io.Discard, r.Body)
					_ = r.Body.Close()
				}
			}
		})
	}
	p := run(t, map[string][]devtest.Node{"cut": cut, "skewed": skewed})

	outage := []string{
		"AllocatorWindowLow cut-1", "AllocatorWindowLow cut-2", "AllocatorEtcdGone", "AllocatorEtcdErrors cut-1", "AllocatorEtcdErrors cut-2",
	}
	after := []string{"AllocatorWindowExhausted", "AllocatorRefusals", "AllocatorNoNodeReady", "AllocatorNodeNotReady cut-1", "AllocatorNodeNotReady cut-2"}
	healthy := slices.Concat(outage, after, []string{"AllocatorLeaseShort", "AllocatorClockSkew", "AllocatorDuplicateHolder", "AllocatorTargetDown"})
	wait.NoError(t, "all nodes are scraped", func() error {
		var v struct{ Result []json.RawMessage }
		if err := p.ask(t.Context(), "query?query="+url.QueryEscape(`allocator_node_info and on (instance) up == 1`), &v); err != nil {
			return err
		}
		if len(v.Result) != len(cut)+len(skewed) {
			return fmt.Errorf("%d nodes are scraped", len(v.Result))
		}
		return nil
	})
	p.await(t, "skewed", []string{"AllocatorClockSkew node-3", "AllocatorFalseticker", "AllocatorNodeNotReady node-3"}, []string{"AllocatorNoNodeReady", "AllocatorClusterSplit", "AllocatorClockSkew node-1", "AllocatorWindowLow", "AllocatorEtcdGone"})
	p.await(t, "cut", nil, healthy)

	fatal.If(t, etcd.Signal(syscall.SIGSTOP))
	p.await(t, "cut", []string{"AllocatorWindowLow cut-1", "AllocatorWindowLow cut-2"}, nil)
	got, err := p.firing(t, "cut")
	t.Logf("AllocatorWindowExhausted fires already: %v (%v)", got["AllocatorWindowExhausted"], err)
	p.await(t, "cut", outage, nil)
	p.await(t, "cut", after, []string{"AllocatorClockSkew", "AllocatorTargetDown"})
	p.await(t, "skewed", []string{"AllocatorClockSkew node-3"}, []string{"AllocatorNoNodeReady", "AllocatorWindowLow", "AllocatorEtcdGone", "AllocatorWindowExhausted"})
	p.evaluated(t)

	fatal.If(t, etcd.Signal(syscall.SIGCONT))
	p.await(t, "cut", nil, healthy)
}

// evaluated fails the test if a rule or a query of the dashboard cannot be evaluated
// with several nodes: only here can both sides of a match have many series.
func (p prometheus) evaluated(t *testing.T) {
	t.Helper()
	var list struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	fatal.If(t, p.ask(t.Context(), "rules", &list))
	n := 0
	for _, g := range list.Groups {
		for _, r := range g.Rules {
			n++
			if r.Health != "ok" {
				t.Errorf("%s: %s: %s", r.Name, r.Health, r.LastError)
			}
		}
	}
	if want := len(rules(t)); n != want {
		t.Errorf("Prometheus has %d rules, want %d", n, want)
	}
	asked, _ := queries(t)
	var empty []string
	for _, q := range asked {
		var v struct{ Result []json.RawMessage }
		if err := p.ask(t.Context(), "query?query="+url.QueryEscape(strings.ReplaceAll(q.expr, "[1m]", "[10s]")), &v); err != nil {
			t.Errorf("panel %q: %v", q.panel, err)
		}
		if len(v.Result) == 0 {
			empty = append(empty, q.panel+": "+q.legend)
		}
	}
	if len(empty) > len(asked)/4 {
		t.Errorf("%d of %d queries have no result", len(empty), len(asked))
	}
	t.Logf("%d rules and %d queries were evaluated; queries without a result: %q", n, len(asked), empty)
}

// get returns the body of a page; a status other than 200 is an error.
func get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(io.LimitReader(r.Body, 16<<20))
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, b)
	}
	return b, err
}
