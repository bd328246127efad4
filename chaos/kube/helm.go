package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// A release is the chart in a namespace, installed by one major version of Helm.
type release struct {
	c         *cluster
	helm      string // helm3 or helm4
	namespace string
	name      string
}

func (c *cluster) chart() string { return filepath.Join(c.s.root, "deploy/helm/allocator") }

// namespace creates a namespace that refuses pods which are not of the level
// "restricted", and warns about objects that create such pods.
func (c *cluster) namespace(ctx context.Context, name string) error {
	labels := map[string]string{}
	for _, mode := range []string{"enforce", "warn"} {
		labels["pod-security.kubernetes.io/"+mode] = "restricted"
		labels["pod-security.kubernetes.io/"+mode+"-version"] = "latest"
	}
	_, err := c.kube.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// Pods are refused until their service account exists.
	return until(ctx, time.Minute, func(ctx context.Context) error {
		_, err := c.kube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// run runs helm on the release.
func (r release) run(ctx context.Context, args ...string) (string, error) {
	home := r.c.ca.path(r.helm)
	return output(ctx, "env", append([]string{
		"HOME=" + home, "KUBECONFIG=" + r.c.ca.path("admin.kubeconfig"), "HELM_NAMESPACE=" + r.namespace,
		"HELM_NO_PLUGINS=1",
		filepath.Join(r.c.s.bin, r.helm),
	}, args...)...)
}

// upgrade waits until everything is ready, hooks included.
func (r release) upgrade(ctx context.Context, args ...string) (string, error) {
	return r.run(ctx, append([]string{"upgrade", r.name, r.c.chart(), "--wait", "--timeout=4m"}, args...)...)
}

// accepted has the API server check the objects of every values file of the chart, by each major of
// Helm, in a dry run. An unknown or repeated field is an error, and so is a warning.
func (c *cluster) accepted(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(c.chart(), "ci", "*-values.yaml"))
	if err != nil {
		return err
	}
	const namespace = "accepted"
	// One of the files names another namespace.
	if err := errors.Join(c.namespace(ctx, namespace), c.namespace(ctx, "elsewhere")); err != nil {
		return err
	}
	for _, h := range helms {
		rel := release{c: c, helm: h.name, namespace: namespace, name: releaseName}
		// This shows that the check can fail.
		if err := rel.apply(ctx, "-f", files[0], "--set-json",
			`extraObjects=[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"},"datum":{}}]`); err == nil ||
			!strings.Contains(err.Error(), "datum") {
			return fmt.Errorf("an unknown field: got %v, want that it is refused", err)
		}
		if err := rel.apply(ctx, "-f", files[0], "--set", "podSecurityContext.runAsNonRoot=false"); err == nil ||
			!strings.Contains(err.Error(), "would violate PodSecurity") {
			return fmt.Errorf("pods that are not restricted: got %v, want a warning", err)
		}
		for _, f := range files {
			if err := rel.apply(ctx, "-f", f); err != nil {
				return fmt.Errorf("%s, %s: %w", h.name, filepath.Base(f), err)
			}
		}
	}
	return nil
}

// foreign are kinds that operators install. The server does not know them, so they are left out.
var foreign = []string{"Certificate", "Issuer", "ServiceMonitor", "PodMonitor", "PrometheusRule", "HTTPRoute",
	"GRPCRoute"}

// apply applies what helm renders in a dry run.
func (r release) apply(ctx context.Context, args ...string) error {
	v, err := r.c.kube.Discovery().ServerVersion()
	if err != nil {
		return err
	}
	objects, err := r.run(ctx,
		append([]string{"template", r.name, r.c.chart(), "--skip-tests", "--kube-version=" + v.GitVersion}, args...)...)
	if err != nil {
		return err
	}
	file, err := r.c.write("rendered.yaml", objects)
	if err != nil {
		return err
	}
	out, err := output(ctx, "env", "HOME="+r.c.ca.path("kubectl"), filepath.Join(r.c.s.bin, "kubectl"),
		"--kubeconfig="+r.c.ca.path("admin.kubeconfig"),
		"apply", "--server-side", "--dry-run=server", "--validate=strict", "--filename="+file)
	want, applied := 0, 0
	for line := range strings.Lines(objects) {
		if kind, ok := strings.CutPrefix(strings.TrimSpace(line), "kind: "); ok && line[0] != ' ' &&
			!slices.Contains(foreign, kind) {
			want++
		}
	}
	var odd []string
	for line := range strings.Lines(out) {
		switch {
		case strings.Contains(line, "serverside-applied"):
			applied++
		case strings.Contains(line, "no matches for kind"), strings.Contains(line, "ensure CRDs are installed first"),
			strings.Contains(line, `"PreferClose" is deprecated`), // Servers before 1.34 have no other name for it.
			// Agents mount a directory of the machine, as the chart's page says.
			strings.Contains(line, `volume "sockets" uses restricted volume type "hostPath"`):
		case strings.TrimSpace(line) != "":
			odd = append(odd, line)
		}
	}
	if len(odd) > 0 || applied == 0 || applied != want {
		return fmt.Errorf("%d of %d objects are accepted: %v: %s", applied, want, err, strings.Join(odd, ""))
	}
	return nil
}

// remains lists the objects of a namespace as Kind/name, without those that
// Kubernetes itself creates. Objects that are being deleted count.
func remains(ctx context.Context, kube kubernetes.Interface, namespace string) ([]string, error) {
	var list []string
	add := func(kind string, names []metav1.ObjectMeta) {
		for _, m := range names {
			if m.Name != "default" && m.Name != "kube-root-ca.crt" {
				list = append(list, kind+"/"+m.Name)
			}
		}
	}
	o := metav1.ListOptions{}
	pods, err1 := kube.CoreV1().Pods(namespace).List(ctx, o)
	services, err2 := kube.CoreV1().Services(namespace).List(ctx, o)
	configs, err3 := kube.CoreV1().ConfigMaps(namespace).List(ctx, o)
	secrets, err4 := kube.CoreV1().Secrets(namespace).List(ctx, o)
	claims, err5 := kube.CoreV1().PersistentVolumeClaims(namespace).List(ctx, o)
	accounts, err6 := kube.CoreV1().ServiceAccounts(namespace).List(ctx, o)
	sets, err7 := kube.AppsV1().StatefulSets(namespace).List(ctx, o)
	jobs, err8 := kube.BatchV1().Jobs(namespace).List(ctx, o)
	budgets, err9 := kube.PolicyV1().PodDisruptionBudgets(namespace).List(ctx, o)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8, err9); err != nil {
		return nil, err
	}
	add("Pod", metas(pods.Items, func(x corev1.Pod) metav1.ObjectMeta { return x.ObjectMeta }))
	add("Service", metas(services.Items, func(x corev1.Service) metav1.ObjectMeta { return x.ObjectMeta }))
	add("ConfigMap", metas(configs.Items, func(x corev1.ConfigMap) metav1.ObjectMeta { return x.ObjectMeta }))
	add("Secret", metas(secrets.Items, func(x corev1.Secret) metav1.ObjectMeta { return x.ObjectMeta }))
	add("PersistentVolumeClaim",
		metas(claims.Items, func(x corev1.PersistentVolumeClaim) metav1.ObjectMeta { return x.ObjectMeta }))
	add("ServiceAccount",
		metas(accounts.Items, func(x corev1.ServiceAccount) metav1.ObjectMeta { return x.ObjectMeta }))
	for _, x := range sets.Items {
		list = append(list, "StatefulSet/"+x.Name)
	}
	for _, x := range jobs.Items {
		list = append(list, "Job/"+x.Name)
	}
	for _, x := range budgets.Items {
		list = append(list, "PodDisruptionBudget/"+x.Name)
	}
	return list, nil
}

func metas[T any](list []T, meta func(T) metav1.ObjectMeta) []metav1.ObjectMeta {
	var out []metav1.ObjectMeta
	for _, x := range list {
		out = append(out, meta(x))
	}
	return out
}
