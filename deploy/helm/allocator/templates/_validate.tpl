{{/*
Combinations of values that cannot work. All of them are reported at once, each as
"what is wrong: why; what to change". The schema checks types and names.
*/}}
{{- define "allocator.validate" -}}
{{- $errors := list -}}
{{- $v := .Values -}}

{{- if and $v.agent.enabled $v.auth.existingSecret (not $v.agent.token.existingSecret) -}}
{{- $errors = append $errors "agent.enabled is true and agent.token.existingSecret is empty: nodes require a token (auth.existingSecret); create a Secret with one of scope issue, and set it" -}}
{{- end -}}
{{- if and $v.agent.enabled $v.tls.clientCA.existingSecret -}}
{{- $errors = append $errors "agent.enabled is true with tls.clientCA.existingSecret: nodes require a certificate of their clients, and the chart's agents have none; run the agent as a sidecar (examples/agent/kubernetes.yaml) with --cert and --key" -}}
{{- end -}}
{{- $flags := list
  "addr" "ca" "cert" "config" "http.hosts" "key" "limit.connections" "limit.requests-per-second" "listen.admin"
  "listen.grpc" "listen.http" "listen.insecure" "listen.resp" "listen.socket-group" "listen.socket-mode" "log.format"
  "log.level" "max-age" "max-wait" "node.name" "plaintext-token" "token-file"
-}}
{{- $takes := false -}}
{{- range $v.agent.extraArgs -}}
{{- if not (ternary (has (splitList "=" . | first | trimPrefix "--") $flags) $takes (hasPrefix "--" .)) -}}
{{- $errors = append $errors (printf "agent.extraArgs has %q: that is no flag of agents, and no value after one; `allocator agent --help` lists their flags" .) -}}
{{- end -}}
{{- $takes = and (hasPrefix "--" .) (not (contains "=" .)) -}}
{{- end -}}

{{/* How many nodes. */}}
{{- $pool := int (include "allocator.pool" .) -}}
{{- if $v.sids.range -}}
{{- $ends := splitList "-" $v.sids.range -}}
{{- if gt (int (index $ends 0)) (int (index $ends 1)) -}}
{{- $errors = append $errors (printf "sids.range is %q: the last sid is lower than the first; write it as first-last" $v.sids.range) -}}
{{- else if ge (int (index $ends 1)) $pool -}}
{{- $errors = append $errors (printf "sids.range is %q: layout %s has the sids 0 to %d; lower the range, or set space.layout=fleet for a new space" $v.sids.range $v.space.layout (sub $pool 1)) -}}
{{- end -}}
{{- end -}}
{{- if not $errors -}}
{{- $range := int (include "allocator.range" .) -}}
{{- $bound := int (sub $range $v.sids.reserve) -}}
{{- if le $bound 0 -}}
{{- $errors = append $errors (printf "sids.reserve is %d: of %d sids, none is left for nodes; lower sids.reserve or widen sids.range" (int $v.sids.reserve) $range) -}}
{{- else if $v.autoscaling.enabled -}}
{{- if gt (int $v.autoscaling.maxReplicas) $bound -}}
{{- $errors = append $errors (printf "autoscaling.maxReplicas is %d: there are %d sids, of which sids.reserve keeps %d free; set it to at most %d, lower sids.reserve, widen sids.range, or set space.layout=fleet for a new space" (int $v.autoscaling.maxReplicas) $range (int $v.sids.reserve) $bound) -}}
{{- end -}}
{{- else if gt (int $v.replicaCount) $bound -}}
{{- $errors = append $errors (printf "replicaCount is %d: there are %d sids, of which sids.reserve keeps %d free; set it to at most %d, lower sids.reserve, widen sids.range, or set space.layout=fleet for a new space" (int $v.replicaCount) $range (int $v.sids.reserve) $bound) -}}
{{- end -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- $errors = append $errors (printf "autoscaling.minReplicas is %d: it is greater than autoscaling.maxReplicas, %d; lower it or raise autoscaling.maxReplicas" (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (not (dig "requests" "cpu" "" $v.resources)) -}}
{{- $errors = append $errors "autoscaling.enabled is true without resources.requests.cpu: the target utilization is a percentage of the request; set resources.requests.cpu" -}}
{{- end -}}

{{/* What nodes check themselves, so that no pod starts only to end. */}}
{{- with $v.sids.workers -}}
{{- $within := splitList "-" ($v.sids.range | default $v.init.sids | default (printf "0-%d" (sub $pool 1))) -}}
{{- $from := int (first $within) -}}
{{- $to := int (last $within) -}}
{{- $ends := splitList "-" . -}}
{{- $first := int (first $ends) -}}
{{- $last := int (last $ends) -}}
{{- if gt $first $last -}}
{{- $errors = append $errors (printf "sids.workers is %q: the last sid is lower than the first; write it as first-last" .) -}}
{{- else if ge $last $pool -}}
{{- $errors = append $errors (printf "sids.workers is %q: layout %s has the sids 0 to %d; lower the range" . $v.space.layout (sub $pool 1)) -}}
{{- else if and (gt $first $from) (lt $last $to) -}}
{{- $errors = append $errors (printf "sids.workers is %q: it leaves nodes two ranges of the sids %d-%d; move it to an end of them, or set sids.range to the sids beside it" . $from $to) -}}
{{- end -}}
{{- end -}}
{{- $hour := 3600000 -}}
{{- $ms := dict -}}
{{- range list
  (list "lease" "window" "30s" 1000 (mul 24 $hour))
  (list "lease" "ttl" "15s" 2000 $hour)
  (list "watermark" "interval" "5s" 10 $hour)
  (list "worker" "window" "1m" 2000 (mul 24 $hour))
  (list "issue" "max-lead" "250ms" 0 10000)
  (list "issue" "max-skew" "250ms" 1 60000)
-}}
{{- $key := printf "%s.%s" (index . 0) (index . 1) -}}
{{- $text := dig (index . 0) (index . 1) (index . 2) (default dict $v.config) -}}
{{- $value := include "allocator.ms" $text | float64 -}}
{{- $_ := set $ms $key $value -}}
{{- if or (lt $value (float64 (index . 3))) (gt $value (float64 (index . 4))) -}}
{{- $errors = append $errors (printf "config.%s is %s: it is out of range; docs/reference/allocator.sample.yaml has the bounds" $key $text) -}}
{{- else if and (has $key (list "lease.ttl" "worker.window")) (ne (mod (int64 $value) 1000) 0) -}}
{{- $errors = append $errors (printf "config.%s is %s: etcd leases have whole seconds; round it" $key $text) -}}
{{- end -}}
{{- end -}}
{{- if gt (mulf 2 (get $ms "issue.max-lead")) (get $ms "lease.window") -}}
{{- $errors = append $errors "config.issue.max-lead is more than half of lease.window: IDs ahead of the clock would use up the window; lower it, or raise lease.window" -}}
{{- end -}}

{{/* etcd. */}}
{{- with $v.etcd -}}
{{- if and (not .endpoints) (not .bundled.enabled) -}}
{{- $errors = append $errors "etcd.endpoints is empty: nodes need an etcd; set it to the URLs of etcd's members, or set etcd.bundled.enabled=true for an etcd of the chart" -}}
{{- end -}}
{{- if and .endpoints .bundled.enabled -}}
{{- $errors = append $errors "etcd.endpoints and etcd.bundled.enabled are both set: nodes on two different etcds would issue the same IDs; remove one" -}}
{{- end -}}
{{- if and .bundled.enabled (or .tls.existingSecret .auth.existingSecret .auth.username) -}}
{{- $errors = append $errors "etcd.tls or etcd.auth is set with etcd.bundled.enabled: the bundled etcd has certificates and users of its own; remove them, or set etcd.endpoints to another etcd" -}}
{{- end -}}
{{- with .bundled -}}
{{- if .enabled -}}
{{- if and (gt (int .members) 1) (not .persistence.enabled) -}}
{{- $errors = append $errors (printf "etcd.bundled.persistence.enabled is false with %d members: pods that are deleted together would lose everything; enable it, or set etcd.bundled.members=1 for a try" (int .members)) -}}
{{- end -}}
{{- $quota := include "allocator.bytes" .quota | int64 -}}
{{- if gt $quota 8589934592 -}}
{{- $errors = append $errors (printf "etcd.bundled.quota is %s: etcd is not made for more than 8Gi; lower it" .quota) -}}
{{- end -}}
{{- if and .persistence.enabled (lt (include "allocator.bytes" .persistence.size | int64) (add (mul 2 $quota) 1073741824)) -}}
{{- $errors = append $errors (printf "etcd.bundled.persistence.size is %s with etcd.bundled.quota %s: a defragmentation needs the database twice, and the log 1Gi; raise the size, or lower the quota" .persistence.size .quota) -}}
{{- end -}}
{{- if and .restore.snapshot (eq .restore.token "initial") -}}
{{- $errors = append $errors "etcd.bundled.restore.snapshot is set with restore.token initial: nodes must notice a restored etcd; set a token that this etcd never had, such as restored-1" -}}
{{- end -}}
{{- if and .snapshots.existingClaim (not .snapshots.enabled) -}}
{{- $errors = append $errors "etcd.bundled.snapshots.existingClaim is set with snapshots.enabled=false: no snapshot would be taken; remove one" -}}
{{- end -}}
{{- if and .snapshots.extraContainers (not .snapshots.enabled) -}}
{{- $errors = append $errors "etcd.bundled.snapshots.extraContainers is set with snapshots.enabled=false: there would be no snapshot to copy; remove one" -}}
{{- end -}}
{{- if and .certManager.issuerRef.name (not .certManager.enabled) -}}
{{- $errors = append $errors "etcd.bundled.certManager.issuerRef.name is set without etcd.bundled.certManager.enabled: the chart would make the certificates itself; enable it, or remove the issuer" -}}
{{- end -}}
{{- $now := dig "spec" "replicas" 0 (lookup "apps/v1" "StatefulSet" (include "allocator.namespace" $) (include "allocator.etcdName" $)) -}}
{{- if gt (int $now) (int .members) -}}
{{- $errors = append $errors (printf "etcd.bundled.members is %d, and %d members run: the others would have no quorum; keep the number, or restore a snapshot into a new cluster" (int .members) (int $now)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if ne (empty .auth.username) (empty .auth.existingSecret) -}}
{{- $errors = append $errors "only one of etcd.auth.username and etcd.auth.existingSecret is set: a login needs a user and a password; set both or neither" -}}
{{- end -}}
{{- if ne (empty .tls.certKey) (empty .tls.keyKey) -}}
{{- $errors = append $errors "only one of etcd.tls.certKey and etcd.tls.keyKey is set: a client certificate needs its private key; set both, or neither for no client certificate" -}}
{{- end -}}
{{- if .tls.existingSecret -}}
{{- range .endpoints -}}
{{- if hasPrefix "http://" . -}}
{{- $errors = append $errors (printf "etcd.tls.existingSecret is set with the endpoint %s: the endpoint does not use TLS; change it to https, or remove the Secret" .) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- range .endpoints -}}
{{- if hasPrefix "https://" . -}}
{{- $errors = append $errors (printf "etcd.tls.existingSecret is empty with the endpoint %s: the image has no CA certificates; set it to a Secret with etcd's CA certificate" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Gossip. */}}
{{- if and (not $v.gossip.existingSecret) (not $v.gossip.insecure) -}}
{{- $errors = append $errors "gossip.existingSecret is empty: gossip needs a key; set it to a Secret with the output of `allocator gossip keygen`, or set gossip.insecure=true if every pod can be trusted" -}}
{{- end -}}
{{- if and $v.gossip.existingSecret $v.gossip.insecure -}}
{{- $errors = append $errors "gossip.existingSecret and gossip.insecure are both set: gossip either has a key or has none; remove one" -}}
{{- end -}}

{{/* TLS and tokens. */}}
{{- $tls := include "allocator.tlsSecret" . -}}
{{- with $v.tls -}}
{{- if and .certManager.enabled (not .certManager.issuerRef.name) -}}
{{- $errors = append $errors "tls.certManager.issuerRef.name is empty: tls.certManager.enabled needs an issuer; set it" -}}
{{- end -}}
{{- if and .certManager.issuerRef.name (not .certManager.enabled) -}}
{{- $errors = append $errors "tls.certManager.issuerRef.name is set without tls.certManager.enabled: no certificate would be requested; set tls.certManager.enabled=true, or remove the issuer" -}}
{{- end -}}
{{- if and .clientCA.existingSecret (not $tls) -}}
{{- $errors = append $errors "tls.clientCA.existingSecret is set without TLS: nodes need a certificate to request those of clients; set tls.existingSecret or tls.certManager.enabled" -}}
{{- end -}}
{{- if and .admin (not $tls) -}}
{{- $errors = append $errors "tls.admin is true without TLS: the admin port needs a certificate; set tls.existingSecret or tls.certManager.enabled" -}}
{{- end -}}
{{- if and .admin .clientCA.existingSecret -}}
{{- $errors = append $errors "tls.admin and tls.clientCA.existingSecret are both set: the kubelet's probes have no client certificate, so pods would never be ready; set tls.admin=false" -}}
{{- end -}}
{{- end -}}
{{- if and $v.auth.existingSecret (not $tls) (not $v.auth.allowPlaintext) -}}
{{- $errors = append $errors "auth.existingSecret is set without TLS: tokens would be sent unencrypted; set tls.existingSecret or tls.certManager.enabled, or auth.allowPlaintext=true" -}}
{{- end -}}
{{- if and $v.test.enabled $v.auth.existingSecret (not $v.test.token.existingSecret) -}}
{{- $errors = append $errors "test.token.existingSecret is empty with auth.existingSecret: nodes would refuse helm test, which has no token; set it to a Secret with a token that may issue and read, or set test.enabled=false" -}}
{{- end -}}
{{- if and $v.test.token.existingSecret (not $v.auth.existingSecret) -}}
{{- $errors = append $errors "test.token.existingSecret is set without auth.existingSecret: nodes do not use tokens; set auth.existingSecret, or remove it" -}}
{{- end -}}

{{/* Services and routes. */}}
{{- with $v.ingress -}}
{{- if and .enabled (not .hosts) -}}
{{- $errors = append $errors "ingress.hosts is empty: an Ingress needs a host; set it" -}}
{{- end -}}
{{- end -}}
{{- range $kind := list "httpRoute" "grpcRoute" -}}
{{- $route := get $v.gateway $kind -}}
{{- if and $route.enabled (not $route.parentRefs) -}}
{{- $errors = append $errors (printf "gateway.%s.parentRefs is empty: the route needs a Gateway; set it" $kind) -}}
{{- end -}}
{{- end -}}
{{- $numbers := list (int $v.service.ports.grpc) (int $v.service.ports.http) -}}
{{- if $v.resp.enabled -}}
{{- $numbers = append $numbers (int $v.service.ports.resp) -}}
{{- end -}}
{{- if ne (len $numbers) (len (uniq $numbers)) -}}
{{- $errors = append $errors "two of service.ports are equal: each port needs its own number; change one" -}}
{{- end -}}
{{- if and (ne $v.service.type "LoadBalancer") (or $v.service.loadBalancerClass $v.service.loadBalancerSourceRanges) -}}
{{- $errors = append $errors (printf "service.loadBalancerClass or service.loadBalancerSourceRanges is set with service.type %s: it has no load balancer; set service.type=LoadBalancer, or remove them" $v.service.type) -}}
{{- end -}}
{{- if and $v.service.externalTrafficPolicy (eq $v.service.type "ClusterIP") -}}
{{- $errors = append $errors "service.externalTrafficPolicy is set with service.type ClusterIP: it has no external traffic; remove it, or set service.type to LoadBalancer or NodePort" -}}
{{- end -}}

{{/* Monitoring and disruption budgets. */}}
{{- if and $v.monitoring.serviceMonitor.enabled $v.monitoring.podMonitor.enabled -}}
{{- $errors = append $errors "monitoring.serviceMonitor.enabled and monitoring.podMonitor.enabled are both set: every series would be scraped twice; disable one" -}}
{{- end -}}
{{- with $v.podDisruptionBudget -}}
{{- $minimum := not (has (toString .minAvailable) (list "" "<nil>")) -}}
{{- if and .enabled $minimum (not (has (toString .maxUnavailable) (list "1" "<nil>"))) -}}
{{- $errors = append $errors (printf "podDisruptionBudget.minAvailable is %v and maxUnavailable is %v: a budget has one of them; remove one" .minAvailable .maxUnavailable) -}}
{{- end -}}
{{- if and .enabled $minimum -}}
{{- $count := ternary $v.autoscaling.minReplicas $v.replicaCount $v.autoscaling.enabled -}}
{{- if or (eq (toString .minAvailable) "100%") (and (not (hasSuffix "%" (toString .minAvailable))) (ge (int .minAvailable) (int $count))) -}}
{{- $errors = append $errors (printf "podDisruptionBudget.minAvailable is %v of %d nodes: no machine with a node could be drained; lower it, or set podDisruptionBudget.maxUnavailable instead" .minAvailable (int $count)) -}}
{{- end -}}
{{- else if and .enabled (has (toString .maxUnavailable) (list "0" "0%")) -}}
{{- $errors = append $errors "podDisruptionBudget.maxUnavailable is 0: no machine with a node could be drained; set it to 1, or set podDisruptionBudget.enabled=false" -}}
{{- end -}}
{{- end -}}

{{- with $v.extraArgs -}}
{{- $errors = append $errors "extraArgs is set: settings of nodes are values, which are checked before a pod starts; set them in config (config.lease.window for --lease.window), or the chart's own value of it" -}}
{{- end -}}
{{/* Duplicate names, which server-side apply refuses. */}}
{{- range $name, $_ := $v.extraEnv -}}
{{- if has $name (list "POD_IP" "POD_NAME") -}}
{{- $errors = append $errors (printf "extraEnv.%s is set: the chart sets this variable itself; remove it" $name) -}}
{{- else if and (hasPrefix "ALLOCATOR_" $name) (not (has $name (list "ALLOCATOR_ADDR" "ALLOCATOR_CONFIG" "ALLOCATOR_TOKEN"))) -}}
{{- $errors = append $errors (printf "extraEnv.%s is set: settings of nodes are values, which are checked before a pod starts; set it in config, or the chart's own value of it" $name) -}}
{{- end -}}
{{- end -}}
{{- $labels := concat (keys (include "allocator.selector" . | fromYaml)) (list "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "app.kubernetes.io/component" "helm.sh/chart") -}}
{{- range $key := keys (default dict $v.commonLabels) (default dict $v.podLabels) (default dict $v.service.labels) -}}
{{- if has $key $labels -}}
{{- $errors = append $errors (printf "label %s is set: the chart sets this label itself; remove it from commonLabels, podLabels and service.labels" $key) -}}
{{- end -}}
{{- end -}}
{{- range keys (default dict $v.podLabels) -}}
{{- if hasKey (default dict $v.commonLabels) . -}}
{{- $errors = append $errors (printf "label %s is in commonLabels and in podLabels: a label can be set only once; remove one" .) -}}
{{- end -}}
{{- end -}}
{{- $volumes := list "config" "etcd-tls" "etcd-auth" "gossip" "tls" "client-ca" "auth" -}}
{{- range $v.extraVolumes -}}
{{- if has .name $volumes -}}
{{- $errors = append $errors (printf "extraVolumes has a volume %s: the chart has a volume of this name; rename it" .name) -}}
{{- end -}}
{{- end -}}

{{- with dig "events" "file" "" (default dict $v.config) -}}
{{- $file := . -}}
{{- $mounted := eq $file "none" -}}
{{- range $v.extraVolumeMounts -}}
{{- $mounted = or $mounted (hasPrefix (printf "%s/" (trimSuffix "/" .mountPath)) $file) -}}
{{- end -}}
{{- if not $mounted -}}
{{- $errors = append $errors (printf "config.events.file is %s: no volume is mounted there, and nodes cannot write elsewhere; mount one with extraVolumes and extraVolumeMounts, and one that pods share with subPathExpr: $(POD_NAME), or remove the setting" $file) -}}
{{- end -}}
{{- end -}}

{{/* What Kubernetes refuses, or starts and then ends. */}}
{{- $resources := list (list "resources" $v.resources "48Mi") -}}
{{- if $v.init.enabled -}}
{{- $resources = append $resources (list "init.resources" $v.init.resources "0") -}}
{{- end -}}
{{- if $v.agent.enabled -}}
{{- $resources = append $resources (list "agent.resources" $v.agent.resources "32Mi") -}}
{{- end -}}
{{- with $v.etcd.bundled -}}
{{- if .enabled -}}
{{- $resources = concat $resources (list (list "etcd.bundled.resources" .resources "128Mi") (list "etcd.bundled.snapshots.resources" .snapshots.resources "0")) -}}
{{- end -}}
{{- end -}}
{{- range $entry := $resources -}}
{{- $name := index $entry 0 -}}
{{- $requests := dig "requests" dict (index $entry 1) -}}
{{- range $kind, $limit := dig "limits" dict (index $entry 1) -}}
{{- $size := include "allocator.quantity" $limit | float64 -}}
{{- if and (hasKey $requests $kind) (lt $size (include "allocator.quantity" (get $requests $kind) | float64)) -}}
{{- $errors = append $errors (printf "%s.limits.%s is %v: it is less than %s.requests.%s, %v, and Kubernetes refuses such pods; raise it, lower the request, or remove it" $name $kind $limit $name $kind (get $requests $kind)) -}}
{{- end -}}
{{- if and (eq $kind "memory") (lt $size (include "allocator.quantity" (index $entry 2) | float64)) -}}
{{- $errors = append $errors (printf "%s.limits.memory is %v: the process needs most of that before it has clients, and would be killed; set it to at least %s" $name $limit (index $entry 2)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $user := mergeOverwrite (deepCopy $v.podSecurityContext) $v.securityContext -}}
{{- if and $user.runAsNonRoot (eq (toString $user.runAsUser) "0") -}}
{{- $errors = append $errors "runAsUser is 0 with runAsNonRoot: no pod would start; set podSecurityContext.runAsUser to another user, or runAsNonRoot to false" -}}
{{- end -}}
{{- range list $v.space.epoch (regexFind "epoch=[^,]+" $v.space.layout | trimPrefix "epoch=") -}}
{{- if regexMatch "^[0-9]{4}-" . -}}
{{- $time := toDate "2006-01-02T15:04:05Z07:00" (ternary . (printf "%sT00:00:00Z" .) (contains "T" .)) -}}
{{- if $time.IsZero -}}
{{- $errors = append $errors (printf "the epoch is %s: there is no such time; write it as 2024-01-01T00:00:00Z" .) -}}
{{- else if $time.After now -}}
{{- $errors = append $errors (printf "the epoch is %s: it has not begun, and IDs count from it; set one in the past" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- with $v.image -}}
{{- if and (not .registry) (not (dig "imageRegistry" "" ($v.global | default dict))) (not .digest) (eq .repository "flakelease/allocator") -}}
{{- $errors = append $errors "image.registry is empty: no image is published yet, and whoever registers the name could serve another; build and push one (\"Try it\" in the chart's README.md) and set image.registry, or set image.repository to the name of an image in the cluster, or image.digest" -}}
{{- end -}}
{{- end -}}

{{- if $errors -}}
{{- fail (printf "\n\nThe values are invalid:\n- %s\n" (join "\n- " $errors)) -}}
{{- end -}}
{{- end -}}

{{/* A duration such as 1m30s in milliseconds. */}}
{{- define "allocator.ms" -}}
{{- $ms := 0.0 -}}
{{- $units := dict "ns" 0.000001 "us" 0.001 "µs" 0.001 "ms" 1.0 "s" 1000.0 "m" 60000.0 "h" 3600000.0 -}}
{{- range regexFindAll "[0-9]+(\\.[0-9]+)?[a-zµ]+" . -1 -}}
{{- $ms = addf $ms (mulf (regexFind "[0-9.]+" . | float64) (get $units (regexFind "[a-zµ]+" .))) -}}
{{- end -}}
{{- $ms -}}
{{- end -}}

{{/* A quantity of Kubernetes as a number. */}}
{{- define "allocator.quantity" -}}
{{- $text := ternary (toString .) (printf "%.3f" (float64 .)) (kindIs "string" .) -}}
{{- $units := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $units (regexFind "[A-Za-z]+$" $text)) -}}
{{- end -}}

{{/* The ports of etcd, as a JSON list. */}}
{{- define "allocator.etcdPorts" -}}
{{- $ports := list -}}
{{- range include "allocator.endpoints" . | fromJsonArray -}}
{{- $ports = append $ports (regexFind "[0-9]+$" (trimSuffix "/" .) | int) -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}
