package check

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/flakelease/allocator/chaos/certstest"
	"github.com/flakelease/allocator/chaos/devtest"
	"github.com/flakelease/allocator/chaos/wait"
	"github.com/flakelease/allocator/internal/dev/loopback"
)

// add adds the series of a metrics page.
func (c catalog) add(page []byte) error {
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return err
	}
	for name, f := range families {
		for _, m := range f.GetMetric() {
			suffixes := []string{""}
			if m.GetHistogram() != nil {
				suffixes = []string{"_bucket", "_count", "_sum"}
			}
			for _, suffix := range suffixes {
				for _, l := range m.GetLabel() {
					c.label(name+suffix, l.GetName())[l.GetValue()] = true
				}
				if suffix == "_bucket" {
					c.label(name+suffix, "le")["+Inf"] = true
				}
				for _, l := range targets {
					c.label(name+suffix, l)
					c[name+suffix][l] = nil
				}
			}
		}
	}
	return nil
}

// label returns the known values of a label of a series.
func (c catalog) label(name, label string) map[string]bool {
	if c[name] == nil {
		c[name] = family{}
	}
	if c[name][label] == nil {
		c[name][label] = map[string]bool{}
	}
	return c[name][label]
}

// exposed returns what three running nodes expose: two with all listeners, and one
// with TLS.
func exposed(t *testing.T) catalog {
	t.Helper()
	program := devtest.Program(t)
	nodes := devtest.Dev(t, program, 2, "--resp")
	cert, key := certstest.NewAuthority(t, "check").Issue(t, "node", 0, time.Hour).Write(t, t.TempDir(), "node")
	nodes = append(nodes, devtest.Serve(t, program, nodes[0].Etcd, "node-tls", "--tls.cert", cert, "--tls.key", key))
	inside := devtest.Node{Name: "node-inside", HTTP: loopback.Address(), Admin: loopback.Address()}
	dir := filepath.Join(t.TempDir(), "inside")
	devtest.Start(t, nil, program, "serve", "--etcd.inside", dir, "--etcd.snapshot-command", "test -s", "--node.name", inside.Name,
		"--listen.grpc", "", "--listen.http", inside.HTTP, "--listen.admin", inside.Admin, "--listen.gossip", loopback.Address())
	// Before that there is nothing to take snapshots of.
	if out, err := exec.Command(program, "init", "--fresh", "--timeout", "1m", "--etcd.inside", dir).CombinedOutput(); err != nil {
		t.Fatalf("init: %v\n%s", err, out)
	}
	nodes = append(nodes, inside)
	var c catalog
	wait.NoError(t, "nodes have measured each other's clocks", func() error {
		c = catalog{"up": {}}
		for _, l := range targets {
			c["up"][l] = nil
		}
		for _, n := range nodes {
			page, err := get(t.Context(), "http://"+n.Admin+"/metrics")
			if err != nil {
				return err
			}
			if err := c.add(page); err != nil {
				return err
			}
		}
		// The chart's etcd has the same series on another port.
		page, err := get(t.Context(), nodes[0].Etcd+"/metrics")
		if err != nil {
			return err
		}
		if err := c.add(page); err != nil {
			return err
		}
		for _, name := range []string{
			"allocator_clock_cluster_offset_seconds",
			"allocator_clock_offset_seconds",
			"allocator_etcd_copy_age_seconds", // The snapshot was verified, and the command ended with 0.
			"allocator_etcd_snapshot_age_seconds",
			"allocator_pool_sids",
			"allocator_tls_certificate_remaining_seconds",
			"allocator_watermark_lag_seconds",
		} {
			if c[name] == nil {
				return fmt.Errorf("no %s yet", name)
			}
		}
		return nil
	})
	known := map[string][]string{
		// A node exposes these if its kernel can be asked.
		"allocator_clock_kernel_synchronized":      nil,
		"allocator_clock_kernel_max_error_seconds": nil,
		// What takes snapshots of the chart's etcd exposes these: TestEtcdPods of cmd/allocator.
		"allocator_etcd_snapshot_timestamp_seconds": nil,
		"allocator_etcd_upkeep_failures_total":      {"task"},
	}
	for name, labels := range known {
		if c[name] != nil {
			continue
		}
		t.Logf("%s is not exposed on this machine: its labels are those that are written here", name)
		c[name] = family{}
		for _, l := range append(labels, targets...) {
			c[name][l] = nil
		}
	}
	return c
}

// An alert on a series that no node exposes never fires, without anybody noticing.
func TestExpressionsUseExposedSeries(t *testing.T) {
	c := exposed(t)
	for _, r := range rules(t) {
		got, err := c.read(r.Expr)
		if err != nil {
			t.Errorf("%s%s: %v", r.Record, r.Alert, err)
			continue
		}
		if r.Record != "" {
			c[r.Record] = family{}
			for l := range got {
				c[r.Record][l] = nil
			}
			continue
		}
		if err := got.has(r.Alert, "namespace", "job"); err != nil {
			t.Error(err)
		}
		for _, text := range r.Annotations {
			for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
				if err := got.has(r.Alert+": "+text, m[1]); err != nil {
					t.Error(err)
				}
			}
		}
	}
	all, variables := queries(t)
	for _, q := range all {
		got, err := c.read(q.expr)
		if err != nil {
			t.Errorf("panel %q: %v", q.panel, err)
			continue
		}
		for _, m := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(q.legend, -1) {
			if err := got.has("legend of panel "+q.panel, m[1]); err != nil {
				t.Error(err)
			}
		}
	}
	for _, v := range variables {
		m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v)
		if m == nil {
			t.Errorf("variable %s: want label_values(series, label)", v)
			continue
		}
		got, err := c.read(variableValues.Replace(m[1]))
		if err == nil {
			err = got.has(v, m[2])
		}
		if err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d rules and %d queries are checked; nodes expose %d series", len(rules(t)), len(all), len(c))
}
