{{/*
Environment variables of a node. Each name occurs once, because server-side apply
refuses duplicates. POD_IP comes before those that refer to it. With TLS, other nodes
use a node's DNS name, because the certificate contains names. Browsers do not reach a
pod by its own address, so pages have no links to other pods.
*/}}
{{- define "allocator.env" -}}
{{- $pod := "$(POD_IP)" -}}
{{- if include "allocator.tlsSecret" . -}}
{{- $pod = printf "$(POD_NAME).%s.%s.svc.%s" (include "allocator.nodesService" .) (include "allocator.namespace" .) .Values.clusterDomain -}}
{{- else -}}
{{- $pod = "[$(POD_IP)]" -}}
{{- end -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: ALLOCATOR_NODE_NAME
  value: $(POD_NAME)
- name: ALLOCATOR_LISTEN_GOSSIP
  value: "[$(POD_IP)]:7946"
- name: ALLOCATOR_ADVERTISE_GRPC
  value: {{ printf "%s:9000" $pod | quote }}
- name: ALLOCATOR_ADVERTISE_HTTP
  value: {{ printf "%s:8080" $pod | quote }}
- name: ALLOCATOR_ADVERTISE_CONSOLE
  value: none
{{- $limit := dig "limits" "memory" "" .Values.resources }}
{{- if and $limit (not (hasKey (default dict .Values.extraEnv) "GOMEMLIMIT")) }}
- name: GOMEMLIMIT
  {{- with include "allocator.memoryLimit" $limit }}
  value: {{ . | quote }}
  {{- else }}
  valueFrom:
    resourceFieldRef:
      containerName: allocator
      resource: limits.memory
  {{- end }}
{{- end }}
{{- range $name, $value := .Values.extraEnv }}
- name: {{ $name }}
  {{- if kindIs "map" $value }}
  {{- toYaml $value | nindent 2 }}
  {{- else if kindIs "float64" $value }}
  value: {{ ternary (int64 $value | toString) (toString $value) (eq (float64 (int64 $value)) $value) | quote }}
  {{- else }}
  value: {{ $value | toString | quote }}
  {{- end }}
{{- end }}
{{- end -}}
