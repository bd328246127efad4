package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// caseLimit bounds one step.
	caseLimit = 5 * time.Minute
	// releaseName is that of the pages, and full that of its objects.
	releaseName = "ids"
	full        = "ids-allocator"
	// imageUser is the uid of the images.
	imageUser = 65532

	chartPage   = "deploy/helm/allocator/README.md"
	kubePage    = "docs/how-to/run-in-kubernetes.md"
	restorePage = "docs/how-to/restore-etcd.md"
)

// realPart installs the chart where its pods run.
func realPart(ctx context.Context, c *cluster, r *report) error {
	r.part("real pods: kubelet, containerd, our images")
	plugins, err := canRun(c.s)
	if err != nil {
		r.skip("real pods", err.Error())
		return nil
	}
	if !r.run(ctx, "containerd has the images; kubelet and kube-proxy start, the machine is ready", 4*time.Minute,
		func(ctx context.Context) error { return c.startNode(ctx, plugins) }) {
		return nil
	}
	if c.s.only != "members" {
		nodesPart(ctx, c, r)
	}
	if c.s.only != "real" {
		membersPart(ctx, c, r)
	}
	return nil
}

// nodesPart installs the chart with one member of etcd, and harms nodes and etcd under load.
func nodesPart(ctx context.Context, c *cluster, r *report) {
	t := &realCases{
		c:     c,
		r:     r,
		rel:   release{c: c, helm: "helm4", namespace: "real", name: releaseName},
		etcds: 1,
	}
	run := func(name string, f func(context.Context) error) bool {
		return r.run(ctx, name, caseLimit, func(ctx context.Context) error {
			if err := f(ctx); err != nil {
				return fmt.Errorf("%w\n%s", err, t.state())
			}
			return nil
		})
	}
	if !run("as the chart's page prints it: helm install --wait with the bundled etcd, under the restricted policy; "+
		"helm test requests IDs from every node by its name, and checks them; HTTP by a forwarded port", t.install) {
		return
	}
	run(
		"the SDK gets IDs from every node by its name, by the headless Service, and by the other "+
			"Service and kube-proxy", t.draw)
	run("a rolling upgrade under load: no call of the SDK fails, no ID is returned twice or out of order", t.upgrade)
	run("a node's process is killed under load: the kubelet starts it again, no call of the SDK fails", t.killNode)
	run("etcd's pod is deleted under load: nodes go on issuing, etcd is back with its volume, nothing is initialized",
		t.killEtcd)
	run("a rollback under load: the Job of the first revision runs again without effect", t.rollback)
	run("etcd's volume was wiped: an upgrade initializes nothing, and nodes stop issuing", t.wipe)
	run("uninstall: nothing is left but the volume claims, etcd's Secrets and the test's pod", t.uninstall)
}

type realCases struct {
	c     *cluster
	r     *report
	rel   release
	etcds int // number of members
}

// page runs a block of a page as it is printed, but for the words of here: in a directory with what it names, and with
// the release's kubectl and helm. What it leaves in the background ends with it.
func (t *realCases) page(ctx context.Context, page, block string, here ...string) (string, error) {
	text, err := t.block(page, "run: "+block)
	if err != nil {
		return "", err
	}
	return output(ctx, "env", "-C", t.dir(), "HOME="+t.dir(), "KUBECONFIG="+filepath.Join(t.dir(), "kubeconfig"),
		"HELM_NO_PLUGINS=1", "PATH="+t.dir()+":"+os.Getenv("PATH"), "sh", "-euc",
		"trap '[ -z \"${!:-}\" ] || kill $!' EXIT\n"+strings.NewReplacer(here...).Replace(text))
}

// block returns the text under a mark. The module has no package of the project: it is built with Kubernetes' versions.
func (t *realCases) block(page, mark string) (string, error) {
	text, err := os.ReadFile(filepath.Join(t.c.s.root, page))
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile("(?s)\n *<!-- " + mark + " -->\n( *)```[a-z]+\n(.*?)\n *```").FindSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("%s has no block %s", page, mark)
	}
	return strings.ReplaceAll("\n"+string(m[2]), "\n"+string(m[1]), "\n") + "\n", nil
}

// dir is where the commands of pages run.
func (t *realCases) dir() string { return t.c.ca.path("pages-" + t.rel.namespace) }

// prepare creates the namespace, and the directory with the programs, the chart and the access to the namespace.
func (t *realCases) prepare(ctx context.Context) error {
	if err := errors.Join(t.c.namespace(ctx, t.rel.namespace), t.c.storage(ctx),
		os.MkdirAll(t.dir(), 0o755)); err != nil {
		return err
	}
	for name, to := range map[string]string{
		"helm": filepath.Join(t.c.s.bin, t.rel.helm), "kubectl": filepath.Join(t.c.s.bin, "kubectl"),
		"deploy": filepath.Join(t.c.s.root, "deploy"),
	} {
		if err := os.Symlink(to, filepath.Join(t.dir(), name)); err != nil {
			return err
		}
	}
	access, err := os.ReadFile(t.c.ca.path("admin.kubeconfig"))
	if err != nil {
		return err
	}
	file := filepath.Join(t.dir(), "kubeconfig")
	if err := os.WriteFile(file, access, 0o600); err != nil {
		return err
	}
	_, err = output(ctx, filepath.Join(t.dir(), "kubectl"), "--kubeconfig="+file, "config", "set-context", "--current",
		"--namespace="+t.rel.namespace)
	return err
}

// state describes the pods, for a step that failed.
func (t *realCases) state() string {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	pods, err := t.c.kube.CoreV1().Pods(t.rel.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	for _, p := range pods.Items {
		fmt.Fprintf(&b, "%s: %s, ready %t\n", p.Name, p.Status.Phase, isReady(&p))
		for _, s := range p.Status.ContainerStatuses {
			if w := s.State.Waiting; w != nil {
				fmt.Fprintf(&b, "  waiting: %s %s\n", w.Reason, w.Message)
			}
		}
		lines := int64(8)
		log, err := t.c.kube.CoreV1().Pods(p.Namespace).GetLogs(p.Name,
			&corev1.PodLogOptions{TailLines: &lines}).DoRaw(ctx)
		if err != nil {
			log = []byte(err.Error())
		}
		fmt.Fprintf(&b, "  %s\n", strings.ReplaceAll(strings.TrimSpace(string(log)), "\n", "\n  "))
	}
	events, err := t.c.kube.CoreV1().Events(t.rel.namespace).List(ctx,
		metav1.ListOptions{FieldSelector: "type=Warning"})
	if err == nil {
		for _, e := range events.Items[max(0, len(events.Items)-8):] {
			fmt.Fprintf(&b, "event: %s %s: %s\n", e.InvolvedObject.Name, e.Reason, e.Message)
		}
	}
	return b.String()
}

func (t *realCases) volume() string { return t.c.ca.path("volumes/volume-real") }

func (t *realCases) install(ctx context.Context) error {
	if err := t.prepare(ctx); err != nil {
		return err
	}
	if err := errors.Join(t.claim(ctx, "data-"+member(0), "volume-real"),
		t.claim(ctx, "snapshots-"+snapshotsPod, "snapshots-real")); err != nil {
		return err
	}
	out, err := t.page(ctx, chartPage, "try")
	if err == nil && !regexp.MustCompile(`"ids":\["[^"]+","[^"]+","[^"]+"\]`).MatchString(out) {
		err = fmt.Errorf("no three IDs over HTTP: %s", out)
	}
	return err
}

// drawn is what kubeload prints.
type drawn struct {
	IDs, Calls, Failed, Duplicates, Unchecked, Disorder int
	Failure, Slowest                                    string
	BySID                                               map[string]int
}

// underLoad requests IDs from a Service while f runs, and returns the summary. A call that
// fails is an error.
func (t *realCases) underLoad(ctx context.Context, service string, f func(context.Context) error) (drawn, error) {
	d, err := t.load(ctx, service, f)
	if err == nil && (d.Failed > 0 || d.Duplicates > 0 || d.Unchecked > 0 || d.Disorder > 0 || d.IDs == 0) {
		err = fmt.Errorf("%d of %d calls failed (the first: %s), %d duplicates, %d not compared, %d out of order",
			d.Failed, d.Calls, d.Failure, d.Duplicates, d.Unchecked, d.Disorder)
	}
	return d, err
}

// load is underLoad, but calls may fail.
func (t *realCases) load(ctx context.Context, service string, f func(context.Context) error) (drawn, error) {
	var d drawn
	var out strings.Builder
	cmd := exec.CommandContext(ctx, filepath.Join(t.c.s.bin, "kubeload"), "--dns", hostIP+":53",
		"--target", service+"."+t.rel.namespace+".svc.cluster.local:9000")
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 20 * time.Second
	if err := cmd.Start(); err != nil {
		return d, err
	}
	err := f(ctx)
	_ = cmd.Process.Signal(syscall.SIGTERM)
	// A call of the SDK takes at most 10 s. SIGQUIT shows where one hangs.
	late := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
	defer late.Stop()
	if end := cmd.Wait(); end != nil {
		return d, errors.Join(err, fmt.Errorf("kubeload: %w: %s", end, out.String()))
	}
	if end := json.Unmarshal([]byte(out.String()), &d); end != nil {
		return d, errors.Join(err, fmt.Errorf("kubeload: %w: %s", end, out.String()))
	}
	fmt.Fprintf(t.r.out,
		"           %d IDs in %d calls, %d failed, %d duplicates, %d out of order, slowest %s, by sid %v\n", d.IDs,
		d.Calls, d.Failed, d.Duplicates, d.Disorder, d.Slowest, d.BySID)
	return d, err
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func (t *realCases) draw(ctx context.Context) error {
	short := func(ctx context.Context) error { return wait(ctx, 3*time.Second) }
	sids := map[string]bool{}
	for i := range 3 {
		d, err := t.underLoad(ctx, fmt.Sprintf("%s-%d.%s-nodes", full, i, full), short)
		if err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
		for sid := range d.BySID {
			sids[sid] = true
		}
	}
	if len(sids) != 3 {
		return fmt.Errorf("three nodes issued IDs of sids %v: want three", slices.Sorted(maps.Keys(sids)))
	}
	for _, service := range []string{full + "-headless", full} {
		if _, err := t.underLoad(ctx, service, short); err != nil {
			return fmt.Errorf("service %s: %w", service, err)
		}
	}
	return nil
}

// pods returns the nodes' pods by name.
func (t *realCases) pods(ctx context.Context) (map[string]*corev1.Pod, error) {
	list, err := t.c.kube.CoreV1().Pods(t.rel.namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=node"})
	if err != nil {
		return nil, err
	}
	m := map[string]*corev1.Pod{}
	for i := range list.Items {
		m[list.Items[i].Name] = &list.Items[i]
	}
	return m, nil
}

// ready waits until every node and etcd are ready.
func (t *realCases) ready(ctx context.Context) error {
	return until(ctx, 2*time.Minute, t.allReady)
}

// allReady returns an error unless every node and etcd are ready now.
func (t *realCases) allReady(ctx context.Context) error {
	list, err := t.c.kube.CoreV1().Pods(t.rel.namespace).List(ctx,
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component in (node,etcd)"})
	if err != nil {
		return err
	}
	n := 0
	for _, p := range list.Items {
		if isReady(&p) {
			n++
		}
	}
	if want := 3 + t.etcds; n != want {
		return fmt.Errorf("%d of %d pods are ready", n, want)
	}
	return nil
}

func (t *realCases) upgrade(ctx context.Context) error {
	old, err := t.pods(ctx)
	if err != nil {
		return err
	}
	_, err = t.underLoad(ctx, full+"-headless", func(ctx context.Context) error {
		if err := wait(ctx, 3*time.Second); err != nil {
			return err
		}
		if _, err := t.rel.upgrade(ctx, "--reuse-values", "--set=log.level=debug"); err != nil {
			return err
		}
		if err := t.ready(ctx); err != nil {
			return err
		}
		return wait(ctx, 3*time.Second)
	})
	if err != nil {
		return err
	}
	now, err := t.pods(ctx)
	if err != nil {
		return err
	}
	for name, p := range now {
		if old[name] != nil && old[name].UID == p.UID {
			return fmt.Errorf("%s was not replaced", name)
		}
	}
	return nil
}

func (t *realCases) killNode(ctx context.Context) error {
	const name = full + "-1"
	_, err := t.underLoad(ctx, full+"-headless", func(ctx context.Context) error {
		if err := wait(ctx, 2*time.Second); err != nil {
			return err
		}
		old, err := t.pods(ctx)
		if err != nil {
			return err
		}
		before := old[name].Status.ContainerStatuses[0]
		if _, err := output(ctx, "ctr", "--address", containers, "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL",
			strings.TrimPrefix(before.ContainerID, "containerd://")); err != nil {
			return err
		}
		if err := until(ctx, 2*time.Minute, func(ctx context.Context) error {
			now, err := t.pods(ctx)
			if err != nil {
				return err
			}
			p := now[name]
			if p == nil || p.UID != old[name].UID {
				return permanent{fmt.Errorf("the pod was replaced, not restarted")}
			}
			if s := p.Status.ContainerStatuses[0]; s.RestartCount != before.RestartCount+1 || !isReady(p) {
				return fmt.Errorf("restarted %d times, ready %t", s.RestartCount-before.RestartCount, isReady(p))
			}
			return nil
		}); err != nil {
			return err
		}
		return wait(ctx, 3*time.Second)
	})
	return err
}

func (t *realCases) killEtcd(ctx context.Context) error {
	_, err := t.underLoad(ctx, full+"-headless", func(ctx context.Context) error {
		if err := wait(ctx, 2*time.Second); err != nil {
			return err
		}
		if err := t.c.kube.CoreV1().Pods(t.rel.namespace).Delete(ctx, full+"-etcd-0",
			metav1.DeleteOptions{}); err != nil {
			return err
		}
		if err := wait(ctx, 2*time.Second); err != nil {
			return err
		}
		if err := t.ready(ctx); err != nil {
			return err
		}
		return wait(ctx, 5*time.Second)
	})
	if err != nil {
		return err
	}
	jobs, err := t.c.kube.BatchV1().Jobs(t.rel.namespace).List(ctx, metav1.ListOptions{})
	if err == nil && len(jobs.Items) > 0 {
		err = errors.New("there is a Job")
	}
	return err
}

func (t *realCases) rollback(ctx context.Context) error {
	_, err := t.underLoad(ctx, full+"-headless", func(ctx context.Context) error {
		if _, err := t.rel.run(ctx, "rollback", t.rel.name, "1", "--wait", "--timeout=4m"); err != nil {
			return err
		}
		if err := until(ctx, time.Minute, func(ctx context.Context) error {
			j, err := t.c.kube.BatchV1().Jobs(t.rel.namespace).Get(ctx, full+"-init", metav1.GetOptions{})
			if err == nil && j.Status.Succeeded != 1 {
				err = fmt.Errorf("the Job has not succeeded: %d failed", j.Status.Failed)
			}
			return err
		}); err != nil {
			return err
		}
		if err := t.ready(ctx); err != nil {
			return err
		}
		return wait(ctx, 3*time.Second)
	})
	return err
}

// wipe deletes etcd's data, upgrades, and checks that nodes refuse with
// HISTORY_REWOUND. There is no load: its requests would fail.
func (t *realCases) wipe(ctx context.Context) error {
	if err := t.scaleEtcd(ctx, 0); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(t.volume(), "initial")); err != nil {
		return err
	}
	if err := t.scaleEtcd(ctx, 1); err != nil {
		return err
	}
	return t.afterWipe(ctx)
}

// scaleEtcd changes the number of members, and waits until none is left if that is 0.
func (t *realCases) scaleEtcd(ctx context.Context, n int32) error {
	sets := t.c.kube.AppsV1().StatefulSets(t.rel.namespace)
	s, err := sets.GetScale(ctx, full+"-etcd", metav1.GetOptions{})
	if err != nil {
		return err
	}
	s.Spec.Replicas = n
	if _, err := sets.UpdateScale(ctx, full+"-etcd", s, metav1.UpdateOptions{}); err != nil || n > 0 {
		return err
	}
	return until(ctx, time.Minute, func(ctx context.Context) error {
		list, err := t.c.kube.CoreV1().Pods(t.rel.namespace).List(ctx,
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=etcd"})
		if err == nil && len(list.Items) > 0 {
			err = errors.New("etcd's pod still exists")
		}
		return err
	})
}

func (t *realCases) afterWipe(ctx context.Context) error {
	// Without --wait, since nodes must not become ready.
	if _, err := t.rel.run(ctx, "upgrade", t.rel.name, t.c.chart(), "--timeout=2m", "--reuse-values",
		"--set=log.level=info,podAnnotations.wiped=yes"); err != nil {
		return err
	}
	// The last pod is of the upgrade and finds no space. The others ran before.
	last := map[string]string{}
	if err := until(ctx, 3*time.Minute, func(ctx context.Context) error {
		list, err := t.pods(ctx)
		if err != nil {
			return err
		}
		for name, p := range list {
			if isReady(p) || p.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("%s is %s, ready %t", name, p.Status.Phase, isReady(p))
			}
			lines := int64(20)
			log, err := t.c.kube.CoreV1().Pods(t.rel.namespace).GetLogs(name,
				&corev1.PodLogOptions{TailLines: &lines}).DoRaw(ctx)
			if err != nil {
				return fmt.Errorf("log of %s: %w", name, err)
			}
			if name != full+"-2" && !strings.Contains(string(log), "HISTORY_REWOUND") {
				return fmt.Errorf("%s does not log HISTORY_REWOUND", name)
			}
			all := strings.Split(strings.TrimSpace(string(log)), "\n")
			last[name] = all[len(all)-1]
		}
		if len(list) != 3 {
			return fmt.Errorf("there are %d nodes", len(list))
		}
		return nil
	}); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(last)) {
		fmt.Fprintf(t.r.out, "           %s: %s\n", name, last[name])
	}
	jobs, err := t.c.kube.BatchV1().Jobs(t.rel.namespace).List(ctx, metav1.ListOptions{})
	if err == nil && len(jobs.Items) > 0 {
		err = errors.New("there is a Job that would initialize the empty etcd")
	}
	return err
}

// uninstall returns an error if other objects are left than volume claims, the test's pod and the
// Secrets that the release never owned.
func (t *realCases) uninstall(ctx context.Context) error {
	want := []string{"PersistentVolumeClaim/data-" + member(0), "PersistentVolumeClaim/snapshots-" + snapshotsPod,
		"Pod/" + full + "-test-draw"}
	mine, err := t.c.kube.CoreV1().Secrets(t.rel.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, s := range mine.Items {
		if s.Type != "helm.sh/release.v1" {
			want = append(want, "Secret/"+s.Name)
		}
	}
	if _, err := t.rel.run(ctx, "uninstall", t.rel.name, "--wait", "--timeout=2m"); err != nil {
		return err
	}
	slices.Sort(want)
	return until(ctx, time.Minute, func(ctx context.Context) error {
		list, err := remains(ctx, t.c.kube, t.rel.namespace)
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

// volumeFor creates a volume for a claim.
func (c *cluster) volumeFor(ctx context.Context, name, path, namespace, claim string) error {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("8Gi")},
			StorageClassName:              "local",
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: path},
			},
			ClaimRef: &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: namespace, Name: claim},
		},
	}
	_, err := c.kube.CoreV1().PersistentVolumes().Create(ctx, v, metav1.CreateOptions{})
	return err
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
}
