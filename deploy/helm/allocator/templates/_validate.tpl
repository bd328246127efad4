{{/*
Combinations of values that cannot work. Each is said in a sentence with what to
change, all of them at once. Types and names are the schema's business.
*/}}
{{- define "allocator.validate" -}}
{{- $errors := list -}}
{{- $v := .Values -}}

{{/* How many nodes. */}}
{{- $pool := int (include "allocator.pool" .) -}}
{{- if $v.sids.range -}}
{{- $ends := splitList "-" $v.sids.range -}}
{{- if gt (int (index $ends 0)) (int (index $ends 1)) -}}
{{- $errors = append $errors (printf "sids.range %q ends before it begins: write it as first-last" $v.sids.range) -}}
{{- else if ge (int (index $ends 1)) $pool -}}
{{- $errors = append $errors (printf "sids.range %q: the layout %s has the sids 0 to %d. Lower the range, or set space.layout to fleet for a new space" $v.sids.range $v.space.layout (sub $pool 1)) -}}
{{- end -}}
{{- end -}}
{{- if not $errors -}}
{{- $range := int (include "allocator.range" .) -}}
{{- $bound := int (sub $range $v.sids.reserve) -}}
{{- if le $bound 0 -}}
{{- $errors = append $errors (printf "sids.reserve is %d of %d sids, which leaves none for nodes: lower sids.reserve or widen sids.range" (int $v.sids.reserve) $range) -}}
{{- else if $v.autoscaling.enabled -}}
{{- if gt (int $v.autoscaling.maxReplicas) $bound -}}
{{- $errors = append $errors (printf "autoscaling.maxReplicas is %d, and there are %d sids of which %d are kept free: set it to %d at most, or lower sids.reserve, widen sids.range or, for a new space, set space.layout to fleet" (int $v.autoscaling.maxReplicas) $range (int $v.sids.reserve) $bound) -}}
{{- end -}}
{{- else if gt (int $v.replicaCount) $bound -}}
{{- $errors = append $errors (printf "replicaCount is %d, and there are %d sids of which %d are kept free: set it to %d at most, or lower sids.reserve, widen sids.range or, for a new space, set space.layout to fleet" (int $v.replicaCount) $range (int $v.sids.reserve) $bound) -}}
{{- end -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- $errors = append $errors (printf "autoscaling.minReplicas (%d) is above autoscaling.maxReplicas (%d): exchange them" (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (not (dig "requests" "cpu" "" $v.resources)) -}}
{{- $errors = append $errors "autoscaling.enabled needs resources.requests.cpu, which its target is a part of: set it" -}}
{{- end -}}

{{/* etcd. */}}
{{- with $v.etcd -}}
{{- if and (not .endpoints) (not .bundled.enabled) -}}
{{- $errors = append $errors "there is no etcd: set etcd.endpoints to the URLs of its members, or etcd.bundled.enabled=true to try the chart with one of its own" -}}
{{- end -}}
{{- if and .endpoints .bundled.enabled -}}
{{- $errors = append $errors "etcd.endpoints and etcd.bundled.enabled are both set: nodes of two etcds would issue the same IDs. Remove one" -}}
{{- end -}}
{{- if and .bundled.enabled (or .tls.existingSecret .auth.existingSecret .auth.username) -}}
{{- $errors = append $errors "etcd.tls and etcd.auth do not apply to the bundled etcd, which has neither: remove them, or use an etcd of your own with etcd.endpoints" -}}
{{- end -}}
{{- if ne (empty .auth.username) (empty .auth.existingSecret) -}}
{{- $errors = append $errors "etcd.auth.username and etcd.auth.existingSecret come together: set both or neither" -}}
{{- end -}}
{{- if ne (empty .tls.certKey) (empty .tls.keyKey) -}}
{{- $errors = append $errors "etcd.tls.certKey and etcd.tls.keyKey come together: set both, or neither for no client certificate" -}}
{{- end -}}
{{- if .tls.existingSecret -}}
{{- range .endpoints -}}
{{- if hasPrefix "http://" . -}}
{{- $errors = append $errors (printf "etcd.tls.existingSecret is set, and the endpoint %s is not https: write https, or remove the Secret" .) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- range .endpoints -}}
{{- if hasPrefix "https://" . -}}
{{- $errors = append $errors (printf "the endpoint %s is https and etcd.tls.existingSecret is empty: name a Secret with etcd's authority, since the image has no roots of its own" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Gossip. */}}
{{- if and (not $v.gossip.existingSecret) (not $v.gossip.insecure) -}}
{{- $errors = append $errors "gossip has no key: set gossip.existingSecret to a Secret with what «allocator gossip keygen» prints, or gossip.insecure=true where every pod may be trusted" -}}
{{- end -}}
{{- if and $v.gossip.existingSecret $v.gossip.insecure -}}
{{- $errors = append $errors "gossip.existingSecret and gossip.insecure are both set: remove one" -}}
{{- end -}}

{{/* TLS and tokens. */}}
{{- $tls := include "allocator.tlsSecret" . -}}
{{- with $v.tls -}}
{{- if and .certManager.enabled (not .certManager.issuerRef.name) -}}
{{- $errors = append $errors "tls.certManager.enabled needs an issuer: set tls.certManager.issuerRef.name" -}}
{{- end -}}
{{- if and .certManager.issuerRef.name (not .certManager.enabled) -}}
{{- $errors = append $errors "tls.certManager.issuerRef.name is set and tls.certManager.enabled is not: no certificate would be asked for. Set it, or remove the issuer" -}}
{{- end -}}
{{- if and .clientCA.existingSecret (not $tls) -}}
{{- $errors = append $errors "tls.clientCA.existingSecret asks clients for certificates, and the nodes have none themselves: set tls.existingSecret or tls.certManager.enabled" -}}
{{- end -}}
{{- if and .admin (not $tls) -}}
{{- $errors = append $errors "tls.admin is set and there is no certificate: set tls.existingSecret or tls.certManager.enabled" -}}
{{- end -}}
{{- if and .admin .clientCA.existingSecret -}}
{{- $errors = append $errors "tls.admin and tls.clientCA.existingSecret are both set: the kubelet's probes have no client certificate, and pods would never be ready. Set tls.admin=false" -}}
{{- end -}}
{{- end -}}
{{- if and $v.auth.existingSecret (not $tls) (not $v.auth.allowPlaintext) -}}
{{- $errors = append $errors "auth.existingSecret asks for tokens, and without TLS anyone on the way can read them: set tls.existingSecret or tls.certManager.enabled, or auth.allowPlaintext=true" -}}
{{- end -}}
{{- if and $v.test.enabled $v.auth.existingSecret (not $v.test.token.existingSecret) -}}
{{- $errors = append $errors "nodes ask for tokens, and helm test has none: set test.token.existingSecret to a Secret with one that may issue and read, or test.enabled=false" -}}
{{- end -}}
{{- if and $v.test.token.existingSecret (not $v.auth.existingSecret) -}}
{{- $errors = append $errors "test.token.existingSecret is set, and nodes ask for no token: set auth.existingSecret, or remove it" -}}
{{- end -}}

{{/* Doors. */}}
{{- with $v.ingress -}}
{{- if and .enabled (not .hosts) -}}
{{- $errors = append $errors "ingress.enabled needs a host: set ingress.hosts" -}}
{{- end -}}
{{- end -}}
{{- range $kind := list "httpRoute" "grpcRoute" -}}
{{- $route := get $v.gateway $kind -}}
{{- if and $route.enabled (not $route.parentRefs) -}}
{{- $errors = append $errors (printf "gateway.%s.enabled needs a Gateway: set gateway.%s.parentRefs" $kind $kind) -}}
{{- end -}}
{{- end -}}
{{- $numbers := list $v.service.ports.grpc $v.service.ports.http -}}
{{- if $v.resp.enabled -}}
{{- $numbers = append $numbers $v.service.ports.resp -}}
{{- end -}}
{{- if ne (len $numbers) (len (uniq $numbers)) -}}
{{- $errors = append $errors "two of service.ports have the same number: give each its own" -}}
{{- end -}}
{{- if and (ne $v.service.type "LoadBalancer") (or $v.service.loadBalancerClass $v.service.loadBalancerSourceRanges) -}}
{{- $errors = append $errors (printf "service.loadBalancerClass and service.loadBalancerSourceRanges mean nothing for service.type %s: set it to LoadBalancer, or remove them" $v.service.type) -}}
{{- end -}}
{{- if and $v.service.externalTrafficPolicy (eq $v.service.type "ClusterIP") -}}
{{- $errors = append $errors "service.externalTrafficPolicy means nothing for service.type ClusterIP: remove it, or set the type to LoadBalancer or NodePort" -}}
{{- end -}}

{{/* Watching, and what keeps pods. */}}
{{- if and $v.monitoring.serviceMonitor.enabled $v.monitoring.podMonitor.enabled -}}
{{- $errors = append $errors "monitoring.serviceMonitor.enabled and monitoring.podMonitor.enabled are both set: every series would be there twice. Choose one" -}}
{{- end -}}
{{- with $v.podDisruptionBudget -}}
{{- if and .enabled (ne (toString .minAvailable) "") -}}
{{- $least := ternary $v.autoscaling.minReplicas $v.replicaCount $v.autoscaling.enabled -}}
{{- if or (eq (toString .minAvailable) "100%") (and (not (hasSuffix "%" (toString .minAvailable))) (ge (int .minAvailable) (int $least))) -}}
{{- $errors = append $errors (printf "podDisruptionBudget.minAvailable is %v of %d nodes: no machine with one could ever be drained. Lower it, or use podDisruptionBudget.maxUnavailable" .minAvailable (int $least)) -}}
{{- end -}}
{{- else if and .enabled (has (toString .maxUnavailable) (list "0" "0%")) -}}
{{- $errors = append $errors "podDisruptionBudget.maxUnavailable is 0: no machine with a node could ever be drained. Set it to 1, or podDisruptionBudget.enabled=false" -}}
{{- end -}}
{{- end -}}

{{/* Names that would come twice, which server-side apply refuses. */}}
{{- range list "POD_IP" "POD_NAME" "ALLOCATOR_NODE_NAME" "ALLOCATOR_LISTEN_GOSSIP" "ALLOCATOR_ADVERTISE_GRPC" "ALLOCATOR_ADVERTISE_HTTP" -}}
{{- if hasKey $v.extraEnv . -}}
{{- $errors = append $errors (printf "extraEnv.%s is the chart's own: remove it" .) -}}
{{- end -}}
{{- end -}}
{{- $labels := concat (keys (include "allocator.selector" . | fromYaml)) (list "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "app.kubernetes.io/component" "helm.sh/chart") -}}
{{- range $key := concat (keys $v.commonLabels) (keys $v.podLabels) (keys $v.service.labels) -}}
{{- if has $key $labels -}}
{{- $errors = append $errors (printf "the label %s is the chart's own: remove it from commonLabels, podLabels and service.labels" $key) -}}
{{- end -}}
{{- end -}}
{{- range keys $v.podLabels -}}
{{- if hasKey $v.commonLabels . -}}
{{- $errors = append $errors (printf "the label %s is in commonLabels and in podLabels: remove one" .) -}}
{{- end -}}
{{- end -}}
{{- $volumes := list "config" "etcd-tls" "etcd-auth" "gossip" "tls" "client-ca" "auth" -}}
{{- range $v.extraVolumes -}}
{{- if has .name $volumes -}}
{{- $errors = append $errors (printf "extraVolumes: the name %s is the chart's own: give it another" .name) -}}
{{- end -}}
{{- end -}}

{{- if $errors -}}
{{- fail (printf "\n\nThe values cannot work:\n- %s\n" (join "\n- " $errors)) -}}
{{- end -}}
{{- end -}}

{{/* The ports of etcd, as a list in JSON. */}}
{{- define "allocator.etcdPorts" -}}
{{- $ports := list -}}
{{- range include "allocator.endpoints" . | fromJsonArray -}}
{{- $ports = append $ports (regexFind "[0-9]+$" (trimSuffix "/" .) | int) -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}
