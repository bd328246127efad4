{{/*
The node's settings: those that the chart's values define, merged with values.config,
which has other keys by its schema. etcdOnly leaves out settings whose files are not
mounted in the Job that initializes the space.
*/}}
{{- define "allocator.config" -}}
{{- $root := index . 0 -}}
{{- $etcdOnly := index . 1 -}}
{{- with $root.Values -}}
{{- $etcd := dict "endpoints" (include "allocator.endpoints" $root | fromJsonArray) -}}
{{- if .etcd.bundled.enabled -}}
{{- $_ := set $etcd "tls" (dict "ca" "/etc/allocator/etcd-tls/ca.crt" "cert" "/etc/allocator/etcd-tls/tls.crt" "key" "/etc/allocator/etcd-tls/tls.key") -}}
{{- else -}}
{{- if .etcd.tls.existingSecret -}}
{{- $tls := dict "ca" (printf "/etc/allocator/etcd-tls/%s" .etcd.tls.caKey) -}}
{{- if .etcd.tls.keyKey -}}
{{- $_ := set $tls "cert" (printf "/etc/allocator/etcd-tls/%s" .etcd.tls.certKey) -}}
{{- $_ := set $tls "key" (printf "/etc/allocator/etcd-tls/%s" .etcd.tls.keyKey) -}}
{{- end -}}
{{- $_ := set $etcd "tls" $tls -}}
{{- end -}}
{{- if .etcd.auth.username -}}
{{- $_ := set $etcd "username" .etcd.auth.username -}}
{{- $_ := set $etcd "password-file" (printf "/etc/allocator/etcd-auth/%s" .etcd.auth.passwordKey) -}}
{{- end -}}
{{- end -}}
{{- $config := dict "space" .space.name "root" .space.root "layout" .space.layout "etcd" $etcd "log" (dict "level" .log.level "format" .log.format) -}}
{{- with .space.epoch -}}
{{- $_ := set $config "epoch" (toString .) -}}
{{- end -}}
{{- if not $etcdOnly -}}
{{- $listen := dict "grpc" ":9000" "http" ":8080" "admin" ":7947" -}}
{{- if .resp.enabled -}}
{{- $_ := set $listen "resp" ":6380" -}}
{{- end -}}
{{- if not (or (include "allocator.tlsSecret" $root) .auth.existingSecret) -}}
{{- $_ := set $listen "insecure" true -}}
{{- end -}}
{{- $_ := set $config "listen" $listen -}}
{{- if .gossip.existingSecret -}}
{{- $_ := set $config "gossip" (dict "key-file" (printf "/etc/allocator/gossip/%s" .gossip.key)) -}}
{{- else if .gossip.insecure -}}
{{- $_ := set $config "gossip" (dict "insecure" true) -}}
{{- end -}}
{{- if include "allocator.tlsSecret" $root -}}
{{- $tls := dict "cert" (printf "/etc/allocator/tls/%s" .tls.certKey) "key" (printf "/etc/allocator/tls/%s" .tls.keyKey) -}}
{{- if .tls.clientCA.existingSecret -}}
{{- $_ := set $tls "client-ca" (printf "/etc/allocator/client-ca/%s" .tls.clientCA.key) -}}
{{- end -}}
{{- if .tls.admin -}}
{{- $_ := set $tls "admin" true -}}
{{- end -}}
{{- $_ := set $config "tls" $tls -}}
{{- end -}}
{{- $auth := dict "open-admin" .auth.openAdmin -}}
{{- if .auth.existingSecret -}}
{{- $auth = merge $auth (dict "token-file" (printf "/etc/allocator/auth/%s" .auth.key)) -}}
{{- end -}}
{{- $_ := set $config "auth" $auth -}}
{{- with include "allocator.hosts" $root | fromJsonArray -}}
{{- $_ := set $config "http" (dict "hosts" .) -}}
{{- end -}}
{{- with .sids.range -}}
{{- $_ := set $config "sid-range" . -}}
{{- end -}}
{{- with .sids.workers -}}
{{- $_ := set $config "worker" (dict "sid-range" .) -}}
{{- end -}}
{{- if and (not .autoscaling.enabled) (not (dig "cluster" "expect" 0 (default dict .config))) -}}
{{- $_ := set $config "cluster" (dict "expect" (int .replicaCount)) -}}
{{- end -}}
{{- $_ := set $config "drain" (dict "delay" (printf "%ds" (int .shutdown.drainDelaySeconds))) -}}
{{- end -}}
{{- $mine := deepCopy (default dict .config) -}}
{{- if $etcdOnly -}}
{{- $mine = pick $mine "lease" "issue" "worker" -}}
{{- end -}}
{{- toYaml (merge $config $mine) -}}
{{- end -}}
{{- end -}}

{{/*
The names in the Host header of HTTP requests, as a JSON list. With TLS or tokens the
API allows any name, so none is set. A route without host names may have any of its Gateway.
*/}}
{{- define "allocator.hosts" -}}
{{- $hosts := list -}}
{{- if not (or (include "allocator.tlsSecret" .) .Values.auth.existingSecret) -}}
{{- $hosts = list (printf "%s.%s" (include "allocator.fullname" .) (include "allocator.namespace" .)) (printf ".%s" .Values.clusterDomain) -}}
{{- if .Values.ingress.enabled -}}
{{- $hosts = concat $hosts .Values.ingress.hosts -}}
{{- end -}}
{{- if .Values.gateway.httpRoute.enabled -}}
{{- $hosts = concat $hosts (.Values.gateway.httpRoute.hostnames | default (list "*")) -}}
{{- end -}}
{{- end -}}
{{- $all := list -}}
{{- range concat $hosts (dig "http" "hosts" list (default dict .Values.config)) -}}
{{- $all = append $all (ternary . (trimPrefix "*" .) (eq . "*")) -}}
{{- end -}}
{{- $all | uniq | toJson -}}
{{- end -}}
