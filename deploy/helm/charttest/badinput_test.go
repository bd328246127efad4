package charttest

import (
	"strings"
	"testing"
)

// Each combination that cannot work ends the rendering with a sentence that says
// what to change.
func TestBadInput(t *testing.T) {
	const tls = "existingSecret: api-tls"
	for _, tt := range []struct {
		name, values, says string
	}{
		{"too many nodes", "replicaCount: 31", "replicaCount is 31, and there are 32 sids of which 2 are kept free: set it to 30 at most"},
		{"too many for a range", "{replicaCount: 4, sids: {range: 4-8}}", "there are 5 sids of which 2 are kept free: set it to 3 at most"},
		{"too many for fleet", "{replicaCount: 1023, space: {layout: fleet}}", "set it to 1022 at most"},
		{"over any layout", "replicaCount: 1025", "replicaCount"},
		{"no nodes", "replicaCount: 0", "replicaCount"},
		{"reserve takes all", "sids: {range: 0-1}", "sids.reserve is 2 of 2 sids, which leaves none"},
		{"reserve over the pool", "sids: {reserve: 40}", "sids.reserve is 40 of 32 sids"},
		{"range backwards", "sids: {range: 9-3}", "ends before it begins"},
		{"range over the pool", "sids: {range: 0-32}", "the layout scalable has the sids 0 to 31"},
		{"range in words", "sids: {range: all}", "sids/range"},
		{"autoscaler over the pool", "autoscaling: {enabled: true, maxReplicas: 31}", "autoscaling.maxReplicas is 31"},
		{"autoscaler upside down", "autoscaling: {enabled: true, minReplicas: 9, maxReplicas: 5}", "exchange them"},
		{"autoscaler without a request", "{autoscaling: {enabled: true}, resources: {requests: {cpu: null}}}", "set it"},
		{"no etcd", "etcd: {endpoints: []}", "there is no etcd: set etcd.endpoints"},
		{"two etcds", "etcd: {bundled: {enabled: true}}", "nodes of two etcds would issue the same IDs. Remove one"},
		{"bundled etcd with TLS", "etcd: {endpoints: [], bundled: {enabled: true}, tls: {existingSecret: x}}", "do not apply to the bundled etcd"},
		{"user without a password", "etcd: {auth: {username: u}}", "etcd.auth.username and etcd.auth.existingSecret come together"},
		{"password without a user", "etcd: {auth: {existingSecret: s}}", "come together"},
		{"https without an authority", `etcd: {endpoints: ["https://e:2379"]}`, "name a Secret with etcd's authority"},
		{"authority without https", "etcd: {tls: {existingSecret: s}}", "write https, or remove the Secret"},
		{"half a client certificate", `etcd: {endpoints: ["https://e:2379"], tls: {existingSecret: s, keyKey: ""}}`, "etcd.tls.certKey and etcd.tls.keyKey come together"},
		{"endpoint without a scheme", `etcd: {endpoints: ["e:2379"]}`, "etcd/endpoints/0"},
		{"endpoint with a password", `etcd: {endpoints: ["http://u:p@e:2379"]}`, "etcd/endpoints/0"},
		{"gossip without a key", `gossip: {existingSecret: ""}`, "«allocator gossip keygen»"},
		{"gossip with and without", "gossip: {insecure: true}", "remove one"},
		{"no issuer", "tls: {certManager: {enabled: true}}", "set tls.certManager.issuerRef.name"},
		{"an issuer for nothing", "tls: {certManager: {issuerRef: {name: x}}}", "no certificate would be asked for"},
		{"client certificates without TLS", "tls: {clientCA: {existingSecret: ca}}", "the nodes have none themselves"},
		{"admin TLS without TLS", "tls: {admin: true}", "tls.admin is set and there is no certificate"},
		{"probes without a certificate", "tls: {" + tls + ", admin: true, clientCA: {existingSecret: ca}}", "pods would never be ready"},
		{"tokens without TLS", "{auth: {existingSecret: t}, test: {enabled: false}}", "anyone on the way can read them"},
		{"tokens and a test without", "{tls: {" + tls + "}, auth: {existingSecret: t}}", "set test.token.existingSecret"},
		{"a test's token for nothing", "test: {token: {existingSecret: t}}", "nodes ask for no token"},
		{"ingress to nowhere", "ingress: {enabled: true}", "set ingress.hosts"},
		{"route from nowhere", "gateway: {httpRoute: {enabled: true}}", "set gateway.httpRoute.parentRefs"},
		{"gRPC route from nowhere", "gateway: {grpcRoute: {enabled: true}}", "set gateway.grpcRoute.parentRefs"},
		{"one port for two", "service: {ports: {grpc: 8080}}", "give each its own"},
		{"a balancer's class without one", "service: {loadBalancerClass: x}", "set it to LoadBalancer, or remove"},
		{"a policy for traffic that is none", "service: {externalTrafficPolicy: Local}", "means nothing for service.type ClusterIP"},
		{"both monitors", "monitoring: {serviceMonitor: {enabled: true}, podMonitor: {enabled: true}}", "every series would be there twice. Choose one"},
		{"a budget of nothing", "podDisruptionBudget: {maxUnavailable: 0}", "Set it to 1"},
		{"a budget of none per cent", `podDisruptionBudget: {maxUnavailable: "0%"}`, "Set it to 1"},
		{"a budget of all", "podDisruptionBudget: {minAvailable: 3}", "no machine with one could ever be drained"},
		{"a budget of all per cent", `podDisruptionBudget: {minAvailable: "100%"}`, "no machine with one could ever be drained"},
		{"the chart's variable", "extraEnv: {POD_IP: x}", "extraEnv.POD_IP is the chart's own"},
		{"the chart's label", "commonLabels: {app.kubernetes.io/name: x}", "is the chart's own: remove it"},
		{"one label in two places", "{commonLabels: {team: a}, podLabels: {team: b}}", "is in commonLabels and in podLabels"},
		{"the chart's volume", "extraVolumes: [{name: tls, emptyDir: {}}]", "extraVolumes: the name tls is the chart's own"},
		{"unknown value", "replicas: 3", "additional properties 'replicas' not allowed"},
		{"unknown value further down", "etcd: {endpoint: x}", "additional properties 'endpoint' not allowed"},
		{"unknown setting", "config: {lease: {windows: 1m}}", "additional properties 'windows' not allowed"},
		{"a setting that is a value", "config: {drain: {delay: 1s}}", "additional properties 'drain' not allowed"},
		{"a number for a duration", "config: {lease: {window: 30}}", "config/lease/window"},
		{"a key itself", `gossip: {existingSecret: "b64+key/with=="}`, "gossip/existingSecret"},
		{"no layout", "space: {layout: standalone}", "space/layout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := render(t, on(t, tt.values), install)
			if err == nil {
				t.Fatal("it renders")
			}
			if !strings.Contains(strings.Join(strings.Fields(err.Error()), " "), tt.says) {
				t.Errorf("%v\ndoes not say %q", err, tt.says)
			}
		})
	}
}

// All that is wrong is said at once.
func TestBadInputTogether(t *testing.T) {
	_, err := render(t, read(t, "replicaCount: 500"), install)
	if err == nil {
		t.Fatal("it renders")
	}
	for _, want := range []string{"replicaCount is 500", "there is no etcd", "gossip has no key"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v\ndoes not say %q", err, want)
		}
	}
}

// A parent chart gives its parts values that are not theirs.
func TestPartOfAnotherChart(t *testing.T) {
	if _, err := render(t, on(t, "{global: {anything: {goes: here}}, enabled: true}"), install); err != nil {
		t.Error(err)
	}
}
