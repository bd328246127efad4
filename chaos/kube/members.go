package main

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// etcdMembers is how many members the chart's etcd has here.
const etcdMembers = 3

// snapshotsPod takes snapshots.
const snapshotsPod = full + "-etcd-snapshots-0"

// membersPart installs the chart with three members of etcd, and harms them under load.
func membersPart(ctx context.Context, c *cluster, r *report) {
	r.part("real pods: three members of the chart's own etcd")
	t := &memberCases{realCases{
		c:     c,
		r:     r,
		rel:   release{c: c, helm: "helm3", namespace: "members", name: releaseName},
		etcds: etcdMembers,
	}}
	run := func(name string, f func(context.Context) error) bool {
		return r.run(ctx, name, caseLimit, func(ctx context.Context) error {
			if err := f(ctx); err != nil {
				return fmt.Errorf("%w\n%s", err, t.state())
			}
			return nil
		})
	}
	if !run("as the chart's page prints it: values, a Secret, helm install and helm test; a Job makes "+
		"certificates, three members begin a cluster, nodes use it as their user; then state, snapshot and archive",
		t.install) {
		return
	}
	run("each member is killed under load: no call fails, no ID is returned twice", t.kill)
	run("a member's volume and pod are deleted as printed, under load: another member takes its place", t.replace)
	run("etcd and nodes are upgraded at once under load: one member after the other, and no call fails", t.rolling)
	run("a snapshot is restored as printed, under load: nodes refuse until a new era begins, and no ID is "+
		"returned twice", t.restore)
}

type memberCases struct{ realCases }

// member is a member's pod.
func member(i int) string { return fmt.Sprintf("%s-etcd-%d", full, i) }

// claim creates a volume for one claim, and its directory.
func (t *realCases) claim(ctx context.Context, claim, dir string) error {
	path := t.c.ca.path(filepath.Join("volumes", dir))
	if err := errors.Join(os.MkdirAll(path, 0o700), os.Chown(path, imageUser, imageUser)); err != nil {
		return err
	}
	return t.c.volumeFor(ctx, dir, path, t.rel.namespace, claim)
}

func (t *memberCases) install(ctx context.Context) error {
	if err := t.prepare(ctx); err != nil {
		return err
	}
	errs := []error{t.claim(ctx, "snapshots-"+snapshotsPod, "members-snapshots")}
	for i := range etcdMembers {
		errs = append(errs, t.claim(ctx, "data-"+member(i), fmt.Sprintf("members-data-%d", i)))
	}
	values, err := t.block(chartPage, "file: values.yaml")
	errs = append(errs, err, t.writeValues(values))
	// The page's registry has the image, and the kinds of its monitoring exist.
	_, err = output(ctx, "ctr", "--address", containers, "-n", "k8s.io", "images", "tag",
		"docker.io/library/allocator:latest", "registry.example.org/flakelease/allocator:0.1.0")
	errs = append(errs, err)
	_, err = output(ctx, filepath.Join(t.dir(), "kubectl"), "--kubeconfig="+t.c.ca.path("admin.kubeconfig"),
		"apply", "-f", filepath.Join(t.c.s.root, "chaos/kube/testdata/monitoring.yaml"))
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	if _, err := t.page(ctx, chartPage, "secret", "docker run --rm IMAGE",
		filepath.Join(t.c.s.root, "bin/image/allocator/allocator")); err != nil {
		return err
	}
	begun := time.Now()
	out, err := t.page(ctx, chartPage, "install")
	if err != nil {
		return err
	}
	fmt.Fprintf(t.r.out, "           helm install and helm test: %s; %s\n", time.Since(begun).Round(time.Second),
		regexp.MustCompile(`.*no ID was returned twice.*|$`).FindString(out))
	if _, err := t.page(ctx, kubePage, "zip"); err != nil {
		return err
	}
	archive, err := zip.OpenReader(filepath.Join(t.dir(), "x.zip"))
	if err != nil || len(archive.File) < 10 {
		return fmt.Errorf("the archive: %v", err)
	}
	_ = archive.Close()
	if out, err = t.page(ctx, kubePage, "members"); err != nil || !strings.Contains(out, ".snapshot") {
		return fmt.Errorf("the members' state and a snapshot: %w: %s", err, out)
	}
	return nil
}

// writeValues writes the values of the release, which pages name.
func (t *memberCases) writeValues(text string) error {
	return os.WriteFile(filepath.Join(t.dir(), "values.yaml"), []byte(text), 0o600)
}

// exec runs a program in a pod's container, with its environment.
func (t *realCases) exec(ctx context.Context, pod string, args ...string) (string, error) {
	p, err := t.c.kube.CoreV1().Pods(t.rel.namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if len(p.Status.ContainerStatuses) == 0 || p.Status.ContainerStatuses[0].State.Running == nil {
		return "", fmt.Errorf("%s does not run", pod)
	}
	return output(ctx, "ctr", append([]string{"--address", containers, "-n", "k8s.io", "tasks", "exec", "--exec-id",
		fmt.Sprintf("test-%d", time.Now().UnixNano()),
		strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")}, args...)...)
}

// listed returns the members that etcd lists, by name, and an error unless all of them vote.
func (t *memberCases) listed(ctx context.Context, from int) (map[string]string, error) {
	out, err := t.exec(ctx, member(from), "/allocator", "etcd", "status", "--format=json")
	if err != nil {
		return nil, err
	}
	var status struct {
		Members []struct{ Name, ID, State string }
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	m := map[string]string{}
	for _, one := range status.Members {
		if one.State != "leader" && one.State != "follower" {
			return nil, fmt.Errorf("a member does not vote: %s", out)
		}
		m[one.Name] = one.ID
	}
	if len(m) != etcdMembers {
		return nil, fmt.Errorf("there are %d members: %s", len(m), out)
	}
	return m, nil
}

func (t *memberCases) kill(ctx context.Context) error {
	_, err := t.underLoad(ctx, full+"-headless", func(ctx context.Context) error {
		for i := range etcdMembers {
			p, err := t.c.kube.CoreV1().Pods(t.rel.namespace).Get(ctx, member(i), metav1.GetOptions{})
			if err != nil {
				return err
			}
			before := p.Status.ContainerStatuses[0]
			if _, err := output(ctx, "ctr", "--address", containers, "-n", "k8s.io", "tasks", "kill", "--signal",
				"SIGKILL", strings.TrimPrefix(before.ContainerID, "containerd://")); err != nil {
				return err
			}
			if err := until(ctx, 2*time.Minute, func(ctx context.Context) error {
				p, err := t.c.kube.CoreV1().Pods(t.rel.namespace).Get(ctx, member(i), metav1.GetOptions{})
				if err != nil {
					return err
				}
				if s := p.Status.ContainerStatuses[0]; s.RestartCount != before.RestartCount+1 || !isReady(p) {
					return fmt.Errorf("%s: restarted %d times, ready %t", p.Name, s.RestartCount-before.RestartCount,
						isReady(p))
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return wait(ctx, 3*time.Second)
	})
	return err
}

// replace loses a volume as the guide prints it: the claim is deleted, then the pod.
func (t *memberCases) replace(ctx context.Context) error {
	const lost = 1
	old, err := t.listed(ctx, 0)
	if err != nil {
		return err
	}
	if err := t.claim(ctx, "data-"+member(lost), "members-data-new"); err != nil {
		return err
	}
	if _, err = t.underLoad(ctx, full+"-headless", func(ctx context.Context) error {
		begun := time.Now()
		if _, err := t.page(ctx, kubePage, "lost"); err != nil {
			return err
		}
		if err := t.ready(ctx); err != nil {
			return err
		}
		fmt.Fprintf(t.r.out, "           from the deletion to a member that votes: %s\n",
			time.Since(begun).Round(time.Second))
		return wait(ctx, 3*time.Second)
	}); err != nil {
		return err
	}
	now, err := t.listed(ctx, 0)
	if err != nil {
		return err
	}
	if now[member(lost)] == old[member(lost)] {
		return fmt.Errorf("the member has the ID %s of the one whose data are lost", old[member(lost)])
	}
	return nil
}

func (t *memberCases) rolling(ctx context.Context) error {
	all := func() (map[string]string, error) {
		list, err := t.c.kube.CoreV1().Pods(t.rel.namespace).List(ctx,
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/component in (node,etcd)"})
		if err != nil {
			return nil, err
		}
		m := map[string]string{}
		for _, p := range list.Items {
			m[p.Name] = string(p.UID)
		}
		return m, nil
	}
	old, err := all()
	if err != nil {
		return err
	}
	values, err := t.block(chartPage, "file: values.yaml")
	if err != nil {
		return err
	}
	most := 0
	watching, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() {
		defer close(over)
		for wait(watching, 200*time.Millisecond) == nil {
			list, err := t.c.kube.CoreV1().Pods(t.rel.namespace).List(watching,
				metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=etcd"})
			if err != nil {
				continue
			}
			away := etcdMembers
			for _, p := range list.Items {
				if isReady(&p) {
					away--
				}
			}
			most = max(most, away)
		}
	}()
	_, err = t.underLoad(ctx, full+"-headless", func(ctx context.Context) error {
		if err := t.writeValues(strings.Replace(values, "  bundled:\n",
			"  bundled:\n    podAnnotations: {upgraded: 'yes'}\n", 1) + "log: {level: debug}\n"); err != nil {
			return err
		}
		if _, err := t.rel.upgrade(ctx, "-f", filepath.Join(t.dir(), "values.yaml")); err != nil {
			return err
		}
		if err := t.ready(ctx); err != nil {
			return err
		}
		return wait(ctx, 3*time.Second)
	})
	stop()
	<-over
	if err != nil {
		return err
	}
	now, err := all()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if now[name] == old[name] {
			err = errors.Join(err, fmt.Errorf("%s was not replaced", name))
		}
	}
	if most > 1 {
		err = errors.Join(err, fmt.Errorf("%d members were not ready at once", most))
	}
	_, listed := t.listed(ctx, 0)
	return errors.Join(err, listed)
}

// restore follows docs/how-to/restore-etcd.md. Nodes refuse meanwhile, so calls fail.
func (t *memberCases) restore(ctx context.Context) error {
	out, err := t.page(ctx, restorePage, "kube-choose")
	if err != nil {
		return err
	}
	snapshot := regexp.MustCompile(`\S+\.snapshot`).FindString(out)
	d, err := t.load(ctx, full+"-headless", func(ctx context.Context) error {
		// What is granted now is not in the snapshot.
		if err := wait(ctx, 15*time.Second); err != nil {
			return err
		}
		if _, err := t.page(ctx, restorePage, "kube-upgrade", "2026-11-24t06-00-00z.snapshot", snapshot); err != nil {
			return err
		}
		if _, err := t.page(ctx, restorePage, "kube-delete"); err != nil {
			return err
		}
		if err := t.refuse(ctx); err != nil {
			return err
		}
		// It asks people alone.
		out, err := t.page(ctx, restorePage, "kube-era", "-it ", "", "admin recover", "admin recover --yes")
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		fmt.Fprintf(t.r.out, "           %s\n", lines[len(lines)-1])
		if err := t.ready(ctx); err != nil {
			return err
		}
		return wait(ctx, 5*time.Second)
	})
	if err != nil {
		return err
	}
	if d.Duplicates > 0 || d.Unchecked > 0 || d.Disorder > 0 || d.Failed == 0 {
		return fmt.Errorf("%d duplicates, %d not compared, %d out of order, %d failed: want refusals alone",
			d.Duplicates, d.Unchecked, d.Disorder, d.Failed)
	}
	_, err = t.listed(ctx, 0)
	return err
}

// refuse waits until every node refuses because of the restore, and all members are ready.
func (t *memberCases) refuse(ctx context.Context) error {
	return until(ctx, 3*time.Minute, func(ctx context.Context) error {
		list, err := t.pods(ctx)
		if err != nil {
			return err
		}
		for name, p := range list {
			log, err := t.c.kube.CoreV1().Pods(t.rel.namespace).GetLogs(name, &corev1.PodLogOptions{}).DoRaw(ctx)
			if err != nil {
				return fmt.Errorf("log of %s: %w", name, err)
			}
			if !strings.Contains(string(log), "HISTORY_REWOUND") || isReady(p) {
				return fmt.Errorf("%s does not refuse: ready %t", name, isReady(p))
			}
		}
		_, err = t.listed(ctx, 0)
		return err
	})
}

// storage creates the class of volumes, if another part has not. Nothing makes volumes of it.
func (c *cluster) storage(ctx context.Context) error {
	bind := storagev1.VolumeBindingImmediate
	_, err := c.kube.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "local",
			Annotations: map[string]string{"storageclass.kubernetes.io/is-default-class": "true"},
		},
		Provisioner:       "kubernetes.io/no-provisioner",
		VolumeBindingMode: &bind,
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
