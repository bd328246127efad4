package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
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

// install and upgrade wait until everything is ready, hooks included.
func (r release) install(ctx context.Context, args ...string) (string, error) {
	return r.run(ctx, append([]string{"install", r.name, r.c.chart(), "--wait", "--timeout=4m"}, args...)...)
}

func (r release) upgrade(ctx context.Context, args ...string) (string, error) {
	return r.run(ctx, append([]string{"upgrade", r.name, r.c.chart(), "--wait", "--timeout=4m"}, args...)...)
}

// render returns the objects of the chart as helm would send them.
func (r release) render(ctx context.Context, args ...string) ([]*unstructured.Unstructured, error) {
	v, err := r.c.kube.Discovery().ServerVersion()
	if err != nil {
		return nil, err
	}
	out, err := r.run(ctx,
		append([]string{"template", r.name, r.c.chart(), "--kube-version=" + v.GitVersion}, args...)...)
	if err != nil {
		return nil, err
	}
	return decode(out)
}

// decode reads objects in YAML.
func decode(text string) ([]*unstructured.Unstructured, error) {
	d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096)
	var list []*unstructured.Unstructured
	for {
		o := &unstructured.Unstructured{}
		err := d.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		if len(o.Object) > 0 {
			list = append(list, o)
		}
	}
}

// of is the client for objects like o.
func (c *cluster) of(o *unstructured.Unstructured, namespace string) (dynamic.ResourceInterface, error) {
	gvk := o.GroupVersionKind()
	m, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		// The kind may be served soon: the next call has to ask the server again.
		c.mapper.Reset()
		return nil, err
	}
	if m.Scope.Name() == "root" {
		return c.objects.Resource(m.Resource), nil
	}
	if o.GetNamespace() != "" {
		namespace = o.GetNamespace()
	}
	return c.objects.Resource(m.Resource).Namespace(namespace), nil
}

// accept has the API server check an object in a dry run: created, as Helm 3 does,
// and applied, as Helm 4 does. Unknown and repeated fields are errors, and so are
// warnings.
func (c *cluster) accept(ctx context.Context, o *unstructured.Unstructured, namespace string) error {
	name := o.GetKind() + " " + o.GetName()
	client, err := c.of(o, namespace)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.warnings.take()
	dry := []string{metav1.DryRunAll}
	_, err = client.Create(ctx, o, metav1.CreateOptions{DryRun: dry, FieldValidation: metav1.FieldValidationStrict})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create %s: %w", name, err)
	}
	b, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	force := true
	if _, err := client.Patch(ctx, o.GetName(), types.ApplyPatchType, b,
		metav1.PatchOptions{
			DryRun:          dry,
			FieldValidation: metav1.FieldValidationStrict,
			FieldManager:    "kubetest",
			Force:           &force,
		}); err != nil {
		return fmt.Errorf("apply %s: %w", name, err)
	}
	// Servers before 1.34 have no other name for it.
	old := func(w string) bool { return strings.Contains(w, `"PreferClose" is deprecated`) }
	if list := slices.DeleteFunc(c.warnings.take(), old); len(list) > 0 {
		return fmt.Errorf("%s: the API server warns: %s", name, strings.Join(list, "; "))
	}
	return nil
}

// create creates the objects of a file of testdata.
func (c *cluster) create(ctx context.Context, file, namespace string) error {
	b, err := os.ReadFile(filepath.Join(c.s.root, "chaos/kube/testdata", file))
	if err != nil {
		return err
	}
	list, err := decode(string(b))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for _, o := range list {
		client, err := c.of(o, namespace)
		if err != nil {
			return err
		}
		if _, err := client.Create(ctx, o,
			metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
			return fmt.Errorf("%s: %s %s: %w", file, o.GetKind(), o.GetName(), err)
		}
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
