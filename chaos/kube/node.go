package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	realNode   = "machine"
	pauseImage = "kubetest-pause:1"
	containers = "/run/containerd/containerd.sock"
)

// pluginDirs are where Debian and others keep the network plugins.
var pluginDirs = []string{"/usr/lib/cni", "/opt/cni/bin"}

// canRun returns the directory of the network plugins, or an error that names what
// is missing to run pods here.
func canRun(s settings) (plugins string, err error) {
	if !s.namespaces {
		return "", skip("needs root, to create namespaces and run containers")
	}
	var missing []string
	for _, p := range []string{"containerd", "containerd-shim-runc-v2", "ctr", "runc", "iptables"} {
		if _, err := exec.LookPath(p); err != nil {
			missing = append(missing, p)
		}
	}
	for _, d := range pluginDirs {
		if _, err := os.Stat(filepath.Join(d, "ptp")); err == nil {
			plugins = d
			break
		}
	}
	if plugins == "" {
		missing = append(missing, "network plugins")
	}
	if len(missing) > 0 {
		return "", skip("not installed: " + strings.Join(missing, ", ") +
			" (Debian: apt-get install --no-install-recommends containerd runc containernetworking-plugins iptables)")
	}
	return plugins, nil
}

// startNode starts containerd with the images, the kubelet, kube-proxy and DNS, and
// waits until the machine is ready.
func (c *cluster) startNode(ctx context.Context, plugins string) error {
	if err := makeGroups(c.s.cgroup); err != nil {
		return err
	}
	if err := c.startContainerd(ctx, plugins); err != nil {
		return err
	}
	ctr := func(args ...string) error {
		_, err := output(ctx, "ctr", append([]string{"--address", containers, "-n", "k8s.io", "images"}, args...)...)
		return err
	}
	for _, tar := range c.s.images() {
		if err := ctr("import", tar); err != nil {
			return err
		}
	}
	if err := c.ca.issue("kubelet-server", realNode, nil, []string{hostIP}); err != nil {
		return err
	}
	config, err := c.write("kubelet.yaml", fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[1]s
readOnlyPort: 0
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[2]s}}
authorization: {mode: Webhook}
tlsCertFile: %[3]s
tlsPrivateKeyFile: %[4]s
containerRuntimeEndpoint: unix://%[5]s
cgroupDriver: cgroupfs
cgroupRoot: /%[6]s
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: [none]
clusterDNS: [%[1]s]
clusterDomain: cluster.local
resolvConf: ""
podLogsDir: /var/log/pods
volumePluginDir: /run/kubelet-plugins
# A full disk of the test machine should not evict pods.
evictionHard:
  memory.available: 10Mi
  nodefs.available: 100Mi
  imagefs.available: 100Mi
  nodefs.inodesFree: "1%%"
  imagefs.inodesFree: "1%%"
imageGCHighThresholdPercent: 100
serializeImagePulls: false
`, hostIP, c.ca.path("ca.crt"), c.ca.path("kubelet-server.crt"), c.ca.path("kubelet-server.key"),
		containers, c.s.cgroup))
	if err != nil {
		return err
	}
	if _, err := c.ps.start("kubelet", filepath.Join(c.s.bin, "kubelet"), "--config="+config,
		"--kubeconfig="+c.ca.path("kubelet.kubeconfig"),
		"--root-dir=/run/kubelet", "--hostname-override="+realNode, "--node-ip="+hostIP,
		"--cert-dir=/run/kubelet-certs",
		"--node-labels=topology.kubernetes.io/zone=zone-0"); err != nil {
		return err
	}
	config, err = c.write("kube-proxy.yaml", fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: %s
hostnameOverride: %s
clientConnection: {kubeconfig: %s}
clusterCIDR: %s
mode: iptables
# These cannot be set in a network namespace.
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, hostIP, realNode, c.ca.path("proxy.kubeconfig"), podNet))
	if err != nil {
		return err
	}
	if _, err := c.ps.start("kube-proxy", filepath.Join(c.s.bin, "kube-proxy"), "--config="+config); err != nil {
		return err
	}
	// Certificates authorize the calls of the API server to the kubelet, of kube-proxy
	// and of nodes: kube-proxy has the role of its name.
	conn, err := net.ListenPacket("udp4", hostIP+":53")
	if err != nil {
		return err
	}
	go (&names{kube: c.kube, conn: conn}).serve() // until the process ends
	return until(ctx, 2*time.Minute, func(ctx context.Context) error {
		if err := c.ps.ended(); err != nil {
			return err
		}
		n, err := c.kube.CoreV1().Nodes().Get(ctx, realNode, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, cond := range n.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status != corev1.ConditionTrue {
				return fmt.Errorf("the machine is not ready: %s", cond.Message)
			}
		}
		if len(n.Spec.Taints) > 0 {
			return fmt.Errorf("the machine is tainted: %v", n.Spec.Taints)
		}
		return nil
	})
}

func (c *cluster) startContainerd(ctx context.Context, plugins string) error {
	conf := c.ca.path("cni")
	if err := os.MkdirAll(conf, 0o755); err != nil {
		return err
	}
	// A link for each pod, without a bridge, whose traffic kube-proxy would not see.
	if _, err := c.write("cni/10-kubetest.conflist",
		fmt.Sprintf(`{"cniVersion": "0.4.0", "name": "kubetest", "plugins": [
	{"type": "ptp", "ipMasq": false, "ipam": {"type": "host-local", "subnet": %q, "dataDir": "/run/cni",
		"routes": [{"dst": "0.0.0.0/0"}]}}
]}
`, podNet)); err != nil {
		return err
	}
	_, noArmor := os.Stat("/sys/kernel/security/apparmor")
	config, err := c.write("containerd.toml", fmt.Sprintf(`version = 2
root = %q
state = "/run/containerd"
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/%s"
  disable_apparmor = %t
  # Not lowered where root may not.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
`, c.ca.path("containerd"), containers, pauseImage, noArmor != nil, plugins, conf))
	if err != nil {
		return err
	}
	if _, err := c.ps.start("containerd", "containerd", "--config", config); err != nil {
		return err
	}
	return until(ctx, time.Minute, func(ctx context.Context) error {
		_, err := output(ctx, "ctr", "--address", containers, "version")
		return errors.Join(err, c.ps.ended())
	})
}
