package charttest

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/internal/config"
)

// flagsExist checks that a command has the flags of a line, and the chart the nodes of its --addr.
func flagsExist(t *testing.T, chart rendered, line []string) {
	t.Helper()
	reference := commandLine(t)
	_, section, ok := strings.Cut(reference, "\n## allocator "+line[0]+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !ok {
		t.Fatalf("there is no allocator %s", line[0])
	}
	for _, arg := range line[1:] {
		if arg == "--" { // The rest is of another program.
			break
		}
		flag, value, _ := strings.Cut(arg, "=")
		setting := line[0] == "agent" &&
			slices.ContainsFunc(config.Options(), func(o config.Option) bool { return "--"+o.Key == flag })
		if !setting && !regexp.MustCompile(regexp.QuoteMeta(flag)+"[ `]").MatchString(section) {
			t.Errorf("allocator %s has no flag %s", line[0], flag)
		}
		if flag == "--addr" && !strings.HasPrefix(value, "unix:") {
			host, port, _ := strings.Cut(value, ":")
			service, _, _ := strings.Cut(host, ".")
			if !strings.Contains(chart.find(t, "Service/"+service).text, "port: "+port) {
				t.Errorf("the chart has no %s", value)
			}
		}
		path, socket := strings.CutPrefix(value, "unix:")
		if socket && !strings.HasPrefix(line[0], "worker ") && !strings.HasPrefix(path, "/run/allocator/") {
			t.Errorf("%s is not in the shared directory", arg)
		}
	}
}

// agentPod checks that a pod runs an agent with flags that exist, at nodes of a Service of the chart,
// and mounts what it has. It returns the directory of the sockets.
func agentPod(t *testing.T, chart rendered, pod corev1.PodSpec, c corev1.Container) (volume string) {
	t.Helper()
	probe := c.StartupProbe
	if probe == nil {
		probe = c.ReadinessProbe
	}
	flagsExist(t, chart, c.Args)
	flagsExist(t, chart, probe.Exec.Command[1:])
	volumesExist(t, pod, c)
	for _, m := range c.VolumeMounts {
		if m.MountPath == "/run/allocator" {
			volume = m.Name
		}
	}
	return volume
}

// volumesExist checks that a pod has the volumes that a container mounts.
func volumesExist(t *testing.T, pod corev1.PodSpec, c corev1.Container) {
	t.Helper()
	for _, m := range c.VolumeMounts {
		if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
			t.Errorf("no volume %s", m.Name)
		}
	}
}

// examplePods returns the pods of Deployments of examples, which are valid and pass the Pod Security level "restricted".
func examplePods(t *testing.T, name string) (out []corev1.PodSpec) {
	t.Helper()
	text, err := os.ReadFile("../../../examples/" + name)
	fatal.If(t, err)
	check, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	fatal.If(t, err)
	level := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		d, ok := typed(t, parse(t, part)).(*appsv1.Deployment)
		if !ok {
			t.Fatalf("not a Deployment:\n%s", part)
		}
		for _, result := range check.EvaluatePod(level, &d.Spec.Template.ObjectMeta, &d.Spec.Template.Spec) {
			if !result.Allowed {
				t.Errorf("%s: %s: %s", d.Name, result.ForbiddenReason, result.ForbiddenDetail)
			}
		}
		out = append(out, d.Spec.Template.Spec)
	}
	return out
}

// The runner of a database has flags that exist, at nodes of the chart, and its probe a port.
func TestDatabaseExample(t *testing.T) {
	pod := examplePods(t, "sql/kubernetes.yaml")[0]
	chart := mustRender(t, ciValues(t)["evaluation"], occasion{name: "install", release: "allocator"})
	c := pod.Containers[0]
	flagsExist(t, chart, append([]string{"sql run"}, c.Args[2:]...))
	if c.Args[0]+" "+c.Args[1] != "sql run" || c.ReadinessProbe.HTTPGet.Port.StrVal != c.Ports[0].Name ||
		!slices.Contains(c.Args, fmt.Sprint("--metrics=:", c.Ports[0].ContainerPort)) {
		t.Errorf("%v, %+v, %+v", c.Args, c.ReadinessProbe, c.Ports)
	}
}

// The agent of examples/agent/kubernetes.yaml shares its sockets with the program.
func TestAgentExample(t *testing.T) {
	pod := examplePods(t, "agent/kubernetes.yaml")[0]
	chart := mustRender(t, ciValues(t)["evaluation"], occasion{name: "install", release: "allocator"})
	agent := pod.InitContainers[0]
	if p := agent.RestartPolicy; p == nil || *p != corev1.ContainerRestartPolicyAlways {
		t.Error("the agent is no native sidecar")
	}
	volume := agentPod(t, chart, pod, agent)
	if !slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume }) {
		t.Error("the program does not mount the sockets")
	}
}

// The workers of examples/workers/kubernetes.yaml run commands with flags that exist, at nodes of the chart.
func TestWorkersExample(t *testing.T) {
	chart := mustRender(t, ciValues(t)["evaluation"], occasion{name: "install", release: "allocator"})
	ran := map[string]bool{}
	for _, pod := range examplePods(t, "workers/kubernetes.yaml") {
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			volumesExist(t, pod, c)
			lines := [][]string{c.Args}
			if c.StartupProbe != nil {
				lines = append(lines, c.StartupProbe.Exec.Command[1:])
			}
			for _, line := range lines {
				if len(line) < 2 || line[0] != "worker" {
					continue
				}
				ran[line[1]] = true
				words := []string{"worker " + line[1]}
				for _, e := range c.Env {
					if e.Name == "ALLOCATOR_ADDR" && line[1] != "show" {
						words = append(words, "--addr="+e.Value)
					}
				}
				if line[1] != "install" { // That command takes a path, and no flags.
					words = append(words, line[2:]...)
				}
				flagsExist(t, chart, words)
			}
		}
	}
	if len(ran) != 4 {
		t.Errorf("the example runs %v", ran)
	}
}

// The DaemonSet is valid, selects its own pods and no node's, and may do no more than it has to.
func TestAgents(t *testing.T) {
	for _, extra := range []string{"{}", "{auth: {existingSecret: s}, tls: {existingSecret: c}, test: {enabled: false}, agent: {token: {existingSecret: t}}}"} {
		values := ciValues(t)["external"]
		var more map[string]any
		fatal.If(t, yaml.Unmarshal([]byte(extra), &more))
		own, _ := more["agent"].(map[string]any)
		if own == nil {
			own = map[string]any{}
		}
		own["enabled"] = true
		for k, v := range more {
			values[k] = v
		}
		values["agent"] = own
		chart := mustRender(t, values, occasion{name: "install", release: "allocator"})
		d, ok := typed(t, chart.find(t, "DaemonSet/allocator-agent")).(*appsv1.DaemonSet)
		if !ok {
			t.Fatal("not a DaemonSet")
		}
		if d.Spec.Selector.MatchLabels["app.kubernetes.io/component"] != "agent" || d.Spec.Template.Labels["app.kubernetes.io/component"] != "agent" {
			t.Errorf("it selects %v", d.Spec.Selector.MatchLabels)
		}
		pod := d.Spec.Template.Spec
		c := pod.Containers[0]
		if volume := agentPod(t, chart, pod, c); volume != "sockets" || pod.Volumes[0].HostPath.Path != "/run/allocator" {
			t.Errorf("sockets are in %s, %+v", volume, pod.Volumes[0])
		}
		sc := c.SecurityContext
		if *sc.AllowPrivilegeEscalation || !*sc.ReadOnlyRootFilesystem || !slices.Contains(sc.Capabilities.Drop, "ALL") ||
			*pod.AutomountServiceAccountToken || *pod.EnableServiceLinks {
			t.Errorf("it may do too much: %+v", sc)
		}
		if secure := len(more) > 0; secure != slices.Contains(c.Args, "--token-file=/etc/allocator/token/token") ||
			secure != slices.Contains(c.Args, "--ca=/etc/allocator/tls/ca.crt") {
			t.Errorf("TLS and token: %q", c.Args)
		}
	}
}
