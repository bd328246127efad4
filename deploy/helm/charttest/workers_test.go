package charttest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/flakelease/allocator/chaos/fatal"
)

// examples/workers/kubernetes.yaml is valid, passes the Pod Security level "restricted",
// and names commands, flags and a Service that exist.
func TestWorkersExample(t *testing.T) {
	text, err := os.ReadFile("../../../examples/workers/kubernetes.yaml")
	fatal.If(t, err)
	reference := commandLine(t)
	check, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	fatal.If(t, err)
	chart := mustRender(t, ciValues(t)["evaluation"], occasion{name: "install", release: "allocator"})
	ran := map[string]bool{}
	for _, part := range strings.Split(string(text), "\n---\n") {
		d, ok := typed(t, parse(t, part)).(*appsv1.Deployment)
		if !ok {
			t.Fatalf("not a Deployment:\n%s", part)
		}
		pod := d.Spec.Template.Spec
		for _, result := range check.EvaluatePod(psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}, &d.Spec.Template.ObjectMeta, &pod) {
			if !result.Allowed {
				t.Errorf("%s: %s: %s", d.Name, result.ForbiddenReason, result.ForbiddenDetail)
			}
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			for _, e := range c.Env {
				if e.Name == "ALLOCATOR_ADDR" {
					service, port, _ := strings.Cut(e.Value, ":")
					if !strings.Contains(chart.find(t, "Service/"+service).text, "port: "+port) {
						t.Errorf("%s: the chart has no %s", d.Name, e.Value)
					}
				}
			}
			lines := [][]string{c.Args}
			if c.StartupProbe != nil {
				lines = append(lines, c.StartupProbe.Exec.Command[1:])
			}
			for _, line := range lines {
				if len(line) < 2 || line[0] != "worker" {
					continue
				}
				_, section, ok := strings.Cut(reference, "\n## allocator worker "+line[1]+"\n")
				section, _, _ = strings.Cut(section, "\n## ")
				if !ok {
					t.Errorf("%s: there is no allocator worker %s", d.Name, line[1])
				}
				ran[line[1]] = true
				for _, arg := range line[2:] {
					if arg == "--" {
						break
					}
					if flag := regexp.MustCompile(`^--[a-z-]+`).FindString(arg); flag != "" && !strings.Contains(section, " "+flag+" ") {
						t.Errorf("%s: allocator worker %s has no flag %s", d.Name, line[1], flag)
					}
				}
			}
			for _, m := range c.VolumeMounts {
				if !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name }) {
					t.Errorf("%s: no volume %s", d.Name, m.Name)
				}
			}
		}
	}
	if len(ran) != 4 {
		t.Errorf("the example runs %v", ran)
	}
}
