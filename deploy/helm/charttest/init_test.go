package charttest

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
)

// A space is initialised at an install and at no other time: an etcd that was
// wiped has to be noticed.
func TestInitOnlyAtInstall(t *testing.T) {
	values := ciValues(t)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		r := mustRender(t, values[name], upgrade)
		for _, o := range r.objects {
			if o.GetKind() == "Job" {
				t.Errorf("%s: an upgrade brings %s", name, o.id())
			}
		}
		for _, at := range []moment{install, upgrade} {
			r := mustRender(t, values[name], at)
			for id, events := range r.events {
				for _, e := range events {
					if e != "pre-install" && e != "test" {
						t.Errorf("%s: the hook %s runs at %s", name, id, e)
					}
				}
			}
		}
	}
}

// With etcd outside the job runs before anything else of the release, and finds
// its settings there.
func TestInitBeforeTheRelease(t *testing.T) {
	r := mustRender(t, on(t, ""), install)
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
		t.Errorf("settings have weight %s and the job has %s", before, after)
	}
	args := jobArgs(t, job)
	if !slices.Contains(args, "--fresh") {
		t.Errorf("init runs with %q", args)
	}
	if args := jobArgs(t, mustRender(t, on(t, "init: {fresh: false}"), install).find(t, "Job/ids-allocator-init")); strings.Contains(strings.Join(args, " "), "fresh") {
		t.Errorf("where IDs were issued before, init runs with %q", args)
	}
	if mustRender(t, on(t, "init: {enabled: false}"), install).has("Job/ids-allocator-init") {
		t.Error("init.enabled=false, and there is a job")
	}
	// It needs nothing that comes with the release, which is not there yet.
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

// The bundled etcd is not there before the release: the job is part of its first
// revision, and a rollback to that one, an hour and more later, makes no space.
func TestInitOfTheBundledEtcd(t *testing.T) {
	r := mustRender(t, read(t, "{etcd: {bundled: {enabled: true}}, gossip: {insecure: true}}"), install)
	job := r.find(t, "Job/ids-allocator-init")
	if a := job.GetAnnotations(); a["helm.sh/hook"] != "" || a["argocd.argoproj.io/hook"] != "Skip" {
		t.Errorf("%v", a)
	}
	until := ""
	for _, a := range jobArgs(t, job) {
		if a == "--fresh" {
			t.Error("--fresh without an end")
		}
		if v, ok := strings.CutPrefix(a, "--fresh-until="); ok {
			until = v
		}
	}
	at, err := time.Parse(time.RFC3339, until)
	if left := time.Until(at); err != nil || left < 50*time.Minute || left > 61*time.Minute {
		t.Errorf("--fresh-until=%s: %v", until, err)
	}
	if r := mustRender(t, read(t, "{etcd: {bundled: {enabled: true}}, gossip: {insecure: true}}"), upgrade); r.has("Job/ids-allocator-init") || r.has("ConfigMap/ids-allocator-init") {
		t.Error("an upgrade brings the job")
	}
}

func jobArgs(t *testing.T, o object) []string {
	t.Helper()
	return typed(t, o).(*batchv1.Job).Spec.Template.Spec.Containers[0].Args
}
