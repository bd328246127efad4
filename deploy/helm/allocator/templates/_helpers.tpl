{{/* Names. At most 47 characters: etcd adds 5 to a name, the revisions of a StatefulSet 11, and a label holds 63. */}}
{{- define "allocator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 47 | trimSuffix "-" -}}
{{- end -}}

{{- define "allocator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 47 | trimSuffix "-" -}}
{{- else if contains (include "allocator.name" .) .Release.Name -}}
{{- .Release.Name | trunc 47 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "allocator.name" .) | trunc 47 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "allocator.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "allocator.nodesService" -}}
{{ include "allocator.fullname" . }}-nodes
{{- end -}}

{{- define "allocator.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "allocator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Labels. Selectors have the first two and a component, and never change. */}}
{{- define "allocator.selector" -}}
app.kubernetes.io/name: {{ include "allocator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "allocator.labels" -}}
{{ include "allocator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: without a version, so that a new chart alone does not restart pods. */}}
{{- define "allocator.podLabels" -}}
{{ include "allocator.selector" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "allocator.image" -}}
{{- $image := .Values.image -}}
{{- $registry := default $image.registry (dig "imageRegistry" "" (default dict .Values.global)) -}}
{{- $name := ternary (printf "%s/%s" $registry $image.repository) $image.repository (ne $registry "") -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- define "allocator.pullSecrets" -}}
{{- with concat (dig "imagePullSecrets" list (default dict .Values.global)) (default list .Values.imagePullSecrets) }}
imagePullSecrets:
  {{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Fields that all pods share. */}}
{{- define "allocator.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- include "allocator.pullSecrets" . }}
{{- end -}}

{{/* URLs of etcd, as a JSON list. */}}
{{- define "allocator.endpoints" -}}
{{- if .Values.etcd.bundled.enabled -}}
{{- include "allocator.etcdEndpoints" . -}}
{{- else -}}
{{- .Values.etcd.endpoints | toJson -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the API's certificate; empty without TLS. */}}
{{- define "allocator.tlsSecret" -}}
{{- if .Values.tls.existingSecret -}}
{{- .Values.tls.existingSecret -}}
{{- else if .Values.tls.certManager.enabled -}}
{{- include "allocator.fullname" . }}-tls
{{- end -}}
{{- end -}}

{{/* Number of sids that the release may acquire: without a range, nodes use those of the space, at most 1,024. Those for workers are not among them. */}}
{{- define "allocator.range" -}}
{{- $ends := splitList "-" (.Values.sids.range | default .Values.init.sids | default (printf "0-%d" (sub (min 1024 (int (include "allocator.pool" .))) 1))) -}}
{{- $from := int (first $ends) -}}
{{- $to := int (last $ends) -}}
{{- $size := add1 (sub $to $from) -}}
{{- with .Values.sids.workers -}}
{{- $workers := splitList "-" . -}}
{{- $size = sub $size (max 0 (add1 (sub (min $to (int (last $workers))) (max $from (int (first $workers)))))) -}}
{{- end -}}
{{- $size -}}
{{- end -}}

{{/* Number of sids of the layout. */}}
{{- define "allocator.pool" -}}
{{- $layout := index (splitList "," .Values.space.layout) 0 -}}
{{- $bits := dict "scalable" 5 "js53" 5 "fleet" 10 "twitter" 10 "discord" 10 "leaf" 10 "instagram" 13 "sonyflake" 16 "baidu" 22 -}}
{{- $sid := 0 -}}
{{- if hasKey $bits $layout -}}
{{- $sid = get $bits $layout -}}
{{- else -}}
{{- $sid = index (splitList "/" $layout) (ternary 2 1 (contains "order=time-seq-sid" .Values.space.layout)) -}}
{{- end -}}
{{- $pool := 1 -}}
{{- range until (int $sid) -}}
{{- $pool = mul 2 $pool -}}
{{- end -}}
{{- $pool -}}
{{- end -}}

{{/* Time to stop: config.StopWithin, and a margin for the kubelet. */}}
{{- define "allocator.grace" -}}
{{- with .Values.shutdown -}}
{{- add .drainDelaySeconds 17 .marginSeconds -}}
{{- end -}}
{{- end -}}

{{/* Nine tenths of a memory limit in bytes, for GOMEMLIMIT; empty if the limit has another format. */}}
{{- define "allocator.memoryLimit" -}}
{{- $limit := ternary (printf "%.0f" (float64 .)) (toString .) (kindIs "float64" .) -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 -}}
{{- if regexMatch "^[0-9]+(k|M|G|Ki|Mi|Gi)?$" $limit -}}
{{- $number := regexFind "^[0-9]+" $limit -}}
{{- $unit := trimPrefix $number $limit -}}
{{- div (mul (int64 $number) (int64 (get $units $unit)) 9) 10 -}}
{{- end -}}
{{- end -}}

{{/* Volumes and mounts of the files in a node's settings; etcdOnly selects those for etcd. */}}
{{- define "allocator.secretVolumes" -}}
{{- $root := index . 0 -}}
{{- $etcdOnly := index . 1 -}}
{{- with $root.Values.etcd }}
{{- if or .tls.existingSecret .bundled.enabled }}
- name: etcd-tls
  secret:
    secretName: {{ ternary (printf "%s-client" (include "allocator.etcdName" $root)) .tls.existingSecret .bundled.enabled }}
    defaultMode: 0440
{{- end }}
{{- if and .auth.existingSecret (not .bundled.enabled) }}
- name: etcd-auth
  secret:
    secretName: {{ .auth.existingSecret }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- if not $etcdOnly }}
{{- with $root.Values.gossip.existingSecret }}
- name: gossip
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with include "allocator.tlsSecret" $root }}
- name: tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with $root.Values.tls.clientCA.existingSecret }}
- name: client-ca
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- with $root.Values.auth.existingSecret }}
- name: auth
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end }}
{{- end -}}

{{- define "allocator.secretMounts" -}}
{{- $root := index . 0 -}}
{{- range include "allocator.secretVolumes" . | fromYamlArray }}
- name: {{ .name }}
  mountPath: /etc/allocator/{{ .name }}
  readOnly: true
{{- end }}
{{- end -}}
