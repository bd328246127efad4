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

// Machines that only the API knows.
const (
	playedNodes = 3
	playEvery   = 100 * time.Millisecond
	startTakes  = 300 * time.Millisecond // from a pod's being seen to its being ready or, of a Job, over
)

// A player does with pods what a kubelet would have the API see, and runs none: a
// pod gets an address and is running, then ready; one that is to end ends well; one
// that is deleted goes. What a case wants otherwise it says with hold and fail.
//
// All methods are safe for concurrent use.
type player struct {
	kube kubernetes.Interface

	mu     sync.Mutex // guards what follows
	seen   map[types.UID]time.Time
	held   map[string]bool       // namespace/name of pods that shall not become ready
	failed map[string]bool       // of pods that shall end in failure
	then   func(pod *corev1.Pod) // called before a pod is said to have ended well
	story  []string              // what was done, in order: «ready ns/name»
	nextIP int
	errs   []error
}

func newPlayer(kube kubernetes.Interface) *player {
	return &player{kube: kube, seen: map[types.UID]time.Time{}, held: map[string]bool{}, failed: map[string]bool{}}
}

func nodeName(i int) string { return fmt.Sprintf("played-%d", i) }

// addNodes registers the machines.
func (p *player) addNodes(ctx context.Context) error {
	for i := range playedNodes {
		name := nodeName(i)
		room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("100")}
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": fmt.Sprintf("zone-%d", i)}}}
		n, err := p.kube.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		n.Status.Capacity, n.Status.Allocatable = room, room
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("198.51.100.%d", i+1)}}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Played", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}}
		if _, err := p.kube.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	return p.beat(ctx)
}

func (p *player) removeNodes(ctx context.Context) error {
	var errs []error
	for i := range playedNodes {
		errs = append(errs, p.kube.CoreV1().Nodes().Delete(ctx, nodeName(i), metav1.DeleteOptions{}))
	}
	return errors.Join(errs...)
}

// beat renews the leases, without which the controllers think that the machines are
// gone.
func (p *player) beat(ctx context.Context) error {
	for i := range playedNodes {
		name, seconds, now := nodeName(i), int32(40), metav1.NowMicro()
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now}}
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

// run plays until ctx ends.
func (p *player) run(ctx context.Context) {
	tick := time.NewTicker(playEvery)
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

// step looks at every pod once.
func (p *player) step(ctx context.Context) error {
	pods, err := p.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var errs []error
	for i := range pods.Items {
		if pod := &pods.Items[i]; strings.HasPrefix(pod.Spec.NodeName, "played-") {
			if err := p.play(ctx, pod); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				errs = append(errs, fmt.Errorf("%s/%s: %w", pod.Namespace, pod.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (p *player) play(ctx context.Context, pod *corev1.Pod) error {
	name := pod.Namespace + "/" + pod.Name
	if pod.DeletionTimestamp != nil {
		zero := int64(0)
		err := p.kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &pod.UID}})
		if err == nil {
			p.tell("gone " + name)
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
		p.tell("running " + name)
		return p.status(ctx, pod, corev1.PodRunning, false, ip)
	case time.Since(first) < startTakes:
		return nil
	case ends && failed:
		p.tell("failed " + name)
		return p.status(ctx, pod, corev1.PodFailed, false, "")
	case ends && !held:
		if then != nil {
			then(pod)
		}
		p.tell("succeeded " + name)
		return p.status(ctx, pod, corev1.PodSucceeded, false, "")
	case !ends && ready == held:
		word := "ready "
		if held {
			word = "unready "
		}
		p.tell(word + name)
		return p.status(ctx, pod, corev1.PodRunning, !held, "")
	}
	return nil
}

// status writes what a kubelet would.
func (p *player) status(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase, ready bool, ip string) error {
	now := metav1.Now()
	truth := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}
	condition := func(kind corev1.PodConditionType, is bool) corev1.PodCondition {
		return corev1.PodCondition{Type: kind, Status: truth[is], LastTransitionTime: now, ObservedGeneration: pod.Generation}
	}
	s := corev1.PodStatus{Phase: phase, ObservedGeneration: pod.Generation, Conditions: []corev1.PodCondition{
		condition(corev1.PodInitialized, true), condition(corev1.PodReady, ready), condition(corev1.ContainersReady, ready),
	}}
	if ip != "" {
		s.PodIP, s.PodIPs, s.HostIP, s.StartTime = ip, []corev1.PodIP{{IP: ip}}, "198.51.100.1", &now
	}
	for _, c := range pod.Spec.Containers {
		state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
		switch phase {
		case corev1.PodSucceeded:
			state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: now}}
		case corev1.PodFailed:
			state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1, FinishedAt: now}}
		}
		started := state.Running != nil
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: ready, Started: &started, State: state})
	}
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": s})
	if err != nil {
		return err
	}
	_, err = p.kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, b, metav1.PatchOptions{}, "status")
	return err
}

func (p *player) tell(what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.story = append(p.story, what)
}

// hold keeps a pod from being ready, or from ending.
func (p *player) hold(namespace, name string, held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held[namespace+"/"+name] = held
}

// fail has a pod that ends fail.
func (p *player) fail(namespace, name string, fails bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed[namespace+"/"+name] = fails
}

// before has f called before a pod is said to have ended well; nil ends that.
func (p *player) before(f func(pod *corev1.Pod)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.then = f
}

// told returns what was done in a namespace since the mark, and the next mark.
func (p *player) told(namespace string, mark int) ([]string, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []string
	for _, s := range p.story[mark:] {
		if word, name, _ := strings.Cut(s, " "); strings.HasPrefix(name, namespace+"/") {
			list = append(list, word+" "+strings.TrimPrefix(name, namespace+"/"))
		}
	}
	return list, len(p.story)
}

func (p *player) mark() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.story)
}

// trouble is what went wrong while playing: the cases may then mean nothing.
func (p *player) trouble() error {
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
