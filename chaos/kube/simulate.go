package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Simulated machines, which exist only in the API.
const (
	simulatedNodes = 3
	stepEvery      = 100 * time.Millisecond
	startTakes     = 300 * time.Millisecond // until a new pod is ready, or a Job's has ended
)

// A simulator updates the status of pods as a kubelet would, and runs none: a pod gets
// an address and is running, then ready; one of a Job succeeds; one that is deleted
// is removed. Cases change that with hold and fail.
//
// All methods are safe for concurrent use.
type simulator struct {
	kube kubernetes.Interface

	mu     sync.Mutex // guards what follows
	seen   map[types.UID]time.Time
	held   map[string]bool       // namespace/name of pods that must not become ready
	failed map[string]bool       // pods that have to fail
	then   func(pod *corev1.Pod) // called before a pod succeeds
	log    []string              // events, in order: "ready ns/name"
	nextIP int
	errs   []error
}

func newSimulator(kube kubernetes.Interface) *simulator {
	return &simulator{kube: kube, seen: map[types.UID]time.Time{}, held: map[string]bool{}, failed: map[string]bool{}}
}

func nodeName(i int) string { return fmt.Sprintf("simulated-%d", i) }

// addNodes registers the machines.
func (p *simulator) addNodes(ctx context.Context) error {
	for i := range simulatedNodes {
		name := nodeName(i)
		room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16"),
			corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("100")}
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: name,
				Labels: map[string]string{"kubernetes.io/hostname": name,
					"topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", i)},
			},
		}
		n, err := p.kube.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		n.Status.Capacity, n.Status.Allocatable = room, room
		n.Status.Addresses = []corev1.NodeAddress{{
			Type:    corev1.NodeInternalIP,
			Address: fmt.Sprintf("198.51.100.%d", i+1),
		}}
		n.Status.Conditions = []corev1.NodeCondition{{
			Type:               corev1.NodeReady,
			Status:             corev1.ConditionTrue,
			Reason:             "Simulated",
			LastHeartbeatTime:  metav1.Now(),
			LastTransitionTime: metav1.Now(),
		}}
		if _, err := p.kube.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return p.beat(ctx)
}

func (p *simulator) removeNodes(ctx context.Context) error {
	var errs []error
	for i := range simulatedNodes {
		errs = append(errs, p.kube.CoreV1().Nodes().Delete(ctx, nodeName(i), metav1.DeleteOptions{}))
	}
	return errors.Join(errs...)
}

// beat renews the leases of the machines, without which controllers consider them
// lost.
func (p *simulator) beat(ctx context.Context) error {
	for i := range simulatedNodes {
		name, seconds, now := nodeName(i), int32(40), metav1.NowMicro()
		l := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity:       &name,
				LeaseDurationSeconds: &seconds,
				RenewTime:            &now,
			},
		}
		leases := p.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
		old, err := leases.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			_, err = leases.Create(ctx, l, metav1.CreateOptions{})
		case err == nil:
			old.Spec = l.Spec
			_, err = leases.Update(ctx, old, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// run simulates until ctx ends.
func (p *simulator) run(ctx context.Context) {
	tick := time.NewTicker(stepEvery)
	defer tick.Stop()
	var beaten time.Time
	for ctx.Err() == nil {
		var err error
		if time.Since(beaten) > 5*time.Second {
			beaten = time.Now()
			err = p.beat(ctx)
		}
		if err = errors.Join(err, p.step(ctx)); err != nil && ctx.Err() == nil {
			p.mu.Lock()
			p.errs = append(p.errs, err)
			p.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// step advances every pod once.
func (p *simulator) step(ctx context.Context) error {
	pods, err := p.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		if pod := &pods.Items[i]; strings.HasPrefix(pod.Spec.NodeName, "simulated-") {
			if err := p.advance(ctx, pod); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				errs = append(errs, fmt.Errorf("%s/%s: %w", pod.Namespace, pod.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (p *simulator) advance(ctx context.Context, pod *corev1.Pod) error {
	name := pod.Namespace + "/" + pod.Name
	if pod.DeletionTimestamp != nil {
		zero := int64(0)
		err := p.kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name,
			metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		if err == nil {
			p.note("gone " + name)
		}
		return err
	}
	p.mu.Lock()
	first, known := p.seen[pod.UID]
	if !known {
		first = time.Now()
		p.seen[pod.UID] = first
	}
	held, failed, then := p.held[name], p.failed[name], p.then
	p.mu.Unlock()
	ends := pod.Spec.RestartPolicy != corev1.RestartPolicyAlways
	ready := isReady(pod)
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return nil
	case pod.Status.Phase == corev1.PodPending:
		p.mu.Lock()
		p.nextIP++
		ip := fmt.Sprintf("10.250.%d.%d", p.nextIP/250, p.nextIP%250+1)
		p.mu.Unlock()
		p.note("running " + name)
		return p.status(ctx, pod, corev1.PodRunning, false, ip)
	case time.Since(first) < startTakes:
		return nil
	case ends && failed:
		p.note("failed " + name)
		return p.status(ctx, pod, corev1.PodFailed, false, "")
	case ends && !held:
		if then != nil {
			then(pod)
		}
		p.note("succeeded " + name)
		return p.status(ctx, pod, corev1.PodSucceeded, false, "")
	case !ends && ready == held:
		word := "ready "
		if held {
			word = "unready "
		}
		p.note(word + name)
		return p.status(ctx, pod, corev1.PodRunning, !held, "")
	}
	return nil
}

// status writes the status of a pod as a kubelet would.
func (p *simulator) status(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase, ready bool, ip string) error {
	now := metav1.Now()
	truth := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}
	condition := func(kind corev1.PodConditionType, is bool) corev1.PodCondition {
		return corev1.PodCondition{
			Type:               kind,
			Status:             truth[is],
			LastTransitionTime: now,
			ObservedGeneration: pod.Generation,
		}
	}
	s := corev1.PodStatus{
		Phase:              phase,
		ObservedGeneration: pod.Generation,
		Conditions: []corev1.PodCondition{
			condition(corev1.PodInitialized, true), condition(corev1.PodReady, ready),
			condition(corev1.ContainersReady, ready),
		},
	}
	if ip != "" {
		s.PodIP, s.PodIPs, s.HostIP, s.StartTime = ip, []corev1.PodIP{{IP: ip}}, "198.51.100.1", &now
	}
	for _, c := range pod.Spec.Containers {
		state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
		switch phase {
		case corev1.PodSucceeded:
			state = corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: now},
			}
		case corev1.PodFailed:
			state = corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1, FinishedAt: now},
			}
		}
		started := state.Running != nil
		s.ContainerStatuses = append(s.ContainerStatuses,
			corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: ready, Started: &started, State: state})
	}
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": s})
	if err != nil {
		return err
	}
	_, err = p.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, b,
		metav1.PatchOptions{}, "status")
	return err
}

func (p *simulator) note(event string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, event)
}

// hold prevents a pod from becoming ready, or from ending.
func (p *simulator) hold(namespace, name string, held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[namespace+"/"+name] = held
}

// fail makes a pod of a Job fail.
func (p *simulator) fail(namespace, name string, fails bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed[namespace+"/"+name] = fails
}

// before sets a function to call before a pod succeeds; nil: none.
func (p *simulator) before(f func(pod *corev1.Pod)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.then = f
}

// events returns the events of a namespace since the mark, and the next mark.
func (p *simulator) events(namespace string, mark int) ([]string, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []string
	for _, s := range p.log[mark:] {
		if word, name, _ := strings.Cut(s, " "); strings.HasPrefix(name, namespace+"/") {
			list = append(list, word+" "+strings.TrimPrefix(name, namespace+"/"))
		}
	}
	return list, len(p.log)
}

func (p *simulator) mark() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.log)
}

// failures returns the errors of the simulation: after one the cases mean nothing.
func (p *simulator) failures() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.errs...)
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
}
