package charttest

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/config"
)

// settingsOf loads the settings that the chart gives a pod, as the pod would.
func settingsOf(t testing.TB, r rendered, p pod) (config.Config, []config.Setting) {
	t.Helper()
	var env []string
	vars := strings.NewReplacer("$(POD_IP)", "10.1.2.3", "$(POD_NAME)", "ids-allocator-0")
	for _, e := range p.spec.Containers[0].Env {
		if e.ValueFrom == nil {
			env = append(env, e.Name+"="+vars.Replace(e.Value))
		}
	}
	name := ""
	for _, v := range p.spec.Volumes {
		if v.Name == "config" {
			name = v.ConfigMap.Name
		}
	}
	data, ok := typed(t, r.find(t, "ConfigMap/"+name)).(*corev1.ConfigMap)
	if !ok {
		t.Fatalf("%s: no ConfigMap", p.owner)
	}
	path := filepath.Join(t.TempDir(), "allocator.yaml")
	fatal.If(t, os.WriteFile(path, []byte(data.Data["allocator.yaml"]), 0o600))
	c, settings, err := config.Load(config.Sources{File: path, Env: env})
	if err != nil {
		t.Fatalf("%s: %v", p.owner, err)
	}
	return c, settings
}

// nodePod is the template of a node's pod.
func nodePod(t testing.TB, r rendered) (pod, *appsv1.StatefulSet) {
	t.Helper()
	for _, p := range pods(t, r.objects) {
		if p.meta.Labels["app.kubernetes.io/component"] == "node" {
			return p, typed(t, r.find(t, p.owner)).(*appsv1.StatefulSet)
		}
	}
	t.Fatal("no node pod is rendered")
	return pod{}, nil
}

func TestNodesReadTheirSettings(t *testing.T) {
	forEach(t, func(t *testing.T, r rendered) {
		for _, p := range pods(t, r.all()) {
			if c := p.meta.Labels["app.kubernetes.io/component"]; c != "node" && c != "init" {
				continue
			}
			c, settings := settingsOf(t, r, p)
			if err := c.Validate(); err != nil {
				t.Errorf("%s: %v", p.owner, err)
			}
			if len(c.Etcd.Endpoints) == 0 {
				t.Errorf("%s has no etcd endpoints", p.owner)
			}
			mounts := mountsOf(p)
			for _, s := range settings {
				if strings.HasPrefix(s.Value, "/") && !slices.ContainsFunc(mounts, func(m string) bool { return strings.HasPrefix(s.Value, m+"/") }) {
					t.Errorf("%s: %s is %s, which is in none of the mounts %q", p.owner, s.Key, s.Value, mounts)
				}
			}
		}
	})
}

func mountsOf(p pod) []string {
	var out []string
	for _, m := range p.spec.Containers[0].VolumeMounts {
		out = append(out, m.MountPath)
	}
	return out
}

// The init Job and the nodes must use the same space.
func TestInitAndNodesUseTheSameSpace(t *testing.T) {
	for name, values := range ciValues(t) {
		r := mustRender(t, values, install)
		node, _ := nodePod(t, r)
		n, _ := settingsOf(t, r, node)
		for _, p := range pods(t, r.all()) {
			if p.meta.Labels["app.kubernetes.io/component"] != "init" {
				continue
			}
			i, _ := settingsOf(t, r, p)
			if n.Space != i.Space || n.Root != i.Root || n.Layout != i.Layout || n.Epoch != i.Epoch || n.Lease != i.Lease || n.Issue != i.Issue ||
				strings.Join(n.Etcd.Endpoints, " ") != strings.Join(i.Etcd.Endpoints, " ") || n.Etcd.TLS != i.Etcd.TLS || n.Etcd.Username != i.Etcd.Username {
				t.Errorf("%s: nodes use\n%+v\nand init uses\n%+v", name, n, i)
			}
		}
	}
}

// Ports are defined in five places.
func TestPortsAgree(t *testing.T) {
	forEach(t, func(t *testing.T, r rendered) {
		p, _ := nodePod(t, r)
		c, _ := settingsOf(t, r, p)
		want := map[string]string{"grpc": c.Listen.GRPC, "http": c.Listen.HTTP, "admin": c.Listen.Admin, "gossip-tcp": c.Listen.Gossip, "gossip-udp": c.Listen.Gossip}
		if c.Listen.RESP != "" {
			want["resp"] = c.Listen.RESP
		}
		container := p.spec.Containers[0]
		if len(container.Ports) != len(want) {
			t.Errorf("%d ports, want %d", len(container.Ports), len(want))
		}
		for _, port := range container.Ports {
			if got := portOf(t, want[port.Name]); got != port.ContainerPort {
				t.Errorf("port %s of the pod is %d, but the node listens on %d", port.Name, port.ContainerPort, got)
			}
		}
		if g, h := portOf(t, c.Advertise.GRPC), portOf(t, c.Advertise.HTTP); g != portOf(t, c.Listen.GRPC) || h != portOf(t, c.Listen.HTTP) {
			t.Errorf("advertised ports are %d and %d", g, h)
		}
		for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
			if probe.HTTPGet.Port.StrVal != "admin" || (probe.HTTPGet.Scheme == corev1.URISchemeHTTPS) != c.TLS.Admin {
				t.Errorf("a probe uses port %s with %s", probe.HTTPGet.Port.StrVal, probe.HTTPGet.Scheme)
			}
		}
		if container.ReadinessProbe.HTTPGet.Path != "/readyz" || container.LivenessProbe.HTTPGet.Path != "/livez" || container.StartupProbe.HTTPGet.Path != "/livez" {
			t.Error("want /readyz for readiness, and /livez, which needs neither etcd nor a clock, for liveness and startup")
		}
		d := config.Default().Listen
		for name, of := range map[string]string{"grpc": d.GRPC, "http": d.HTTP, "admin": d.Admin, "gossip-tcp": d.Gossip} {
			if portOf(t, want[name]) != portOf(t, of) {
				t.Errorf("%s is not on the node's default port", name)
			}
		}
	})
}

func portOf(t testing.TB, addr string) int32 {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	fatal.If(t, err)
	n, err := strconv.Atoi(port)
	fatal.If(t, err)
	return int32(n)
}

// The kubelet does not kill a node that is still releasing its sid, which takes up to
// config.StopWithin.
func TestGrace(t *testing.T) {
	for _, tt := range []struct {
		values string
		margin time.Duration
	}{
		{"", 10 * time.Second},
		{"shutdown: {drainDelaySeconds: 0, marginSeconds: 0}", 0},
		{"shutdown: {drainDelaySeconds: 17, marginSeconds: 4}", 4 * time.Second},
	} {
		r := mustRender(t, with(t, tt.values), install)
		p, _ := nodePod(t, r)
		c, _ := settingsOf(t, r, p)
		if got, want := time.Duration(*p.spec.TerminationGracePeriodSeconds)*time.Second, c.StopWithin()+tt.margin; got != want {
			t.Errorf("%q: terminationGracePeriodSeconds is %v, want %v", tt.values, got, want)
		}
	}
}

// Arguments are flags that the command has.
func TestFlagsExist(t *testing.T) {
	flags := map[string][]string{}
	command := ""
	for line := range strings.Lines(commandLine(t)) {
		if c, ok := strings.CutPrefix(line, "## allocator "); ok {
			command = strings.TrimSpace(c)
		}
		if m := regexp.MustCompile(`^\s+(?:-\w, )?--([a-z0-9.-]+)`).FindStringSubmatch(line); m != nil {
			flags[command] = append(flags[command], m[1])
		}
		if strings.HasPrefix(line, "[Shared](#flags") {
			for _, m := range regexp.MustCompile("`--([a-z0-9.-]+)`").FindAllStringSubmatch(line, -1) {
				flags[command] = append(flags[command], m[1])
			}
		}
	}
	for _, o := range config.Options() {
		for _, c := range []string{"serve", "init", "doctor"} {
			flags[c] = append(flags[c], o.Key)
		}
	}
	commands := map[string]bool{}
	forEach(t, func(t *testing.T, r rendered) {
		for _, p := range pods(t, r.all()) {
			if p.meta.Labels["app.kubernetes.io/component"] == "etcd" {
				continue
			}
			args := p.spec.Containers[0].Args
			if args[0] == "etcd-pod" {
				continue // The reference leaves it out; TestEtcdPodFlags of cmd/allocator has it.
			}
			commands[args[0]] = true
			for _, a := range args[1:] {
				name, _, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
				if !slices.Contains(flags[args[0]], name) {
					t.Errorf("%s: allocator %s has no flag %s", p.owner, args[0], a)
				}
			}
		}
	})
	for _, c := range []string{"serve", "init", "doctor"} {
		if !commands[c] {
			t.Errorf("no pod runs allocator %s", c)
		}
	}
}

// GOMEMLIMIT is nine tenths of the limit, in any of the usual formats.
func TestMemoryLimit(t *testing.T) {
	for limit, want := range map[string]string{
		"512Mi": "483183820", "1Gi": "966367641", "500M": "450000000", "134217728": "120795955", "256000Ki": "235929600", "2G": "1800000000",
	} {
		r := mustRender(t, with(t, "resources: {limits: {memory: "+limit+"}}"), install)
		p, _ := nodePod(t, r)
		for _, e := range p.spec.Containers[0].Env {
			if e.Name == "GOMEMLIMIT" && e.Value != want {
				t.Errorf("%s: GOMEMLIMIT is %s, want %s", limit, e.Value, want)
			}
		}
	}
	// In other formats the kubelet computes it: the whole limit.
	r := mustRender(t, with(t, "resources: {limits: {memory: 1.5Gi}}"), install)
	p, _ := nodePod(t, r)
	i := slices.IndexFunc(p.spec.Containers[0].Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
	if i < 0 || p.spec.Containers[0].Env[i].ValueFrom == nil {
		t.Error("no GOMEMLIMIT for 1.5Gi")
	}
	if r := mustRender(t, with(t, "resources: {limits: null}"), install); strings.Contains(r.find(t, "StatefulSet/ids-allocator").text, "GOMEMLIMIT") {
		t.Error("GOMEMLIMIT without a limit")
	}
}

// TestExpectedNodes: nodes know how many there should be, so that a missing one is missed.
func TestExpectedNodes(t *testing.T) {
	for values, want := range map[string]int{
		"replicaCount: 5": 5,
		"{replicaCount: 5, config: {cluster: {expect: 2}}}": 2,
		"{replicaCount: 5, autoscaling: {enabled: true}}":   0,
		"{replicaCount: 1, autoscaling: {enabled: false}}":  1,
	} {
		r := mustRender(t, with(t, values), install)
		p, _ := nodePod(t, r)
		if c, _ := settingsOf(t, r, p); c.Cluster.Expect != want {
			t.Errorf("%s: cluster.expect is %d, want %d", values, c.Cluster.Expect, want)
		}
	}
}
