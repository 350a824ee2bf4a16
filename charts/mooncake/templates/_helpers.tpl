{{/* Labels of every object. */}}
{{- define "mooncake.labels" -}}
app.kubernetes.io/name: mooncake
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Selector of the pods of a component; immutable in a Deployment. */}}
{{- define "mooncake.selector" -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
mooncake.io/component: {{ .component }}
{{- end }}

{{/* An image reference; without one the rendering fails. Takes a list of the reference and its name. */}}
{{- define "mooncake.image" -}}
{{- $name := index . 1 -}}
{{- required (printf "images.%s is not set. No image of this project is published: run `make images REGISTRY=registry.example/mooncake` with your registry, which builds and pushes the images and writes images.yaml, then add `--values images.yaml` to this command (docs/install.md)" $name) (index . 0) -}}
{{- end }}

{{- define "mooncake.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* 60 MiB for the agent, 132 MiB for socket buffers of the kernel, 2 MiB of page tables per GiB. */}}
{{- define "mooncake.agentMemory" -}}
{{ add 192 (mul 2 (int .Values.agent.basePageGiB)) }}Mi
{{- end }}

{{/* The same, and 512 MiB for the program that probes a GPU by CUDA. */}}
{{- define "mooncake.agentMemoryLimit" -}}
{{ add 704 (mul 2 (int .Values.agent.basePageGiB)) }}Mi
{{- end }}

{{/* Ingress rule for readers of metrics. */}}
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

{{/* Selector of the namespaces whose pods may be injected. */}}
{{- define "mooncake.injectedNamespaces" -}}
matchExpressions:
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values:
      - kube-system
      - {{ .Release.Namespace }}
      {{- range .Values.injection.excludedNamespaces }}
      - {{ . }}
      {{- end }}
{{- end }}
