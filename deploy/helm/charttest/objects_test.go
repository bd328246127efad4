package charttest

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/flakelease/allocator/chaos/fatal"
)

// foreign are kinds that are not part of Kubernetes and have no Go type here.
var foreign = []string{"Certificate", "Issuer", "ServiceMonitor", "PodMonitor", "PrometheusRule", "HTTPRoute", "GRPCRoute"}

// typed decodes an object as the API server does, which refuses unknown and repeated
// fields. It returns nil for a foreign kind.
func typed(t testing.TB, o object) runtime.Object {
	t.Helper()
	if slices.Contains(foreign, o.GetKind()) {
		return nil
	}
	s := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, json.SerializerOptions{Yaml: true, Strict: true})
	out, _, err := s.Decode([]byte(o.text), nil, nil)
	if err != nil {
		t.Errorf("%s: %v", o.id(), err)
	}
	return out
}

// pod is a pod or a pod template, with the object that owns it.
type pod struct {
	owner string
	meta  *metav1.ObjectMeta
	spec  *corev1.PodSpec
}

func pods(t testing.TB, objects []object) []pod {
	t.Helper()
	var out []pod
	for _, o := range objects {
		switch v := typed(t, o).(type) {
		case *appsv1.StatefulSet:
			out = append(out, pod{o.id(), &v.Spec.Template.ObjectMeta, &v.Spec.Template.Spec})
		case *batchv1.Job:
			out = append(out, pod{o.id(), &v.Spec.Template.ObjectMeta, &v.Spec.Template.Spec})
		case *batchv1.CronJob:
			template := &v.Spec.JobTemplate.Spec.Template
			out = append(out, pod{o.id(), &template.ObjectMeta, &template.Spec})
		case *corev1.Pod:
			out = append(out, pod{o.id(), &v.ObjectMeta, &v.Spec})
		}
	}
	return out
}

func TestObjects(t *testing.T) {
	seen := map[string]bool{}
	forEach(t, func(t *testing.T, r rendered) {
		names := map[string]bool{}
		for _, o := range r.all() {
			typed(t, o)
			seen[o.GetKind()] = true
			if names[o.id()] {
				t.Errorf("%s is rendered twice", o.id())
			}
			names[o.id()] = true
			if o.GetNamespace() == "" {
				t.Errorf("%s has no namespace", o.id())
			}
			if strings.HasPrefix(o.text, "# Source") {
				continue
			}
			for k, v := range o.GetLabels() {
				if errs := validation.IsValidLabelValue(v); errs != nil {
					t.Errorf("%s: label %s: %v", o.id(), k, errs)
				}
			}
		}
	})
	// Kinds that no file of ci/ renders are not checked.
	for _, kind := range append(foreign, "StatefulSet", "Job", "Pod", "Service", "ConfigMap", "ServiceAccount", "PodDisruptionBudget",
		"HorizontalPodAutoscaler", "Ingress", "NetworkPolicy", "CronJob", "Role", "RoleBinding") {
		if !seen[kind] {
			t.Errorf("no values of ci/ render a %s", kind)
		}
	}
}

// The evaluator is the one of the API server's admission.
func TestPodsAreRestricted(t *testing.T) {
	e, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	fatal.If(t, err)
	level := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
	forEach(t, func(t *testing.T, r rendered) {
		all := pods(t, r.all())
		if len(all) < 2 {
			t.Fatalf("%d pods", len(all))
		}
		for _, p := range all {
			for _, result := range e.EvaluatePod(level, p.meta, p.spec) {
				if !result.Allowed {
					t.Errorf("%s: %s: %s", p.owner, result.ForbiddenReason, result.ForbiddenDetail)
				}
			}
			if p.spec.AutomountServiceAccountToken == nil || *p.spec.AutomountServiceAccountToken {
				t.Errorf("%s mounts a token", p.owner)
			}
			if p.spec.EnableServiceLinks == nil || *p.spec.EnableServiceLinks {
				t.Errorf("%s gets environment variables for every Service", p.owner)
			}
			for _, c := range p.spec.Containers {
				if c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem {
					t.Errorf("%s has a writable root filesystem", p.owner)
				}
				if _, ok := c.Resources.Limits[corev1.ResourceCPU]; ok {
					t.Errorf("%s has a CPU limit", p.owner)
				}
			}
		}
	})
}

// Server-side apply refuses duplicate names in lists, and mounts of volumes that do
// not exist.
func TestListsHaveNoDuplicates(t *testing.T) {
	forEach(t, func(t *testing.T, r rendered) {
		for _, p := range pods(t, r.all()) {
			var volumes []string
			for _, v := range p.spec.Volumes {
				volumes = append(volumes, v.Name)
			}
			for _, o := range r.objects {
				if s, ok := typed(t, o).(*appsv1.StatefulSet); ok && o.id() == p.owner {
					for _, c := range s.Spec.VolumeClaimTemplates {
						volumes = append(volumes, c.Name)
					}
				}
			}
			once(t, p.owner, "volume", volumes)
			for _, c := range p.spec.Containers {
				var env, ports, paths []string
				for _, e := range c.Env {
					env = append(env, e.Name)
				}
				for _, port := range c.Ports {
					if port.Protocol == "" {
						t.Errorf("%s: port %s has no protocol, which is part of its key", p.owner, port.Name)
					}
					ports = append(ports, port.Name)
				}
				for _, m := range c.VolumeMounts {
					paths = append(paths, m.MountPath)
					if !slices.Contains(volumes, m.Name) {
						t.Errorf("%s mounts %s, but has no such volume", p.owner, m.Name)
					}
				}
				once(t, p.owner, "variable", env)
				once(t, p.owner, "port", ports)
				once(t, p.owner, "mount", paths)
			}
		}
	})
}

func once(t *testing.T, owner, what string, names []string) {
	t.Helper()
	sorted := slices.Sorted(slices.Values(names))
	if len(slices.Compact(sorted)) != len(names) {
		t.Errorf("%s: duplicate %s in %q", owner, what, names)
	}
}

// Selectors cannot change in an upgrade, and must select only nodes, or only etcd.
func TestSelectors(t *testing.T) {
	want := func(name, component string) map[string]string {
		return map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/instance": "ids", "app.kubernetes.io/component": component}
	}
	forEach(t, func(t *testing.T, r rendered) {
		var services int
		name := "allocator"
		if r.has("StatefulSet/order-ids") {
			name = "ids"
		}
		for _, o := range r.all() {
			check := func(got map[string]string, component string) {
				t.Helper()
				if labels.Set(got).String() != labels.Set(want(name, component)).String() {
					t.Errorf("%s selects %v", o.id(), got)
				}
			}
			component := "node"
			switch {
			case strings.HasSuffix(o.GetName(), "-etcd"), strings.HasSuffix(o.GetName(), "-etcd-peers"):
				component = "etcd"
			case strings.HasSuffix(o.GetName(), "-etcd-snapshots"):
				component = "etcd-snapshots"
			}
			switch v := typed(t, o).(type) {
			case *appsv1.StatefulSet:
				check(v.Spec.Selector.MatchLabels, component)
				if !labels.SelectorFromSet(v.Spec.Selector.MatchLabels).Matches(labels.Set(v.Spec.Template.Labels)) {
					t.Errorf("%s does not select its own pods", o.id())
				}
				for key := range v.Spec.Template.Labels {
					if key == "helm.sh/chart" || key == "app.kubernetes.io/version" {
						t.Errorf("%s: the label %s would restart all pods for a new chart version", o.id(), key)
					}
				}
				if !r.has("Service/" + v.Spec.ServiceName) {
					t.Errorf("%s: there is no Service %s", o.id(), v.Spec.ServiceName)
				}
			case *policyv1.PodDisruptionBudget:
				check(v.Spec.Selector.MatchLabels, component)
				// Nodes that are not ready are of no use to anyone; a member of etcd may be part of the quorum.
				want := policyv1.AlwaysAllow
				if component == "etcd" {
					want = policyv1.IfHealthyBudget
				}
				if p := v.Spec.UnhealthyPodEvictionPolicy; p == nil || *p != want {
					t.Errorf("%s: want %s for pods that are not ready", o.id(), want)
				}
			case *corev1.Service:
				services++
				check(v.Spec.Selector, component)
				ports := map[string]int32{}
				for _, p := range pods(t, r.objects) {
					if labels.SelectorFromSet(v.Spec.Selector).Matches(labels.Set(p.meta.Labels)) {
						for _, port := range p.spec.Containers[0].Ports {
							ports[port.Name] = port.ContainerPort
						}
					}
				}
				for _, port := range v.Spec.Ports {
					if ports[port.TargetPort.StrVal] == 0 {
						t.Errorf("%s: no pod has the port %s", o.id(), port.TargetPort.StrVal)
					}
					if v.Spec.ClusterIP == corev1.ClusterIPNone && port.Port != ports[port.TargetPort.StrVal] {
						t.Errorf("%s is headless: port %d is not translated to %d", o.id(), port.Port, ports[port.TargetPort.StrVal])
					}
				}
				if unready := strings.HasSuffix(o.GetName(), "-nodes") || strings.HasSuffix(o.GetName(), "-peers"); v.Spec.PublishNotReadyAddresses != unready {
					t.Errorf("%s: publishNotReadyAddresses is %t", o.id(), !unready)
				}
			}
		}
		if services < 3 {
			t.Errorf("%d Services", services)
		}
	})
}

// Names have room for suffixes, even with the longest release name.
func TestLongNames(t *testing.T) {
	long := occasion{name: "install", release: strings.Repeat("a", 53)}
	r := mustRender(t, with(t, `{etcd: {endpoints: [], bundled: {enabled: true}}, tls: {certManager: {enabled: true, issuerRef: {name: x}}}, monitoring: {dashboard: {enabled: false}}}`), long)
	for _, o := range r.all() {
		if errs := validation.IsDNS1123Label(o.GetName()); errs != nil {
			t.Errorf("%s: %v", o.id(), errs)
		}
		if o.GetKind() == "CronJob" && len(o.GetName()) > 52 {
			t.Errorf("%s: name is too long for the names of its Jobs", o.id())
		}
		if o.GetKind() == "StatefulSet" && len(o.GetName())+len("-0123456789") > validation.LabelValueMaxLength {
			t.Errorf("%s: name is too long for the label with the revision", o.id())
		}
	}
}
