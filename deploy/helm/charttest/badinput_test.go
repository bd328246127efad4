package charttest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flakelease/allocator/chaos/fatal"
	"github.com/flakelease/allocator/flake"
	"github.com/flakelease/allocator/internal/config"
)

// The chart knows how many sids a layout has, built in or not.
func TestSIDsOfLayouts(t *testing.T) {
	for _, name := range append(flake.Layouts(), "41/12/10,epoch=2020-01-01", "40/14/9,order=time-seq-sid,unit=10ms") {
		f, err := flake.ParseFormat(name)
		fatal.If(t, err)
		if f.Layout.SIDBits() == 0 { // for tools, not for spaces
			continue
		}
		last := f.Layout.Holders() - 1
		values := fmt.Sprintf("{space: {layout: '%s'}, sids: {range: 0-%d}}", name, last)
		if _, err := render(t, with(t, values), install); err != nil {
			t.Errorf("%s: the range of all its sids: %v", name, err)
		}
		values = fmt.Sprintf("{space: {layout: '%s'}, sids: {range: 1-%d}}", name, last+1)
		if _, err := render(t, with(t, values), install); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("has the sids 0 to %d", last)) {
			t.Errorf("%s: a sid too many: %v", name, err)
		}
	}
}

// Each combination of values that cannot work makes rendering fail with a message
// that states what to change.
func TestBadInput(t *testing.T) {
	const tls = "existingSecret: api-tls"
	for _, tt := range []struct {
		name, values, want string
	}{
		{"too many nodes", "replicaCount: 31", "replicaCount is 31: there are 32 sids, of which sids.reserve keeps 2 free; set it to at most 30"},
		{"agents without a token", "{agent: {enabled: true}, auth: {existingSecret: t, allowPlaintext: true}, test: {enabled: false}}", "agent.token.existingSecret is empty"},
		{"agents without a certificate", "{agent: {enabled: true}, tls: {existingSecret: s, clientCA: {existingSecret: c}}}", "run the agent as a sidecar"},
		{"a socket nobody can use", "agent: {socketMode: '0000'}", "agent/socketMode"},
		{"too many for a range", "{replicaCount: 4, sids: {range: 4-8}}", "there are 5 sids, of which sids.reserve keeps 2 free; set it to at most 3"},
		{"too many for fleet", "{replicaCount: 1023, space: {layout: fleet}}", "set it to at most 1022"},
		{"over any layout", "replicaCount: 1025", "replicaCount"},
		{"no nodes", "replicaCount: 0", "replicaCount"},
		{"too many beside workers", "{replicaCount: 15, sids: {workers: 16-31}}", "there are 16 sids, of which sids.reserve keeps 2 free; set it to at most 14"},
		{"too many of a range beside workers", "{replicaCount: 7, sids: {range: 8-23, workers: 16-31}}", "there are 8 sids, of which sids.reserve keeps 2 free; set it to at most 6"},
		{"reserve takes all", "sids: {range: 0-1}", "sids.reserve is 2: of 2 sids, none is left"},
		{"reserve over the pool", "sids: {reserve: 40}", "sids.reserve is 40: of 32 sids"},
		{"range with last before first", "sids: {range: 9-3}", "the last sid is lower than the first"},
		{"range over the pool", "sids: {range: 0-32}", "layout scalable has the sids 0 to 31"},
		{"more nodes than sids of the space", "{init: {sids: 4-5}, replicaCount: 3}", "sids"},
		{"sids as a number", "init: {sids: 7}", "init/sids"},
		{"an ID as a number", "init: {above: 1541815603606036480}", "init/above"},
		{"range as a word", "sids: {range: all}", "sids/range"},
		{"autoscaler over the pool", "autoscaling: {enabled: true, maxReplicas: 31}", "autoscaling.maxReplicas is 31"},
		{"autoscaler with minimum over maximum", "autoscaling: {enabled: true, minReplicas: 9, maxReplicas: 5}", "greater than autoscaling.maxReplicas, 5"},
		{"autoscaler without a request", "{autoscaling: {enabled: true}, resources: {requests: {cpu: null}}}", "set resources.requests.cpu"},
		{"an image that nobody published", "image: {registry: ''}", "image.registry is empty: no image is published yet"},
		{"no etcd", "etcd: {endpoints: []}", "etcd.endpoints is empty: nodes need an etcd"},
		{"two etcds", "etcd: {bundled: {enabled: true}}", "nodes on two different etcds would issue the same IDs; remove one"},
		{"bundled etcd with TLS", "etcd: {endpoints: [], bundled: {enabled: true}, tls: {existingSecret: x}}", "the bundled etcd has certificates and users of its own"},
		{"four members", "etcd: {endpoints: [], bundled: {enabled: true, members: 4}}", "etcd/bundled/members"},
		{"members without volumes", "etcd: {endpoints: [], bundled: {enabled: true, persistence: {enabled: false}}}", "etcd.bundled.persistence.enabled is false with 3 members"},
		{"a quota that etcd is not made for", "etcd: {endpoints: [], bundled: {enabled: true, quota: 9Gi, persistence: {size: 99Gi}}}", "etcd.bundled.quota is 9Gi"},
		{"a volume without room", "etcd: {endpoints: [], bundled: {enabled: true, quota: 2Gi}}", "etcd.bundled.persistence.size is 4Gi with etcd.bundled.quota 2Gi"},
		{"a restore under the old token", "etcd: {endpoints: [], bundled: {enabled: true, restore: {snapshot: a.snapshot}}}", "etcd.bundled.restore.snapshot is set with restore.token initial"},
		{"a token that is a path", "etcd: {endpoints: [], bundled: {enabled: true, restore: {token: ../x}}}", "etcd/bundled/restore/token"},
		{"copies of no snapshots", "etcd: {endpoints: [], bundled: {enabled: true, snapshots: {enabled: false, extraContainers: [{name: c, image: i}]}}}", "etcd.bundled.snapshots.extraContainers is set with snapshots.enabled=false"},
		{"the volume of snapshots", "etcd: {endpoints: [], bundled: {enabled: true, snapshots: {extraVolumes: [{name: root, emptyDir: {}}]}}}", "/etcd/bundled/snapshots/extraVolumes/0/name"},
		{"snapshots into a claim, and none", "etcd: {endpoints: [], bundled: {enabled: true, snapshots: {enabled: false, existingClaim: c}}}", "etcd.bundled.snapshots.existingClaim is set with snapshots.enabled=false"},
		{"an issuer of etcd that is not used", "etcd: {endpoints: [], bundled: {enabled: true, certManager: {issuerRef: {name: i}}}}", "etcd.bundled.certManager.issuerRef.name is set without"},
		{"user without a password", "etcd: {auth: {username: u}}", "only one of etcd.auth.username and etcd.auth.existingSecret is set"},
		{"password without a user", "etcd: {auth: {existingSecret: s}}", "only one of etcd.auth.username and etcd.auth.existingSecret is set"},
		{"https without an authority", `etcd: {endpoints: ["https://e:2379"]}`, "set it to a Secret with etcd's CA certificate"},
		{"authority without https", "etcd: {tls: {existingSecret: s}}", "change it to https, or remove the Secret"},
		{"half a client certificate", `etcd: {endpoints: ["https://e:2379"], tls: {existingSecret: s, keyKey: ""}}`, "only one of etcd.tls.certKey and etcd.tls.keyKey is set"},
		{"endpoint without a scheme", `etcd: {endpoints: ["e:2379"]}`, "etcd/endpoints/0"},
		{"endpoint with a password", `etcd: {endpoints: ["http://u:p@e:2379"]}`, "etcd/endpoints/0"},
		{"gossip without a key", `gossip: {existingSecret: ""}`, "`allocator gossip keygen`"},
		{"gossip with a key and insecure", "gossip: {insecure: true}", "gossip either has a key or has none; remove one"},
		{"no issuer", "tls: {certManager: {enabled: true}}", "tls.certManager.issuerRef.name is empty"},
		{"an issuer without cert-manager", "tls: {certManager: {issuerRef: {name: x}}}", "no certificate would be requested"},
		{"client certificates without TLS", "tls: {clientCA: {existingSecret: ca}}", "nodes need a certificate to request those of clients"},
		{"admin TLS without TLS", "tls: {admin: true}", "tls.admin is true without TLS"},
		{"probes without a certificate", "tls: {" + tls + ", admin: true, clientCA: {existingSecret: ca}}", "pods would never be ready"},
		{"tokens without TLS", "{auth: {existingSecret: t}, test: {enabled: false}}", "tokens would be sent unencrypted"},
		{"tokens, but none for the test", "{tls: {" + tls + "}, auth: {existingSecret: t}}", "test.token.existingSecret is empty"},
		{"a token for the test only", "test: {token: {existingSecret: t}}", "nodes do not use tokens"},
		{"ingress without hosts", "ingress: {enabled: true}", "ingress.hosts is empty"},
		{"route without a gateway", "gateway: {httpRoute: {enabled: true}}", "gateway.httpRoute.parentRefs is empty"},
		{"gRPC route without a gateway", "gateway: {grpcRoute: {enabled: true}}", "gateway.grpcRoute.parentRefs is empty"},
		{"one port used twice", "service: {ports: {grpc: 8080}}", "each port needs its own number"},
		{"a load balancer's class without a load balancer", "service: {loadBalancerClass: x}", "set service.type=LoadBalancer, or remove"},
		{"a policy without external traffic", "service: {externalTrafficPolicy: Local}", "it has no external traffic"},
		{"both monitors", "monitoring: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}", "every series would be scraped twice; disable one"},
		{"a budget of 0 unavailable", "podDisruptionBudget: {maxUnavailable: 0}", "set it to 1"},
		{"a budget of 0 % unavailable", `podDisruptionBudget: {maxUnavailable: "0%"}`, "set it to 1"},
		{"a budget of all available", "podDisruptionBudget: {minAvailable: 3}", "no machine with a node could be drained"},
		{"a budget of 100 % available", `podDisruptionBudget: {minAvailable: "100%"}`, "no machine with a node could be drained"},
		{"the chart's variable", "extraEnv: {POD_IP: x}", "extraEnv.POD_IP is set: the chart sets this variable itself"},
		{"a misspelled setting as a variable", "extraEnv: {ALLOCATOR_LEASE_WINDW: 1m}", "settings of nodes are values, which are checked before a pod starts"},
		{"a setting as an argument", "extraArgs: [--lease.window=1s]", "set them in config (config.lease.window for --lease.window)"},
		{"a flag that agents do not have", "agent: {extraArgs: [--max-wat, 1s]}", `agent.extraArgs has "--max-wat": that is no flag of agents`},
		{"a value after none", "agent: {extraArgs: [--log.level=debug, debug]}", `agent.extraArgs has "debug"`},
		{"an unknown resource", "resources: {limits: {memroy: 1Gi}}", "additional properties 'memroy' not allowed"},
		{"an unknown resource of etcd", "etcd: {bundled: {resources: {request: {cpu: 1}}}}", "additional properties 'request' not allowed"},
		{"a quantity that is none", "resources: {limits: {memory: 1GB}}", "resources/limits/memory"},
		{"less memory than a node has", "resources: {requests: {memory: 20Mi}, limits: {memory: 20Mi}}", "resources.limits.memory is 20Mi: the process needs most of that before it has clients"},
		{"less memory than a member has", "etcd: {endpoints: [], bundled: {enabled: true, resources: {requests: {memory: 64Mi}, limits: {memory: 64M}}}}", "etcd.bundled.resources.limits.memory is 64M: the process needs"},
		{"a limit below the request", "resources: {limits: {cpu: 50m}}", "resources.limits.cpu is 50m: it is less than resources.requests.cpu, 100m, and Kubernetes refuses such pods"},
		{"a limit of the Job below its request", "init: {resources: {limits: {memory: 1000000}}}", "init.resources.limits.memory is 1e+06: it is less than init.resources.requests.memory, 32Mi"},
		{"an update strategy of Deployments", "updateStrategy: {type: Recreate}", "updateStrategy/type"},
		{"a budget of both kinds", "podDisruptionBudget: {minAvailable: 1, maxUnavailable: 0}", "a budget has one of them; remove one"},
		{"root where it may not be", "podSecurityContext: {runAsUser: 0}", "runAsUser is 0 with runAsNonRoot: no pod would start"},
		{"root of the containers", "securityContext: {runAsUser: 0}", "runAsUser is 0 with runAsNonRoot: no pod would start"},
		{"a month that does not exist", "space: {epoch: 2024-13-01}", "the epoch is 2024-13-01: there is no such time"},
		{"an epoch to come", "space: {epoch: '2131-01-01T00:00:00Z'}", "the epoch is 2131-01-01T00:00:00Z: it has not begun"},
		{"an epoch of a layout to come", "space: {layout: 'twitter,epoch=2131-01-01'}", "the epoch is 2131-01-01: it has not begun"},
		{"the chart's label", "commonLabels: {app.kubernetes.io/name: x}", "the chart sets this label itself; remove it"},
		{"one label in two places", "{commonLabels: {team: a}, podLabels: {team: b}}", "is in commonLabels and in podLabels"},
		{"the chart's volume", "extraVolumes: [{name: tls, emptyDir: {}}]", "extraVolumes has a volume tls"},
		{"a file of events without a volume", "{config: {events: {file: /e/f}}, extraVolumeMounts: [{name: x, mountPath: /e/fg}]}", "config.events.file is /e/f: no volume is mounted there"},
		{"a setting of etcd inside", "config: {etcd: {snapshot-command: x}}", "additional properties 'etcd' not allowed"},
		{"unknown value", "replicas: 3", "additional properties 'replicas' not allowed"},
		{"unknown nested value", "etcd: {endpoint: x}", "additional properties 'endpoint' not allowed"},
		{"unknown setting", "config: {lease: {windows: 1m}}", "additional properties 'windows' not allowed"},
		{"a setting that has its own value", "config: {drain: {delay: 1s}}", "additional properties 'drain' not allowed"},
		{"a number for a duration", "config: {lease: {window: 30}}", "config/lease/window"},
		{"a key instead of a Secret's name", `gossip: {existingSecret: "b64+key/with=="}`, "gossip/existingSecret"},
		{"a margin of hours", "shutdown: {marginSeconds: 4000}", "shutdown/marginSeconds"},
		{"an unknown layout", "space: {layout: standalone}", "space/layout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for from, values := range map[string]map[string]any{"a file": with(t, tt.values), "--set": asSet(with(t, tt.values))} {
				_, err := render(t, values, install)
				if err == nil {
					t.Errorf("rendering succeeds with values of %s", from)
				} else if text := strings.ReplaceAll(strings.Join(strings.Fields(err.Error()), " "), "1000000", "1e+06"); !strings.Contains(text, tt.want) {
					t.Errorf("values of %s: %v\nwant %q", from, err, tt.want)
				}
			}
		})
	}
}

// All errors are reported at once.
func TestBadInputTogether(t *testing.T) {
	_, err := render(t, read(t, "replicaCount: 500"), install)
	if err == nil {
		t.Fatal("rendering succeeds")
	}
	for _, want := range []string{"replicaCount is 500", "etcd.endpoints is empty", "gossip.existingSecret is empty", "image.registry is empty"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\nwant %q", err, want)
		}
	}
}

// An image needs a registry, unless something else says which one it is.
func TestImagesWithoutRegistry(t *testing.T) {
	for values, want := range map[string]string{
		"image: {registry: '', repository: allocator, tag: latest}":               "allocator:latest",
		"image: {registry: '', digest: 'sha256:" + strings.Repeat("a", 64) + "'}": "flakelease/allocator@sha256:" + strings.Repeat("a", 64),
		"{image: {registry: ''}, global: {imageRegistry: r.example}}":             "r.example/flakelease/allocator:0.1.0",
	} {
		r := mustRender(t, with(t, values), install)
		if p, _ := nodePod(t, r); p.spec.Containers[0].Image != want {
			t.Errorf("%s: %s, want %s", values, p.spec.Containers[0].Image, want)
		}
	}
}

// What works is not refused.
func TestGoodInput(t *testing.T) {
	for _, tt := range []struct{ values, object, want string }{
		{"agent: {enabled: true, extraArgs: [--log.level, debug, --max-wait=1s]}", "DaemonSet/ids-allocator-agent", "- --log.level\n            - debug\n            - --max-wait=1s\n"},
		{"podDisruptionBudget: {minAvailable: 2, maxUnavailable: null}", "PodDisruptionBudget/ids-allocator", " minAvailable: 2\n"},
		{"podDisruptionBudget: {minAvailable: null}", "PodDisruptionBudget/ids-allocator", " maxUnavailable: 1\n"},
		{"podDisruptionBudget: {maxUnavailable: null}", "PodDisruptionBudget/ids-allocator", " maxUnavailable: 1\n"},
		{"extraEnv: {ALLOCATOR_ADDR: 'x:1', ALLOCATOR_CONFIG: /x, ALLOCATOR_TOKEN: x}", "StatefulSet/ids-allocator", "ALLOCATOR_TOKEN"},
		{"resources: {requests: {memory: 64Mi}, limits: {memory: 64Mi}}", "StatefulSet/ids-allocator", "memory: 64Mi"},
		{"{commonLabels: null, config: null, extraEnv: null, imagePullSecrets: null, podLabels: null, service: {labels: null}}", "StatefulSet/ids-allocator", "replicas: 3"},
	} {
		r, err := render(t, with(t, tt.values), install)
		if err != nil {
			t.Errorf("%s: %v", tt.values, err)
		} else if text := r.find(t, tt.object).text; !strings.Contains(text, tt.want) {
			t.Errorf("%s: %s lacks %q:\n%s", tt.values, tt.object, tt.want, text)
		}
	}
}

// A parent chart passes values to its subcharts that they do not use.
func TestAsSubchart(t *testing.T) {
	if _, err := render(t, with(t, "{global: {anything: {goes: here}}, enabled: true}"), install); err != nil {
		t.Error(err)
	}
}

// TestNodesRules: the chart refuses what nodes would refuse at their start, by the same bounds,
// and nothing else.
func TestNodesRules(t *testing.T) {
	for _, values := range []string{
		"lease: {window: 1s}", "lease: {window: 999ms}", "lease: {window: 24h}", "lease: {window: 24h1ms}", "lease: {ttl: 2s}",
		"lease: {ttl: 1s}", "lease: {ttl: 15500ms}", "lease: {ttl: 1h1s}", "watermark: {interval: 9ms}",
		"worker: {window: 2s}", "worker: {window: 1s}", "worker: {window: 2500ms}", "worker: {window: 1m30s}",
		"issue: {max-lead: 10s}", "issue: {max-lead: 10001ms}", "issue: {max-lead: 5s}, lease: {window: 10s}",
		"issue: {max-lead: 6s}, lease: {window: 10s}", "issue: {max-skew: 0s}", "issue: {max-skew: 1us}",
		"issue: {max-skew: 1ms}",
	} {
		file := filepath.Join(t.TempDir(), "allocator.yaml")
		fatal.If(t, os.WriteFile(file, []byte("{"+values+"}"), 0o600))
		c, _, err := config.Load(config.Sources{File: file})
		if err != nil {
			t.Fatalf("%s: %v", values, err)
		}
		want := c.Validate()
		if _, err := render(t, with(t, "config: {"+values+"}"), install); (err != nil) != (want != nil) {
			t.Errorf("%s: the chart says %v, nodes say %v", values, err, want)
		}
	}
	for workers, ok := range map[string]bool{"0-9": true, "22-31": true, "10-20": false, "20-10": false, "30-32": false} {
		if _, err := render(t, with(t, "sids: {workers: "+workers+"}"), install); (err == nil) != ok {
			t.Errorf("workers %s: %v", workers, err)
		}
	}
	if _, err := render(t, with(t, "sids: {range: 0-15, workers: 10-20}"), install); err != nil {
		t.Errorf("workers at the end of a range: %v", err)
	}
}
