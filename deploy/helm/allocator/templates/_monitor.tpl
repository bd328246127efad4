{{/* How to scrape a node: (list $ monitor). */}}
{{- define "allocator.endpoint" -}}
{{- $root := index . 0 -}}
{{- $monitor := index . 1 -}}
- port: admin
  path: /metrics
  interval: {{ $monitor.interval }}
  scrapeTimeout: {{ $monitor.scrapeTimeout }}
  {{- if $root.Values.tls.admin }}
  scheme: https
  tlsConfig:
    ca:
      secret:
        name: {{ include "allocator.tlsSecret" $root }}
        key: {{ $root.Values.tls.caKey }}
    serverName: {{ include "allocator.fullname" $root }}.{{ include "allocator.namespace" $root }}.svc
  {{- end }}
  {{- with $monitor.relabelings }}
  relabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $monitor.metricRelabelings }}
  metricRelabelings:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
