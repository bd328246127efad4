{{/* The chart's own etcd: names, addresses and what its pods share. */}}
{{- define "allocator.etcdName" -}}
{{ include "allocator.fullname" . }}-etcd
{{- end -}}

{{/* With the suffix of a StatefulSet's revision, this is 63 characters at most. */}}
{{- define "allocator.etcdSnapshotsName" -}}
{{ include "allocator.fullname" . | trunc 37 | trimSuffix "-" }}-etcd-snapshots
{{- end -}}

{{/* The names of CronJobs have 52 characters at most. */}}
{{- define "allocator.etcdCertificatesName" -}}
{{ include "allocator.fullname" . | trunc 32 | trimSuffix "-" }}-etcd-certs
{{- end -}}

{{/* The user of the nodes: the name in their certificate, and that of the role. */}}
{{- define "allocator.etcdUser" -}}
allocator-{{ .Values.space.name }}
{{- end -}}

{{/* The names of the members' pods, as a JSON list. */}}
{{- define "allocator.etcdPods" -}}
{{- $pods := list -}}
{{- range $i := until (int .Values.etcd.bundled.members) -}}
{{- $pods = append $pods (printf "%s-%d" (include "allocator.etcdName" $) $i) -}}
{{- end -}}
{{- $pods | toJson -}}
{{- end -}}

{{/* What follows the name of a member's pod in its DNS name. */}}
{{- define "allocator.etcdDomain" -}}
{{ include "allocator.etcdName" . }}-peers.{{ include "allocator.namespace" . }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{- define "allocator.etcdEndpoints" -}}
{{- $urls := list -}}
{{- range include "allocator.etcdPods" . | fromJsonArray -}}
{{- $urls = append $urls (printf "https://%s.%s:2379" . (include "allocator.etcdDomain" $)) -}}
{{- end -}}
{{- $urls | toJson -}}
{{- end -}}

{{/* All names in the members' certificate: of five members, so that it stays the same when some are added. */}}
{{- define "allocator.etcdNames" -}}
{{- $name := include "allocator.etcdName" . -}}
{{- $namespace := include "allocator.namespace" . -}}
{{- $names := list "localhost" -}}
{{- range $i := until 5 -}}
{{- $names = append $names (printf "%s-%d.%s" $name $i (include "allocator.etcdDomain" $)) -}}
{{- end -}}
{{- range list $name (include "allocator.etcdSnapshotsName" .) -}}
{{- $names = concat $names (list (printf "%s.%s.svc" . $namespace) (printf "%s.%s.svc.%s" . $namespace $.Values.clusterDomain)) -}}
{{- end -}}
{{- $names | toJson -}}
{{- end -}}

{{/* A size such as 1Gi in bytes. */}}
{{- define "allocator.bytes" -}}
{{- $units := dict "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- mul (regexFind "^[0-9]+" . | int64) (get $units (regexFind "[MGT]i?$" .) | int64) -}}
{{- end -}}

{{- define "allocator.etcdLabels" -}}
{{- $root := index . 0 -}}
{{ include "allocator.labels" $root }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Certificates of the pods that manage etcd. */}}
{{- define "allocator.etcdTLSVolumes" -}}
{{- range list "server" "root" }}
- name: {{ . }}
  secret:
    secretName: {{ include "allocator.etcdName" $ }}-{{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{- define "allocator.etcdTLSMounts" -}}
{{- range list "server" "root" }}
- name: {{ . }}
  mountPath: /etc/etcd/{{ . }}
  readOnly: true
{{- end }}
{{- end -}}

{{/* So that "allocator etcd" in these pods needs no flags; nodes of this space log what it does. */}}
{{- define "allocator.etcdEnv" -}}
- name: ALLOCATOR_SPACE
  value: {{ .Values.space.name | quote }}
- name: ALLOCATOR_ROOT
  value: {{ .Values.space.root | quote }}
- name: ALLOCATOR_ETCD_ENDPOINTS
  value: {{ include "allocator.etcdEndpoints" . | fromJsonArray | join "," }}
{{- range $name, $file := dict "CA" "ca.crt" "CERT" "tls.crt" "KEY" "tls.key" }}
- name: ALLOCATOR_ETCD_TLS_{{ $name }}
  value: /etc/etcd/root/{{ $file }}
{{- end }}
{{- end -}}

{{/* The kubelet has no certificate; a pod of etcd serves these to everyone. */}}
{{- define "allocator.etcdProbes" -}}
livenessProbe:
  httpGet:
    path: /livez
    port: report
    scheme: HTTPS
  periodSeconds: 10
  failureThreshold: 6
  timeoutSeconds: 5
readinessProbe:
  httpGet:
    path: /readyz
    port: report
    scheme: HTTPS
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{/* The pod that makes Secrets: (list $ whether it runs before the release). */}}
{{- define "allocator.etcdSecretsPod" -}}
{{- $root := index . 0 -}}
{{- $hook := index . 1 -}}
{{- with $root -}}
metadata:
  labels:
    {{- include "allocator.podLabels" . | nindent 4 }}
    app.kubernetes.io/component: etcd-certificates
spec:
  {{- include "allocator.pod" . | nindent 2 }}
  restartPolicy: OnFailure
  serviceAccountName: {{ include "allocator.etcdCertificatesName" . }}{{ if $hook }}-hook{{ end }}
  containers:
    - name: certificates
      image: {{ include "allocator.image" . }}
      imagePullPolicy: {{ .Values.image.pullPolicy }}
      args:
        - etcd-pod
        - secrets
        - --name={{ include "allocator.etcdName" . }}
        - --user={{ include "allocator.etcdUser" . }}
        - --dns={{ include "allocator.etcdNames" . | fromJsonArray | join "," }}
      securityContext:
        {{- toYaml .Values.securityContext | nindent 8 }}
      {{- with .Values.init.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        - name: account
          mountPath: /var/run/secrets/kubernetes.io/serviceaccount
          readOnly: true
  volumes:
    # The only pods with a token: it may read and write the Secrets of etcd.
    - name: account
      projected:
        defaultMode: 0440
        sources:
          - serviceAccountToken:
              path: token
              expirationSeconds: 600
          - configMap:
              name: kube-root-ca.crt
              items:
                - key: ca.crt
                  path: ca.crt
          - downwardAPI:
              items:
                - path: namespace
                  fieldRef:
                    fieldPath: metadata.namespace
{{- end -}}
{{- end -}}
