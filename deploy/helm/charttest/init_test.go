package charttest

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
)

// A space is initialized only at an installation, so that an etcd that was wiped is
// noticed.
func TestInitOnlyAtInstall(t *testing.T) {
	values := ciValues(t)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		r := mustRender(t, values[name], upgrade)
		for _, o := range r.objects {
			if o.GetKind() == "Job" {
				t.Errorf("%s: an upgrade renders %s", name, o.id())
			}
		}
		for _, at := range []occasion{install, upgrade} {
			r := mustRender(t, values[name], at)
			for id, events := range r.events {
				for _, e := range events {
					// Certificates of etcd are made where they are missing.
					if e == "pre-upgrade" && strings.Contains(id, "-etcd-certs") {
						continue
					}
					if e != "pre-install" && e != "test" {
						t.Errorf("%s: the hook %s runs at %s", name, id, e)
					}
				}
			}
		}
	}
}

// With an external etcd, the Job runs before the rest of the release, and its
// settings exist by then.
func TestInitBeforeTheRelease(t *testing.T) {
	r := mustRender(t, with(t, ""), install)
	job := r.find(t, "Job/ids-allocator-init")
	settings := r.find(t, "ConfigMap/ids-allocator-init")
	for _, o := range []object{job, settings} {
		a := o.GetAnnotations()
		if a["helm.sh/hook"] != "pre-install" || a["helm.sh/hook-delete-policy"] != "before-hook-creation,hook-succeeded" {
			t.Errorf("%s: %v", o.id(), a)
		}
		if a["argocd.argoproj.io/hook"] != "Skip" {
			t.Errorf("%s: Argo CD would run it at every sync", o.id())
		}
	}
	if before, after := settings.GetAnnotations()["helm.sh/hook-weight"], job.GetAnnotations()["helm.sh/hook-weight"]; before != "-5" || after != "0" {
		t.Errorf("weight of settings is %s, of the Job %s", before, after)
	}
	args := jobArgs(t, job)
	if !slices.Contains(args, "--fresh") {
		t.Errorf("init runs with %q", args)
	}
	// It needs no object of the release, which does not exist yet.
	for _, p := range pods(t, []object{job}) {
		if n := p.spec.ServiceAccountName; n != "" {
			t.Errorf("init runs as %s", n)
		}
		for _, v := range p.spec.Volumes {
			if v.ConfigMap != nil && v.ConfigMap.Name != settings.GetName() {
				t.Errorf("init needs ConfigMap %s", v.ConfigMap.Name)
			}
		}
	}
}

// The bundled etcd does not exist before the release, so the Job is part of the first
// revision. A rollback to it, more than an hour later, creates no space.
func TestInitOfBundledEtcd(t *testing.T) {
	r := mustRender(t, with(t, "{etcd: {endpoints: [], bundled: {enabled: true}}, gossip: {existingSecret: '', insecure: true}}"), install)
	job := r.find(t, "Job/ids-allocator-init")
	if a := job.GetAnnotations(); a["helm.sh/hook"] != "" || a["argocd.argoproj.io/hook"] != "Skip" {
		t.Errorf("%v", a)
	}
	until := ""
	for _, a := range jobArgs(t, job) {
		if a == "--fresh" {
			t.Error("--fresh without a time limit")
		}
		if v, ok := strings.CutPrefix(a, "--fresh-until="); ok {
			until = v
		}
	}
	at, err := time.Parse(time.RFC3339, until)
	if left := time.Until(at); err != nil || left < 50*time.Minute || left > 61*time.Minute {
		t.Errorf("--fresh-until=%s: %v", until, err)
	}
	if r := mustRender(t, with(t, "{etcd: {endpoints: [], bundled: {enabled: true}}, gossip: {existingSecret: '', insecure: true}}"), upgrade); r.has("Job/ids-allocator-init") || r.has("ConfigMap/ids-allocator-init") {
		t.Error("an upgrade renders the Job")
	}
}

func jobArgs(t *testing.T, o object) []string {
	t.Helper()
	return typed(t, o).(*batchv1.Job).Spec.Template.Spec.Containers[0].Args
}
