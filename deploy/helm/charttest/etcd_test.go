package charttest

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// flagsOf returns the arguments of a container as flags; a flag that occurs often has all values.
func flagsOf(args []string) map[string][]string {
	out := map[string][]string{}
	for _, a := range args {
		name, value, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		out[name] = append(out[name], value)
	}
	return out
}

// Members, their names and their number agree in all places; nodes and members connect to
// names that the certificate has; "allocator etcd" in these pods is told of the nodes' space.
func TestEtcdMembers(t *testing.T) {
	for _, members := range []string{"1", "3", "5"} {
		r := mustRender(t, with(t, "{space: {name: sp, root: ro}, etcd: {endpoints: [], bundled: {enabled: true, members: "+members+", restore: {snapshot: a.snapshot, token: t}}}}"), install)
		set := typed(t, r.find(t, "StatefulSet/ids-allocator-etcd")).(*appsv1.StatefulSet)
		flags := flagsOf(set.Spec.Template.Spec.Containers[0].Args)
		if int(*set.Spec.Replicas) != len(flags["members"]) || set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
			t.Errorf("%s: %d replicas, members %q, %s", members, *set.Spec.Replicas, flags["members"], set.Spec.PodManagementPolicy)
		}
		job := typed(t, r.find(t, "Job/ids-allocator-etcd-certs")).(*batchv1.Job)
		made := flagsOf(job.Spec.Template.Spec.Containers[0].Args)
		names := strings.Split(made["dns"][0], ",")
		var hosts []string
		for _, m := range flags["members"] {
			name, address, _ := strings.Cut(m, "=")
			if !strings.HasPrefix(name, set.Name+"-") || !strings.HasPrefix(address, name+"."+set.Spec.ServiceName+".") {
				t.Errorf("a member is %s at %s", name, address)
			}
			hosts = append(hosts, address)
		}
		p, _ := nodePod(t, r)
		c, _ := settingsOf(t, r, p)
		if len(c.Etcd.Endpoints) != len(hosts) {
			t.Errorf("nodes use %q", c.Etcd.Endpoints)
		}
		for _, e := range append(slices.Clone(c.Etcd.Endpoints), flags["snapshot-url"]...) {
			u, err := url.Parse(e)
			if err != nil || u.Scheme != "https" {
				t.Fatalf("%s: %v", e, err)
			}
			hosts = append(hosts, u.Hostname())
		}
		for _, h := range hosts {
			if !slices.Contains(names, h) {
				t.Errorf("the certificate lacks %s: %q", h, names)
			}
		}
		if flags["user"][0] != made["user"][0] || flags["prefix"][0] != "/"+c.Root+"/"+c.Space+"/" {
			t.Errorf("the user is %q and %q, the prefix %q", flags["user"], made["user"], flags["prefix"])
		}
		keeper := typed(t, r.find(t, "StatefulSet/ids-allocator-etcd-snapshots")).(*appsv1.StatefulSet)
		for _, s := range []*appsv1.StatefulSet{set, keeper} {
			for name, want := range map[string]string{"ALLOCATOR_SPACE": c.Space, "ALLOCATOR_ROOT": c.Root} {
				if env := s.Spec.Template.Spec.Containers[0].Env; !slices.Contains(env, corev1.EnvVar{Name: name, Value: want}) {
					t.Errorf("%s: %s is not %s: %v", s.Name, name, want, env)
				}
			}
		}
		budget := r.has("PodDisruptionBudget/ids-allocator-etcd")
		if budget != (members != "1") {
			t.Errorf("%s members: a disruption budget is there: %t", members, budget)
		}
		if budget {
			b := typed(t, r.find(t, "PodDisruptionBudget/ids-allocator-etcd")).(*policyv1.PodDisruptionBudget)
			if b.Spec.MaxUnavailable.IntValue() != 1 {
				t.Errorf("%s members may be evicted at once", b.Spec.MaxUnavailable)
			}
		}
	}
}

// No private key is in a release: a Job makes Secrets, and may do nothing else.
func TestEtcdCertificates(t *testing.T) {
	values := with(t, "{etcd: {endpoints: [], bundled: {enabled: true}}}")
	for _, at := range []occasion{install, upgrade} {
		r := mustRender(t, values, at)
		for _, o := range r.all() {
			if o.GetKind() == "Secret" {
				t.Errorf("the release has %s", o.id())
			}
		}
		role := typed(t, r.find(t, "Role/ids-allocator-etcd-certs-hook")).(*rbacv1.Role)
		for _, rule := range role.Rules {
			if !slices.Equal(rule.Resources, []string{"secrets"}) || !slices.Equal(rule.Verbs, []string{"create"}) && len(rule.ResourceNames) != 4 {
				t.Errorf("certificates may be made with %+v", rule)
			}
		}
		before, job := r.find(t, "ServiceAccount/ids-allocator-etcd-certs-hook"), r.find(t, "Job/ids-allocator-etcd-certs")
		if w := before.GetAnnotations()["helm.sh/hook-weight"]; w != "-10" || job.GetAnnotations()["helm.sh/hook-weight"] != "-5" {
			t.Errorf("the account has weight %s", w)
		}
		if a := typed(t, job).(*batchv1.Job).Spec.Template.Spec.ServiceAccountName; a != "ids-allocator-etcd-certs-hook" {
			t.Errorf("the Job runs as %s", a)
		}
		cron := typed(t, r.find(t, "CronJob/ids-allocator-etcd-certs")).(*batchv1.CronJob)
		if a := cron.Spec.JobTemplate.Spec.Template.Spec.ServiceAccountName; a != "ids-allocator-etcd-certs" {
			t.Errorf("the CronJob runs as %s", a)
		}
	}
	r := mustRender(t, with(t, "{etcd: {endpoints: [], bundled: {enabled: true, certManager: {enabled: true}}}}"), install)
	for _, o := range r.all() {
		if strings.Contains(o.GetName(), "etcd-certs") {
			t.Errorf("cert-manager makes certificates, and so does %s", o.id())
		}
	}
	for _, name := range []string{"ca", "server", "client", "root"} {
		if c := r.find(t, "Certificate/ids-allocator-etcd-"+name); !strings.Contains(c.text, "secretName: ids-allocator-etcd-"+name) {
			t.Errorf("%s has another Secret:\n%s", c.id(), c.text)
		}
	}
}
