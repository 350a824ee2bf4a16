//! The containers of a pod that injection configures: all, or those that its annotation lists. Pure.

use std::collections::BTreeSet;

use crds::{MooncakeCluster, Reason, names};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::request::{InjectionRequest, annotation};
use super::skipped::Skipped;
use super::target::Target;
use super::transport;
use crate::pod::GATE_CONTAINER;

/// Names of the listed containers; none where the pod has no list.
#[derive(Debug)]
pub(super) struct Selection<'a>(Option<BTreeSet<&'a str>>);

impl<'a> Selection<'a> {
    /// Reads the annotation.
    ///
    /// # Errors
    /// The list is empty or names a container that the pod does not have.
    pub(super) fn of(pod: &'a Pod, spec: &PodSpec) -> Result<Self, Skipped> {
        let Some(list) = annotation(pod, names::ANNOTATION_CONTAINERS) else {
            return Ok(Self(None));
        };
        let listed = list.split(',').map(str::trim);
        let listed: BTreeSet<&str> = listed.filter(|name| !name.is_empty()).collect();
        let init = spec.init_containers.iter().flatten();
        let existing: Vec<&str> = init
            .chain(&spec.containers)
            .map(|container| container.name.as_str())
            .filter(|name| *name != GATE_CONTAINER)
            .collect();
        let flaw = match listed.iter().find(|name| !existing.contains(name)) {
            Some(unknown) => format!("names `{unknown}`, which the pod does not have"),
            None if listed.is_empty() => "lists no container".to_owned(),
            None => return Ok(Self(Some(listed))),
        };
        Err(Skipped::new(
            Reason::NotInjected,
            format!(
                "annotation {} {flaw}: list containers of the pod ({}), or remove the annotation to have all \
                 configured",
                names::ANNOTATION_CONTAINERS,
                existing.join(", ")
            ),
        ))
    }

    /// Whether injection configures the container. It never configures the gate.
    pub(super) fn has(&self, container: &Container) -> bool {
        let name = container.name.as_str();
        let listed = self.0.as_ref().is_none_or(|listed| listed.contains(name));
        listed && name != GATE_CONTAINER
    }
}

/// An injected pod, as the advice about its containers needs it.
pub(super) struct Selected<'a> {
    pub(super) spec: &'a PodSpec,
    pub(super) request: InjectionRequest,
    pub(super) target: Target,
    /// The containers that injection configures.
    pub(super) containers: Vec<&'a Container>,
}

impl<'a> Selected<'a> {
    /// Reads a pod before its injection; `None` if it is not injected.
    pub(super) fn of(
        pod: &'a Pod,
        namespace: &str,
        cluster: Option<&MooncakeCluster>,
    ) -> Option<Self> {
        let request = InjectionRequest::of(pod, namespace).ok()??;
        let spec = pod.spec.as_ref()?;
        let selection = Selection::of(pod, spec).ok()?;
        let transport = transport::of(pod, spec, namespace, &request, cluster).ok()?;
        let all = spec
            .init_containers
            .iter()
            .flatten()
            .chain(&spec.containers);
        Some(Self {
            spec,
            target: Target::new(&request, cluster, transport),
            request,
            containers: all.filter(|container| selection.has(container)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(list: Option<&str>) -> Result<Vec<String>, String> {
        let mut pod: Pod = serde_yaml_ng::from_str(
            "{metadata: {annotations: {}}, spec: {initContainers: [{name: mooncake-gate}, {name: fetch}], \
             containers: [{name: server}, {name: proxy}]}}",
        )
        .unwrap();
        let value = list.map(|list| (names::ANNOTATION_CONTAINERS.to_owned(), list.to_owned()));
        pod.metadata.annotations = Some(value.into_iter().collect());
        let spec = pod.spec.as_ref().unwrap();
        let selection = Selection::of(&pod, spec).map_err(|skipped| skipped.to_string())?;
        let init = spec.init_containers.iter().flatten();
        let all = init.chain(&spec.containers);
        Ok(all
            .filter(|container| selection.has(container))
            .map(|container| container.name.clone())
            .collect())
    }

    #[test]
    fn without_a_list_all_containers_but_the_gate_are_configured() {
        assert_eq!(configured(None).unwrap(), ["fetch", "server", "proxy"]);
    }

    #[test]
    fn a_list_selects_containers_and_init_containers() {
        assert_eq!(
            configured(Some("server, fetch,")).unwrap(),
            ["fetch", "server"]
        );
    }

    #[test]
    fn a_list_with_an_unknown_name_or_without_a_name_is_an_error() {
        let error = configured(Some("server,sever")).unwrap_err();
        assert_eq!(
            error,
            "NotInjected: annotation mooncake.io/containers names `sever`, which the pod does not have: list \
             containers of the pod (fetch, server, proxy), or remove the annotation to have all configured"
        );
        let error = configured(Some("mooncake-gate")).unwrap_err();
        assert!(error.contains("names `mooncake-gate`"), "{error}");
        let error = configured(Some(" , ")).unwrap_err();
        assert!(error.contains("lists no container"), "{error}");
    }
}
