{{/* Ports for clients: (list $ numbers). */}}
{{- define "allocator.clientPorts" -}}
{{- $root := index . 0 -}}
{{- $ports := index . 1 -}}
{{- $secure := include "allocator.tlsSecret" $root -}}
- name: grpc
  port: {{ $ports.grpc }}
  targetPort: grpc
  protocol: TCP
  appProtocol: {{ default (ternary "https" "kubernetes.io/h2c" (ne $secure "")) $root.Values.service.grpcAppProtocol }}
- name: http
  port: {{ $ports.http }}
  targetPort: http
  protocol: TCP
  appProtocol: {{ ternary "https" "http" (ne $secure "") }}
{{- if $root.Values.resp.enabled }}
- name: resp
  port: {{ $ports.resp }}
  targetPort: resp
  protocol: TCP
  appProtocol: redis
{{- end }}
{{- end -}}
