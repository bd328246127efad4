package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// caseLimit bounds one step.
const caseLimit = 5 * time.Minute

// full is the name of the chart's objects in a release of this name.
const full = "allocator"

// simulatedPart installs the chart in a cluster with simulated pods.
func simulatedPart(ctx context.Context, c *cluster, r *report) error {
	r.part("the chart with real controllers and simulated pods: none runs")
	p := newSimulator(c.kube)
	if err := p.addNodes(ctx); err != nil {
		return fmt.Errorf("simulated machines: %w", err)
	}
	simulating, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() { defer close(over); p.run(simulating) }()
	defer func() { stop(); <-over }()
	if err := errors.Join(c.create(ctx, "crds.yaml", ""), c.create(ctx, "cluster.yaml", "")); err != nil {
		return err
	}
	for i := range 8 {
		if err := c.volumeFor(ctx, fmt.Sprintf("volume-%d", i), "/nowhere", "", ""); err != nil {
			return err
		}
	}
	t := &cases{c: c, r: r, p: p}
	r.run(ctx, "unknown and repeated fields, and pods that are not restricted, are refused", caseLimit, t.refusals)
	r.run(ctx, "the objects of every values file are accepted, created (Helm 3) and applied (Helm 4), strictly, "+
		"without a warning", caseLimit, t.accepted)
	for _, h := range helms {
		t.helm = h.name
		t.lifecycle(ctx)
	}
	r.run(ctx, "the simulation of pods had no errors", time.Second, func(context.Context) error { return p.failures() })
	if err := p.removeNodes(ctx); err != nil {
		return err
	}
	return nil
}

// volumeFor creates a volume for a claim; claim "": for any.
func (c *cluster) volumeFor(ctx context.Context, name, path, namespace, claim string) error {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("4Gi")},
			StorageClassName:              "local",
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: path},
			},
		},
	}
	if claim != "" {
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: namespace, Name: claim}
	}
	_, err := c.kube.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
	return err
}

type cases struct {
	c    *cluster
	r    *report
	p    *simulator
	helm string
}

func (t *cases) values(name string) string {
	return filepath.Join(t.c.s.root, "chaos/kube/testdata", name+".yaml")
}

// release creates a namespace with the Secrets that the values name.
func (t *cases) release(ctx context.Context, name string) (release, error) {
	rel := release{c: t.c, helm: t.helm, namespace: t.helm + "-" + name, name: full}
	if err := t.c.namespace(ctx, rel.namespace); err != nil {
		return rel, err
	}
	return rel, t.c.create(ctx, "secrets.yaml", rel.namespace)
}

// refusals shows that the checks below can fail.
func (t *cases) refusals(ctx context.Context) error {
	t.helm = "helm3"
	rel, err := t.release(ctx, "refused")
	if err != nil {
		return err
	}
	list, err := rel.render(ctx, "-f", t.values("external"))
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(o *unstructured.Unstructured) bool { return o.GetKind() == "StatefulSet" })
	if i < 0 {
		return errors.New("the chart has no StatefulSet")
	}
	refused := func(what, want string, change func(o *unstructured.Unstructured) error) error {
		o := list[i].DeepCopy()
		if err := change(o); err != nil {
			return err
		}
		if err := t.c.accept(ctx, o, rel.namespace); err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%s: got %v, want an error with %q", what, err, want)
		}
		return nil
	}
	if err := errors.Join(
		refused("an unknown field", `unknown field "spec.replicaz"`, func(o *unstructured.Unstructured) error {
			return unstructured.SetNestedField(o.Object, int64(3), "spec", "replicaz")
		}),
		refused("a variable that occurs twice", "duplicate", func(o *unstructured.Unstructured) error {
			containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			if err != nil {
				return err
			}
			first := containers[0].(map[string]any)
			env := first["env"].([]any)
			first["env"] = append(env, env[0])
			return unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers")
		}),
		refused("pods that are not restricted", "would violate PodSecurity", func(o *unstructured.Unstructured) error {
			unstructured.RemoveNestedField(o.Object, "spec", "template", "spec", "securityContext", "runAsNonRoot")
			return nil
		}),
	); err != nil {
		return err
	}
	return nil
}

// accepted sends every object of every values file to the API server in a dry run.
func (t *cases) accepted(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(t.c.chart(), "ci", "*-values.yaml"))
	if err != nil {
		return err
	}
	for _, n := range []string{"evaluation", "external", "everything", "certmanager", "members"} {
		files = append(files, t.values(n))
	}
	const namespace = "accepted"
	if err := t.c.namespace(ctx, namespace); err != nil {
		return err
	}
	var errs []error
	kinds, known := map[string]bool{}, map[string]bool{namespace: true}
	objects := 0
	for _, h := range helms {
		rel := release{c: t.c, helm: h.name, namespace: namespace, name: full}
		for _, f := range files {
			list, err := rel.render(ctx, "-f", f)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", filepath.Base(f), err))
				continue
			}
			for _, o := range list {
				// Values may name another namespace.
				if n := o.GetNamespace(); n != "" && !known[n] {
					if err := t.c.namespace(ctx, n); err != nil {
						return err
					}
					known[n] = true
				}
				// A pod, unlike objects that create pods, is refused without its service account.
				if account, _, _ := unstructured.NestedString(o.Object, "spec",
					"serviceAccountName"); o.GetKind() == "Pod" && account != "" {
					a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
					if _, err := t.c.kube.CoreV1().ServiceAccounts(cmp.Or(o.GetNamespace(), namespace)).Create(ctx, a,
						metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
						return err
					}
				}
				if err := until(ctx, 20*time.Second, func(ctx context.Context) error {
					err := t.c.accept(ctx, o, namespace)
					// A new definition takes a moment to be served.
					if err != nil && !strings.Contains(err.Error(), "could not find the requested resource") &&
						!strings.Contains(err.Error(), "no matches for kind") {
						errs = append(errs, fmt.Errorf("%s: %w", filepath.Base(f), err))
						return nil
					}
					return err
				}); err != nil {
					errs = append(errs, err)
				}
				kinds[o.GetKind()] = true
				objects++
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintf(t.r.out, "           %d values files, two majors of Helm, %d objects of %d kinds: %s\n", len(files),
		objects, len(kinds), strings.Join(slices.Sorted(maps.Keys(kinds)), " "))
	return nil
}

// lifecycle installs, changes and uninstalls releases with one major version of Helm.
func (t *cases) lifecycle(ctx context.Context) {
	run := func(name string, f func(context.Context) error) bool {
		return t.r.run(ctx, t.helm+": "+name, caseLimit, f)
	}
	var external, bundled release
	var err error
	if !run("external etcd: the space is initialized before any other object of the chart exists",
		func(ctx context.Context) error {
			if external, err = t.release(ctx, "external"); err != nil {
				return err
			}
			return t.installExternal(ctx, external)
		}) {
		return
	}
	run("an init that does not end: the install fails, and leaves no nodes", t.initFails)
	run("Services have ready nodes only, the nodes' own Service has all", func(ctx context.Context) error {
		return t.endpoints(ctx, external)
	})
	run("three pods are created at once, on different machines; one may be evicted, a second may not, one that is "+
		"not ready may", func(ctx context.Context) error { return t.evictions(ctx, external) })
	run("helm test passes if its pod does, and fails if its pod fails", func(ctx context.Context) error {
		return t.test(ctx, external)
	})
	run("an upgrade that changes nothing restarts nothing", func(ctx context.Context) error {
		return t.sameUpgrade(ctx, external)
	})
	run("an upgrade with another setting replaces pods one by one, each when the one before is ready, and runs no init",
		func(ctx context.Context) error { return t.rolling(ctx, external) })
	run("a rollback does the same", func(ctx context.Context) error { return t.rollback(ctx, external) })
	run("added nodes start at once", func(ctx context.Context) error { return t.scale(ctx, external) })
	run("external etcd: uninstall leaves nothing but the pod of helm test", func(ctx context.Context) error {
		return t.uninstall(ctx, external, "Pod/allocator-test-draw")
	})
	if !run("bundled etcd: install --wait initializes while it waits", func(ctx context.Context) error {
		if bundled, err = t.release(ctx, "bundled"); err != nil {
			return err
		}
		return t.installBundled(ctx, bundled)
	}) {
		return
	}
	run("bundled etcd: an upgrade removes the Job and creates no other; etcd stays", func(ctx context.Context) error {
		return t.upgradeBundled(ctx, bundled)
	})
	run("bundled etcd: a rollback to the first revision creates the Job again, with the --fresh-until of the install",
		func(ctx context.Context) error { return t.rollbackBundled(ctx, bundled) })
	run("bundled etcd: uninstall leaves the volume claims of etcd, and nothing else", func(ctx context.Context) error {
		return t.uninstall(ctx, bundled, "PersistentVolumeClaim/data-allocator-etcd-0",
			"PersistentVolumeClaim/snapshots-"+snapshotsPod)
	})
	run("a release with all options installs and uninstalls", func(ctx context.Context) error {
		rel, err := t.release(ctx, "everything")
		if err != nil {
			return err
		}
		if _, err := rel.install(ctx, "-f", t.values("everything")); err != nil {
			return err
		}
		return t.uninstall(ctx, rel)
	})
}

func (t *cases) installExternal(ctx context.Context, rel release) error {
	// A simulated Job ends at once: objects that exist at that moment were created before.
	early := []string{}
	t.p.before(func(pod *corev1.Pod) {
		if pod.Namespace == rel.namespace {
			list, err := remains(ctx, t.c.kube, rel.namespace)
			early = append(early, list...)
			if err != nil {
				early = append(early, err.Error())
			}
		}
	})
	mark := t.p.mark()
	_, err := rel.install(ctx, "-f", t.values("external"))
	t.p.before(nil)
	if err != nil {
		return err
	}
	var odd []string
	for _, o := range early {
		kind, name, _ := strings.Cut(o, "/")
		if kind == "StatefulSet" || kind == "Service" || kind == "PodDisruptionBudget" ||
			kind == "ConfigMap" && name == full {
			odd = append(odd, o)
		}
	}
	if len(early) == 0 || len(odd) > 0 {
		return fmt.Errorf("while the Job ran, there were %v: want only its own objects", early)
	}
	list, _ := t.p.events(rel.namespace, mark)
	if len(list) < 2 || !strings.HasPrefix(list[1], "succeeded allocator-init-") {
		return fmt.Errorf("the first events were %v: want a pod of the Job running and succeeding",
			list[:min(2, len(list))])
	}
	if n := count(list, "ready allocator-"); n != 3 {
		return fmt.Errorf("%d nodes became ready: want 3: %v", n, list)
	}
	return t.noJobs(ctx, rel)
}

// noJobs returns an error if there is a Job in the namespace.
func (t *cases) noJobs(ctx context.Context, rel release) error {
	jobs, err := t.c.kube.BatchV1().Jobs(rel.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(jobs.Items) > 0 {
		return fmt.Errorf("there is a Job %s: want none", jobs.Items[0].Name)
	}
	return nil
}

func count(list []string, prefix string) int {
	n := 0
	for _, s := range list {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

func (t *cases) initFails(ctx context.Context) error {
	rel, err := t.release(ctx, "noinit")
	if err != nil {
		return err
	}
	// The Job's pod never ends: the Job's deadline has to end it.
	stopHolding := t.holdAll(ctx, rel.namespace)
	defer stopHolding()
	out, err := rel.install(ctx, "-f", t.values("external"), "--set", "init.timeoutSeconds=30")
	if err == nil {
		return fmt.Errorf("installed: %s", out)
	}
	if !strings.Contains(err.Error(), "DeadlineExceeded") && !strings.Contains(err.Error(), "pre-install") {
		return fmt.Errorf("failed, but not because of the Job: %w", err)
	}
	sets, err := t.c.kube.AppsV1().StatefulSets(rel.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(sets.Items) > 0 {
		return errors.New("there are nodes of a space that was not initialized")
	}
	_, err = rel.run(ctx, "uninstall", rel.name, "--wait")
	return err
}

// holdAll holds every pod of a namespace until the function it returns is called.
func (t *cases) holdAll(ctx context.Context, namespace string) func() {
	ctx, cancel := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for ctx.Err() == nil {
			pods, err := t.c.kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			if err == nil {
				for _, p := range pods.Items {
					t.p.hold(namespace, p.Name, true)
				}
			}
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
	}()
	return func() { cancel(); <-over }
}

// addresses counts the addresses of a Service, ready and not.
func (t *cases) addresses(ctx context.Context, rel release, service string) (ready, other int, err error) {
	list, err := t.c.kube.DiscoveryV1().EndpointSlices(rel.namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + service})
	if err != nil {
		return 0, 0, err
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && *e.Conditions.Ready {
				ready += len(e.Addresses)
			} else {
				other += len(e.Addresses)
			}
		}
	}
	return ready, other, nil
}

func (t *cases) endpoints(ctx context.Context, rel release) error {
	t.p.hold(rel.namespace, "allocator-1", true)
	defer t.p.hold(rel.namespace, "allocator-1", false)
	err := until(ctx, time.Minute, func(ctx context.Context) error {
		var errs []error
		for service, want := range map[string]int{full: 2, full + "-headless": 2, full + "-nodes": 3} {
			ready, other, err := t.addresses(ctx, rel, service)
			if err != nil {
				return err
			}
			if ready != want || ready+other != 3 {
				errs = append(errs,
					fmt.Errorf("service %s has %d ready addresses and %d others: want %d of 3", service,
						ready, other, want))
			}
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	t.p.hold(rel.namespace, "allocator-1", false)
	return t.allReady(ctx, rel, 3)
}

// allReady waits until so many nodes are available.
func (t *cases) allReady(ctx context.Context, rel release, want int32) error {
	return until(ctx, 2*time.Minute, func(ctx context.Context) error {
		s, err := t.c.kube.AppsV1().StatefulSets(rel.namespace).Get(ctx, full, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s.Status.AvailableReplicas != want || s.Status.Replicas != want ||
			s.Status.ObservedGeneration != s.Generation || s.Status.UpdateRevision != s.Status.CurrentRevision {
			return fmt.Errorf("%d of %d nodes are available: want %d of one revision", s.Status.AvailableReplicas,
				s.Status.Replicas, want)
		}
		return nil
	})
}

func (t *cases) evictions(ctx context.Context, rel release) error {
	pods, err := t.c.kube.CoreV1().Pods(rel.namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=node"})
	if err != nil {
		return err
	}
	machines := map[string]bool{}
	for _, p := range pods.Items {
		machines[p.Spec.NodeName] = true
	}
	if len(machines) != simulatedNodes {
		return fmt.Errorf("%d pods are on %d machines: want each on its own", len(pods.Items), len(machines))
	}
	evict := func(pod string) error {
		return t.c.kube.PolicyV1().Evictions(rel.namespace).Evict(ctx,
			&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod, Namespace: rel.namespace}})
	}
	// A controller counts the budget, in its own time.
	if err := until(ctx, time.Minute, func(ctx context.Context) error {
		b, err := t.c.kube.PolicyV1().PodDisruptionBudgets(rel.namespace).Get(ctx, full, metav1.GetOptions{})
		if err == nil && b.Status.DisruptionsAllowed != 1 {
			err = fmt.Errorf("%d pods may be evicted: want 1", b.Status.DisruptionsAllowed)
		}
		return err
	}); err != nil {
		return err
	}
	t.p.hold(rel.namespace, "allocator-0", true) // its successor is not ready
	defer t.p.hold(rel.namespace, "allocator-0", false)
	if err := evict("allocator-0"); err != nil {
		return fmt.Errorf("the first: %w", err)
	}
	if err := evict("allocator-1"); !apierrors.IsTooManyRequests(err) {
		return fmt.Errorf("the second: got %v, want that it is refused", err)
	}
	// AlwaysAllow: one that is not ready serves no requests.
	if err := until(ctx, time.Minute, func(ctx context.Context) error {
		p, err := t.c.kube.CoreV1().Pods(rel.namespace).Get(ctx, "allocator-0", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil {
			return errors.New("the successor of the first does not run")
		}
		return nil
	}); err != nil {
		return err
	}
	// Two of three are not ready: without AlwaysAllow none might be evicted.
	t.p.hold(rel.namespace, "allocator-1", true)
	defer t.p.hold(rel.namespace, "allocator-1", false)
	if err := until(ctx, time.Minute, func(ctx context.Context) error {
		b, err := t.c.kube.PolicyV1().PodDisruptionBudgets(rel.namespace).Get(ctx, full, metav1.GetOptions{})
		if err == nil && b.Status.CurrentHealthy != 1 {
			err = fmt.Errorf("%d pods count as healthy: want 1", b.Status.CurrentHealthy)
		}
		return err
	}); err != nil {
		return err
	}
	if err := evict("allocator-0"); err != nil {
		return fmt.Errorf("one that is not ready: %w", err)
	}
	t.p.hold(rel.namespace, "allocator-1", false)
	t.p.hold(rel.namespace, "allocator-0", false)
	return t.allReady(ctx, rel, 3)
}

func (t *cases) test(ctx context.Context, rel release) error {
	if _, err := rel.run(ctx, "test", rel.name, "--timeout=1m"); err != nil {
		return err
	}
	t.p.fail(rel.namespace, "allocator-test-draw", true)
	defer t.p.fail(rel.namespace, "allocator-test-draw", false)
	if out, err := rel.run(ctx, "test", rel.name, "--timeout=1m"); err == nil {
		return fmt.Errorf("passed with a pod that failed: %s", out)
	}
	t.p.fail(rel.namespace, "allocator-test-draw", false)
	_, err := rel.run(ctx, "test", rel.name, "--timeout=1m")
	return err
}

func (t *cases) sameUpgrade(ctx context.Context, rel release) error {
	mark := t.p.mark()
	if _, err := rel.upgrade(ctx, "-f", t.values("external")); err != nil {
		return err
	}
	if list, _ := t.p.events(rel.namespace, mark); len(list) > 0 {
		return fmt.Errorf("the events were %v: want none", list)
	}
	return t.noJobs(ctx, rel)
}

// oneByOne returns an error unless pods were replaced from the last to the first,
// each when the one before was ready.
func oneByOne(list []string, pods int) error {
	var want []string
	for i := pods - 1; i >= 0; i-- {
		for _, word := range []string{"gone", "running", "ready"} {
			want = append(want, fmt.Sprintf("%s allocator-%d", word, i))
		}
	}
	if !slices.Equal(list, want) {
		return fmt.Errorf("the events were\n%v\nwant\n%v", list, want)
	}
	return nil
}

func (t *cases) rolling(ctx context.Context, rel release) error {
	mark := t.p.mark()
	over := make(chan error, 1)
	go func() {
		_, err := rel.upgrade(ctx, "-f", t.values("external"), "--set", "log.level=debug")
		over <- err
	}()
	if err := until(ctx, time.Minute, func(context.Context) error {
		list, _ := t.p.events(rel.namespace, mark)
		if count(list, "gone allocator-2") == 0 {
			return fmt.Errorf("the last pod is not replaced: %v", list)
		}
		return nil
	}); err != nil {
		return err
	}
	t.p.hold(rel.namespace, "allocator-2", true)
	time.Sleep(3 * time.Second) // no other pod may be replaced meanwhile
	list, _ := t.p.events(rel.namespace, mark)
	for _, s := range list {
		if strings.HasSuffix(s, "allocator-0") || strings.HasSuffix(s, "allocator-1") {
			return fmt.Errorf("another pod was replaced before the first was ready: %v", list)
		}
	}
	t.p.hold(rel.namespace, "allocator-2", false)
	if err := <-over; err != nil {
		return err
	}
	if err := t.allReady(ctx, rel, 3); err != nil {
		return err
	}
	list, _ = t.p.events(rel.namespace, mark)
	// It may have been ready for a moment before it was held.
	list = slices.DeleteFunc(list, func(s string) bool { return s == "unready allocator-2" })
	if err := oneByOne(slices.Compact(list), 3); err != nil {
		return err
	}
	return t.noJobs(ctx, rel)
}

func (t *cases) rollback(ctx context.Context, rel release) error {
	mark := t.p.mark()
	if _, err := rel.run(ctx, "rollback", rel.name, "1", "--wait", "--timeout=4m"); err != nil {
		return err
	}
	if err := t.allReady(ctx, rel, 3); err != nil {
		return err
	}
	list, _ := t.p.events(rel.namespace, mark)
	if err := oneByOne(list, 3); err != nil {
		return err
	}
	m, err := t.c.kube.CoreV1().ConfigMaps(rel.namespace).Get(ctx, full, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if strings.Contains(m.Data["allocator.yaml"], "debug") {
		return errors.New("the setting of the upgrade is still there")
	}
	return t.noJobs(ctx, rel)
}

func (t *cases) scale(ctx context.Context, rel release) error {
	mark := t.p.mark()
	for _, n := range []string{"allocator-3", "allocator-4"} {
		t.p.hold(rel.namespace, n, true)
	}
	over := make(chan error, 1)
	go func() {
		_, err := rel.upgrade(ctx, "-f", t.values("external"), "--set", "replicaCount=5")
		over <- err
	}()
	err := until(ctx, time.Minute, func(context.Context) error {
		list, _ := t.p.events(rel.namespace, mark)
		if count(list, "running allocator-3") != 1 || count(list, "running allocator-4") != 1 {
			return fmt.Errorf("both new pods should run though neither is ready: %v", list)
		}
		return nil
	})
	for _, n := range []string{"allocator-3", "allocator-4"} {
		t.p.hold(rel.namespace, n, false)
	}
	return errors.Join(err, <-over, t.allReady(ctx, rel, 5))
}

// uninstall returns an error if other objects are left than those in want and the
// Secrets that the release never owned.
func (t *cases) uninstall(ctx context.Context, rel release, want ...string) error {
	mine, err := t.c.kube.CoreV1().Secrets(rel.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range mine.Items {
		if s.Type != "helm.sh/release.v1" {
			want = append(want, "Secret/"+s.Name)
		}
	}
	if _, err := rel.run(ctx, "uninstall", rel.name, "--wait", "--timeout=2m"); err != nil {
		return err
	}
	slices.Sort(want)
	return until(ctx, time.Minute, func(ctx context.Context) error {
		list, err := remains(ctx, t.c.kube, rel.namespace)
		if err != nil {
			return err
		}
		slices.Sort(list)
		if !slices.Equal(list, want) {
			return fmt.Errorf("%v are left: want %v", list, want)
		}
		return nil
	})
}

func (t *cases) installBundled(ctx context.Context, rel release) error {
	mark := t.p.mark()
	// Nodes are not ready before the space is initialized: hold them until the Job has ended.
	for i := range 3 {
		t.p.hold(rel.namespace, fmt.Sprintf("allocator-%d", i), true)
	}
	t.p.before(func(pod *corev1.Pod) {
		// The Job that makes certificates ends before.
		if pod.Namespace == rel.namespace && strings.HasPrefix(pod.Name, "allocator-init-") {
			for i := range 3 {
				t.p.hold(rel.namespace, fmt.Sprintf("allocator-%d", i), false)
			}
		}
	})
	defer t.p.before(nil)
	if _, err := rel.install(ctx, "-f", t.values("evaluation")); err != nil {
		return err
	}
	list, _ := t.p.events(rel.namespace, mark)
	if count(list, "succeeded allocator-init-") != 1 || count(list, "ready allocator-etcd-0") != 1 {
		return fmt.Errorf("the events were %v: want one end of the Job, and etcd ready", list)
	}
	claim, err := t.c.kube.CoreV1().PersistentVolumeClaims(rel.namespace).Get(ctx, "data-allocator-etcd-0",
		metav1.GetOptions{})
	if err != nil {
		return err
	}
	if claim.Status.Phase != corev1.ClaimBound {
		return fmt.Errorf("the volume claim of etcd is %s", claim.Status.Phase)
	}
	return nil
}

func (t *cases) upgradeBundled(ctx context.Context, rel release) error {
	mark := t.p.mark()
	if _, err := rel.upgrade(ctx, "-f", t.values("evaluation"), "--set", "log.level=debug"); err != nil {
		return err
	}
	if err := t.allReady(ctx, rel, 3); err != nil {
		return err
	}
	list, _ := t.p.events(rel.namespace, mark)
	if count(list, "running allocator-init") > 0 || count(list, "gone allocator-etcd-0") > 0 {
		return fmt.Errorf("the events were %v: want no Job, and etcd not restarted", list)
	}
	return t.noJobs(ctx, rel)
}

func (t *cases) rollbackBundled(ctx context.Context, rel release) error {
	first, err := rel.run(ctx, "get", "manifest", rel.name, "--revision=1")
	if err != nil {
		return err
	}
	if _, err := rel.run(ctx, "rollback", rel.name, "1", "--wait", "--timeout=4m"); err != nil {
		return err
	}
	jobs, err := t.c.kube.BatchV1().Jobs(rel.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(jobs.Items) != 1 {
		return fmt.Errorf("there are %d Jobs: want the one of the first revision", len(jobs.Items))
	}
	for _, a := range jobs.Items[0].Spec.Template.Spec.Containers[0].Args {
		if strings.HasPrefix(a, "--fresh-until=") {
			if !strings.Contains(first, a) {
				return fmt.Errorf("the Job has %s, which the first revision has not", a)
			}
			return nil
		}
		if a == "--fresh" {
			return errors.New(
				"the Job has --fresh without an end: a rollback after etcd was wiped would issue IDs twice")
		}
	}
	return errors.New("the Job has no --fresh-until")
}
