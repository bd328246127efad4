package charttest

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
)

var update = flag.Bool("update", false, "write testdata; read the diff before you commit it")

// bundled are the values with which the chart brings its own etcd.
const bundled = "etcd: {endpoints: [], bundled: {enabled: true}}"

// changes are values that change what is rendered. testdata has a diff for each, by
// name, against what the minimal values give, or, if the chart brings its own etcd in
// another way, against what bundled gives.
var changes = []struct{ name, values string }{
	{"annotations", "annotations: {a: b}"},
	{"affinity", "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: k, operator: Exists}]}]}}}"},
	{"agent", "agent: {enabled: true, hostPath: /var/run/ids, socketMode: '0660', maxAge: 250ms, extraArgs: [--max-wait=1s], resources: {limits: {memory: 1Gi}}, nodeSelector: {a: b}, tolerations: [{operator: Exists}]}"},
	{"agent-secure", "{agent: {enabled: true, token: {existingSecret: t, key: k}}, auth: {existingSecret: s}, tls: {existingSecret: c}, test: {enabled: false}}"},
	{"auth", "{auth: {existingSecret: t, key: k, allowPlaintext: true}, test: {token: {existingSecret: one, key: two}}}"},
	{"auth-admin", "{auth: {existingSecret: t, key: k, allowPlaintext: true, openAdmin: loopback}, test: {enabled: false}}"},
	{"autoscaling", "autoscaling: {enabled: true, minReplicas: 4, maxReplicas: 7, targetCPUUtilizationPercentage: 50}"},
	{"bundled", bundled},
	{"bundled-image", "{image: {registry: r, repository: p, tag: t, pullPolicy: Always}, etcd: {endpoints: [], bundled: {enabled: true, members: 1, resources: {requests: {cpu: 2}}}}}"},
	{"bundled-memory", "etcd: {endpoints: [], bundled: {enabled: true, members: 1, persistence: {enabled: false}}}"},
	{"bundled-volume", "etcd: {endpoints: [], bundled: {enabled: true, members: 1, persistence: {size: 9Gi, storageClass: fast}}}"},
	{"bundled-cert-manager", "etcd: {endpoints: [], bundled: {enabled: true, certManager: {enabled: true, duration: 24h, renewBefore: 8h}}}"},
	{"bundled-cert-manager-issuer", "etcd: {endpoints: [], bundled: {enabled: true, certManager: {enabled: true, issuerRef: {name: i, kind: ClusterIssuer}}}}"},
	{"bundled-five", "etcd: {endpoints: [], bundled: {enabled: true, members: 5, antiAffinity: required, quota: 500M, podAnnotations: {a: b}, defragmentEvery: 0s, renewal: {schedule: '0 0 * * 0'}}}"},
	{"bundled-monitor", "{etcd: {endpoints: [], bundled: {enabled: true}}, monitoring: {serviceMonitor: {enabled: true, labels: {l: m}}}}"},
	{"bundled-no-snapshots", "etcd: {endpoints: [], bundled: {enabled: true, antiAffinity: none, snapshots: {enabled: false}}}"},
	{"bundled-restore", "etcd: {endpoints: [], bundled: {enabled: true, restore: {snapshot: 2026-11-24t06-00-00z.snapshot, token: restored-1}}}"},
	{"bundled-snapshots", "etcd: {endpoints: [], bundled: {enabled: true, snapshots: {every: 30m, keep: 9, size: 2Gi, storageClass: slow, resources: {requests: {cpu: 1}}}}}"},
	{"bundled-snapshots-copied", "etcd: {endpoints: [], bundled: {enabled: true, snapshots: {extraContainers: [{name: c, image: i, volumeMounts: [{name: snapshots, mountPath: /s}, {name: v, mountPath: /v}]}], extraVolumes: [{name: v, secret: {secretName: s}}]}}}"},
	{"bundled-snapshots-claim", "etcd: {endpoints: [], bundled: {enabled: true, snapshots: {existingClaim: mine}}}"},
	{"cert-manager", "tls: {certManager: {enabled: true, issuerRef: {name: i, kind: ClusterIssuer}, duration: 24h, renewBefore: 8h, extraDNSNames: [x.y]}}"},
	{"cluster-domain", "{clusterDomain: c.d, tls: {existingSecret: s}}"},
	{"common-labels", "commonLabels: {team: a}"},
	{"config", "config: {issue: {max-lead: 100ms}, console: {operate: true}}"},
	{"dashboard", "monitoring: {dashboard: {enabled: true, labels: {l: m}, annotations: {folder: f}}}"},
	{"digest", "image: {digest: 'sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'}"},
	{"etcd-auth", "etcd: {auth: {username: u, existingSecret: s, passwordKey: pw}}"},
	{"etcd-tls", `etcd: {endpoints: ["https://e:2379"], tls: {existingSecret: s, caKey: a, certKey: b, keyKey: c}}`},
	{"etcd-tls-no-client", `etcd: {endpoints: ["https://e:2379"], tls: {existingSecret: s, certKey: "", keyKey: ""}}`},
	{"extra", "{extraEnv: {A: 12345678, F: 1.5, T: true, B: {valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}, GOMEMLIMIT: 1GiB}, extraVolumes: [{name: v, emptyDir: {}}], extraVolumeMounts: [{name: v, mountPath: /v}]}"},
	{"extra-containers", "{initContainers: [{name: i, image: j}], extraContainers: [{name: k, image: l}]}"},
	{"extra-objects", "extraObjects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: '{{ .Release.Name }}-x', namespace: p}}]"},
	{"gateway", "gateway: {httpRoute: {enabled: true, parentRefs: [{name: g}], hostnames: [h], annotations: {a: b}}, grpcRoute: {enabled: true, parentRefs: [{name: g}], hostnames: [h], annotations: {a: b}}}"},
	{"gossip-insecure", "gossip: {existingSecret: '', insecure: true}"},
	{"gossip-key", "gossip: {key: other}"},
	{"grace", "shutdown: {drainDelaySeconds: 1, marginSeconds: 4}"},
	{"hosts", "{config: {http: {hosts: [a.example]}}, ingress: {enabled: true, hosts: [b.example, '*.c.example']}, gateway: {httpRoute: {enabled: true, parentRefs: [{name: g}]}}}"},
	{"image", "{image: {registry: r, repository: p, tag: t, pullPolicy: Never}, imagePullSecrets: [{name: s}]}"},
	{"image-global", "global: {imageRegistry: g, imagePullSecrets: [q]}"},
	{"ingress", "ingress: {enabled: true, className: c, hosts: [h], path: /ids, pathType: Exact, annotations: {a: b}, tls: [{secretName: s, hosts: [h]}]}"},
	{"init", "init: {fresh: false, above: '1541815603606036480', reserve: '4-7,9', sids: 4-15, timeoutSeconds: 60, podAnnotations: {a: b}, resources: {limits: {cpu: 1}}}"},
	{"init-disabled", "init: {enabled: false}"},
	{"log", "log: {level: warn, format: text}"},
	{"names", "{nameOverride: nom, namespaceOverride: elsewhere}"},
	{"names-full", "fullnameOverride: other"},
	{"network-policy", "networkPolicy: {enabled: true}"},
	{"network-policy-bundled", "{etcd: {endpoints: [], bundled: {enabled: true}}, networkPolicy: {enabled: true}}"},
	{"network-policy-peers", "networkPolicy: {enabled: true, clients: [{podSelector: {}}], monitoring: [{podSelector: {}}], etcd: [{ipBlock: {cidr: 10.0.0.0/8}}], dns: [{namespaceSelector: {}}], extraIngress: [{ports: [{port: 1}]}], extraEgress: [{ports: [{port: 2}]}]}"},
	{"pdb", "podDisruptionBudget: {maxUnavailable: 2}"},
	{"pdb-disabled", "podDisruptionBudget: {enabled: false}"},
	{"pdb-minimum", "podDisruptionBudget: {minAvailable: 2}"},
	{"pod-monitor", "monitoring: {podMonitor: {enabled: true, labels: {l: m}, interval: 5s, scrapeTimeout: 4s, relabelings: [{action: drop}], metricRelabelings: [{action: keep}]}}"},
	{"pods", "{podAnnotations: {a: b}, podLabels: {c: d}, priorityClassName: high, nodeSelector: {e: f}, tolerations: [{operator: Exists}]}"},
	{"probes", "probes: {startup: {failureThreshold: 5}, liveness: {periodSeconds: 20}, readiness: {timeoutSeconds: 1, initialDelaySeconds: 3}}"},
	{"replicas", "replicaCount: 5"},
	{"resources", "resources: {requests: {cpu: 2}, limits: {memory: 1Gi}}"},
	{"resp", "{resp: {enabled: true}, service: {ports: {resp: 6379}}, networkPolicy: {enabled: true}}"},
	{"rollout", "{minReadySeconds: 3, revisionHistoryLimit: 2, updateStrategy: {type: OnDelete}}"},
	{"rules", "monitoring: {rules: {enabled: true, labels: {l: m}}}"},
	{"security-context", "{podSecurityContext: {runAsUser: 1000}, securityContext: {capabilities: {add: [NET_BIND_SERVICE]}}}"},
	{"service", "service: {type: LoadBalancer, annotations: {a: b}, labels: {c: d}, loadBalancerClass: x, loadBalancerSourceRanges: [10.0.0.0/8], externalTrafficPolicy: Local, trafficDistribution: PreferClose, ipFamilyPolicy: PreferDualStack, grpcAppProtocol: grpc, ports: {grpc: 1, http: 2}}"},
	{"service-account", "serviceAccount: {name: own, annotations: {a: b}}"},
	{"service-account-given", "serviceAccount: {create: false, name: own}"},
	{"service-monitor", "monitoring: {serviceMonitor: {enabled: true, labels: {l: m}, interval: 5s, scrapeTimeout: 4s, relabelings: [{action: drop}], metricRelabelings: [{action: keep}]}}"},
	{"sids", "sids: {range: 3-9, reserve: 1, workers: 28-31}"},
	{"space", "space: {name: sp, root: ro, layout: fleet, epoch: '2025-01-01'}"},
	{"test", "test: {count: 1000000}"},
	{"test-disabled", "test: {enabled: false}"},
	{"tls", "tls: {existingSecret: s, certKey: a, keyKey: b, caKey: c}"},
	{"tls-admin", "{tls: {existingSecret: s, admin: true}, monitoring: {podMonitor: {enabled: true}}}"},
	{"tls-clients", "tls: {existingSecret: s, clientCA: {existingSecret: ca, key: k}}"},
	{"topology", "topologySpreadConstraints: [{topologyKey: rack, maxSkew: 2, whenUnsatisfiable: DoNotSchedule}, {topologyKey: zone, maxSkew: 1, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {a: b}}}]"},
	{"topology-none", "topologySpreadConstraints: []"},
}

func TestEffectOfValues(t *testing.T) {
	base := texts(mustRender(t, with(t, ""), install))
	withEtcd := texts(mustRender(t, with(t, bundled), install))
	used := map[string]bool{}
	for _, tt := range changes {
		t.Run(tt.name, func(t *testing.T) {
			name := tt.name + ".diff"
			used[name] = true
			before := base
			if tt.name != "bundled" && strings.Contains(tt.values, "bundled: {enabled: true") {
				before = withEtcd
			}
			rendered := texts(mustRender(t, with(t, tt.values), install))
			if diff := compare(rendered, texts(mustRender(t, asSet(with(t, tt.values)), install))); diff != "" {
				t.Errorf("values of --set give something else:\n%s", diff)
			}
			got := compare(before, rendered)
			if got == "" {
				t.Fatal("nothing changes")
			}
			got = "# " + tt.values + "\n" + got
			golden(t, name, got)
		})
	}
	var all strings.Builder
	for _, id := range slices.Sorted(maps.Keys(base)) {
		fmt.Fprintf(&all, "---\n%s\n", base[id])
	}
	golden(t, "base.yaml", all.String())
	used["base.yaml"] = true
	dir, err := os.ReadDir("testdata")
	fatal.If(t, err)
	for _, f := range dir {
		if !used[f.Name()] {
			t.Errorf("testdata/%s belongs to no case: remove it", f.Name())
		}
	}
}

// A value that no case changes might have no effect.
func TestEveryValueIsChanged(t *testing.T) {
	changed := map[string]bool{}
	var note func(path string, v any)
	note = func(path string, v any) {
		changed[path] = true
		if m, ok := v.(map[string]any); ok {
			for name, sub := range m {
				note(path+"."+name, sub)
			}
		}
	}
	for _, tt := range changes {
		note("", read(t, tt.values))
	}
	note("", read(t, minimal))
	var walk func(path string, v map[string]any)
	walk = func(path string, v map[string]any) {
		for name, sub := range v {
			at := path + "." + name
			if m, ok := sub.(map[string]any); ok && len(m) > 0 && changed[at] && !opaque(at) {
				walk(at, m)
			} else if !changed[at] {
				t.Errorf("no case changes %s", at)
			}
		}
	}
	values, _ := defaultValues(t)
	walk("", values)
}

// opaque reports whether a value is passed on as a whole.
func opaque(path string) bool {
	return regexp.MustCompile(`(?i)resources$|securityContext$|^\.(config|updateStrategy)$|^\.probes\.|labels$|issuerRef$`).MatchString(path)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		fatal.If(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	fatal.If(t, err)
	if got != string(want) {
		t.Errorf("%s differs from what is rendered; if the change is intended, run go test -update\n%s", path, difference(string(want), got))
	}
}

var varying = regexp.MustCompile(`(checksum/config: |--fresh-until=)\S+`)

// files matches content from deploy/monitoring, to the end of the object.
var files = regexp.MustCompile(`(?s)(\n  groups:|\n  allocator.json: \|-)\s.*$`)

// usual replaces the names that changes give to objects by the one that they have without.
var usual = strings.NewReplacer("/ids-nom", "/ids-allocator", "/other", "/ids-allocator")

// texts returns the rendered objects by kind and usual name, without comments, varying
// fields and content of deploy/monitoring.
func texts(r rendered) map[string]string {
	out := map[string]string{}
	for _, o := range r.all() {
		text := regexp.MustCompile(`(?m)^ *#.*\n`).ReplaceAllString(o.text, "")
		text = files.ReplaceAllString(text, "$1\n…")
		out[usual.Replace(o.id())] = strings.TrimSpace(varying.ReplaceAllString(text, "$1…"))
	}
	return out
}

// compare returns the diff of two releases, object by object.
func compare(a, b map[string]string) string {
	both := maps.Clone(a)
	maps.Copy(both, b)
	var out strings.Builder
	for _, id := range slices.Sorted(maps.Keys(both)) {
		switch old, is := a[id], b[id]; {
		case old == is:
		case is == "":
			fmt.Fprintf(&out, "removed %s\n", id)
		case old == "":
			fmt.Fprintf(&out, "added %s\n+%s\n", id, strings.ReplaceAll(is, "\n", "\n+"))
		default:
			fmt.Fprintf(&out, "changed %s\n%s", id, difference(old, is))
		}
	}
	return out.String()
}

// difference returns the lines that only a or only b has, by the longest common
// subsequence: a and b are short.
func difference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	common := make([][]int, len(x)+1)
	for i := range common {
		common[i] = make([]int, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out strings.Builder
	for i, j := 0, 0; i < len(x) || j < len(y); {
		switch {
		case i < len(x) && j < len(y) && x[i] == y[j]:
			i, j = i+1, j+1
		case j == len(y) || i < len(x) && common[i+1][j] >= common[i][j+1]:
			fmt.Fprintf(&out, "-%s\n", x[i])
			i++
		default:
			fmt.Fprintf(&out, "+%s\n", y[j])
			j++
		}
	}
	return out.String()
}
