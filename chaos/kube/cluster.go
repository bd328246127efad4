package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Addresses of the cluster, inside its network namespace. Without a namespace only
// the API server's loopback port is used.
const (
	hostIP     = "192.0.2.1" // the machine's address; reserved for documentation
	peerIP     = "192.0.2.2" // the other end of its link
	serviceNet = "10.96.0.0/16"
	apiService = "10.96.0.1"
	podNet     = "10.244.0.0/24"
)

// A cluster is a running control plane.
type cluster struct {
	s      settings
	ps     *processes
	ca     *authority
	server string // URL of the API server

	kube kubernetes.Interface
}

// startCluster starts etcd, the API server, the controllers and the scheduler, and
// waits until they answer. The caller has to stop the cluster, also after an error.
func startCluster(ctx context.Context, s settings, r *report) (*cluster, error) {
	r.part("control plane")
	c := &cluster{s: s, ps: &processes{dir: s.dir}}
	ok := r.run(ctx, "etcd, kube-apiserver, kube-controller-manager and kube-scheduler start and are healthy",
		3*time.Minute, c.start)
	if !ok {
		return c, errors.New("there is no control plane to test with")
	}
	v, err := c.kube.Discovery().ServerVersion()
	if err != nil {
		return c, err
	}
	fmt.Fprintf(r.out, "           Kubernetes %s on etcd, in %s\n", v.GitVersion, c.s.dir)
	return c, nil
}

func (c *cluster) stop() { c.ps.stop() }

func (c *cluster) start(ctx context.Context) error {
	// Pods reach the API server by its Service, where there are pods: the Job that makes
	// certificates does.
	bind, reconciler := "127.0.0.1", "none"
	if c.s.namespaces {
		bind, reconciler = "0.0.0.0", "lease"
	}
	ports, err := freePorts(6)
	if err != nil {
		return err
	}
	etcd, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	c.server = "https://127.0.0.1:" + ports[2]
	if c.ca, err = newAuthority(c.s.dir); err != nil {
		return err
	}
	err = errors.Join(
		c.ca.issue("server", "kube-apiserver", nil,
			[]string{"127.0.0.1", hostIP, apiService, "localhost", "kubernetes.default.svc"}),
		c.ca.issue("calls", "kube-apiserver", []string{"system:masters"}, nil),
		c.ca.accountKey(),
		c.ca.kubeconfig("admin", c.server, "admin", "system:masters"),
		c.ca.kubeconfig("controllers", c.server, "system:kube-controller-manager"),
		c.ca.kubeconfig("scheduler", c.server, "system:kube-scheduler"),
		c.ca.kubeconfig("proxy", c.server, "system:kube-proxy"),
		c.ca.kubeconfig("kubelet", c.server, "system:node:"+realNode, "system:nodes"),
	)
	if err != nil {
		return err
	}
	bin := func(name string) string { return filepath.Join(c.s.bin, name) }
	if _, err := c.ps.start("etcd", bin("etcd"), "--name=kube", "--data-dir="+c.ca.path("etcd"),
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=kube="+peer,
		// The data is removed after the run.
		"--unsafe-no-fsync"); err != nil {
		return err
	}
	if _, err := c.ps.start("kube-apiserver", bin("kube-apiserver"), "--etcd-servers="+etcd,
		"--bind-address="+bind, "--secure-port="+ports[2], "--advertise-address="+hostIP,
		"--endpoint-reconciler-type="+reconciler,
		"--tls-cert-file="+c.ca.path("server.crt"), "--tls-private-key-file="+c.ca.path("server.key"),
		"--client-ca-file="+c.ca.path("ca.crt"),
		"--kubelet-client-certificate="+c.ca.path("calls.crt"), "--kubelet-client-key="+c.ca.path("calls.key"),
		"--kubelet-certificate-authority="+c.ca.path("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+
			c.ca.path("accounts.key"),
		"--service-account-signing-key-file="+c.ca.path("accounts.key"), "--service-cluster-ip-range="+serviceNet,
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--profiling=false"); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.ca.path("admin.kubeconfig"))
	if err != nil {
		return err
	}
	config.QPS, config.Burst, config.Timeout = 200, 400, 30*time.Second
	if c.kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if err := until(ctx, 2*time.Minute, func(ctx context.Context) error {
		if err := c.ps.ended(); err != nil {
			return err
		}
		_, err := c.kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err
	}); err != nil {
		return fmt.Errorf("API server: %w", err)
	}
	if _, err := c.ps.start("kube-controller-manager", bin("kube-controller-manager"),
		"--kubeconfig="+c.ca.path("controllers.kubeconfig"),
		"--authentication-kubeconfig="+c.ca.path("controllers.kubeconfig"),
		"--authorization-kubeconfig="+c.ca.path("controllers.kubeconfig"),
		"--bind-address=127.0.0.1", "--secure-port="+ports[3],
		"--leader-elect=false", "--use-service-account-credentials=true",
		"--service-account-private-key-file="+c.ca.path("accounts.key"), "--root-ca-file="+c.ca.path("ca.crt"),
		"--cert-dir="+c.ca.path("controllers"), "--profiling=false"); err != nil {
		return err
	}
	if _, err := c.ps.start("kube-scheduler", bin("kube-scheduler"), "--kubeconfig="+c.ca.path("scheduler.kubeconfig"),
		"--authentication-kubeconfig="+c.ca.path("scheduler.kubeconfig"),
		"--authorization-kubeconfig="+c.ca.path("scheduler.kubeconfig"),
		"--bind-address=127.0.0.1", "--secure-port="+ports[4],
		"--leader-elect=false", "--cert-dir="+c.ca.path("scheduler"), "--profiling=false"); err != nil {
		return err
	}
	plain, err := rest.HTTPClientFor(&rest.Config{
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		Timeout:         5 * time.Second,
	})
	if err != nil {
		return err
	}
	for name, port := range map[string]string{"controller manager": ports[3], "scheduler": ports[4]} {
		if err := until(ctx, time.Minute, func(ctx context.Context) error {
			if err := c.ps.ended(); err != nil {
				return err
			}
			// Their certificates are self-signed; this only checks that they run.
			return ask(ctx, plain, "https://127.0.0.1:"+port+"/healthz")
		}); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	// The controllers create it; without it no pod is admitted.
	return until(ctx, time.Minute, func(ctx context.Context) error {
		_, err := c.kube.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// ask returns nil if a URL answers 200.
func ask(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}

// freePorts returns n free ports of the loopback interface.
func freePorts(n int) ([]string, error) {
	var list []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() // all are held until all are found, so that they differ
		list = append(list, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return list, nil
}

// write writes a file into the directory of the run and returns its path.
func (c *cluster) write(name, text string) (string, error) {
	path := filepath.Join(c.s.dir, name)
	return path, os.WriteFile(path, []byte(text), 0o644)
}
