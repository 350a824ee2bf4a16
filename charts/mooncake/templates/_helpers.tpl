{{/* Labels of every object. */}}
{{- define "mooncake.labels" -}}
app.kubernetes.io/name: mooncake
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* What selects the pods of a component; a Deployment can never change it. */}}
{{- define "mooncake.selector" -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
mooncake.io/component: {{ .component }}
{{- end }}

{{- define "mooncake.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* 60 MiB of its own, 132 MiB for the kernel's socket buffers, 2 MiB of page tables a GiB. */}}
{{- define "mooncake.agentMemory" -}}
{{ add 192 (mul 2 (int .Values.agent.basePageGiB)) }}Mi
{{- end }}

{{/* The same, and what the program takes for seconds that asks a GPU by CUDA, on nodes that have one. */}}
{{- define "mooncake.agentMemoryLimit" -}}
{{ add 704 (mul 2 (int .Values.agent.basePageGiB)) }}Mi
{{- end }}

{{/* An ingress rule for those who may read metrics. */}}
{{- define "mooncake.scrapers" -}}
{{- if .Values.metricsNamespaces -}}
- ports:
    - {port: metrics}
  from:
    - namespaceSelector:
        matchExpressions:
          - {key: kubernetes.io/metadata.name, operator: In, values: {{ toJson .Values.metricsNamespaces }}}
{{- end }}
{{- end }}
