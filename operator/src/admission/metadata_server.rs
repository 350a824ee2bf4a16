//! Admission warnings about a container that names a metadata service of its own: its engines do not find the segments of the
//! pools there. Pure.

use crds::MooncakeCluster;
use k8s_openapi::api::core::v1::{Container, Pod};
use proto::metadata::{ServiceAddress, is_local};

use super::environment::{METADATA_CLUSTER, METADATA_SERVER, P2P, literal, own};
use super::selection::Selected;
use super::target::Target;

/// The warnings about a pod before its injection.
pub(super) fn advise(pod: &Pod, namespace: &str, cluster: Option<&MooncakeCluster>) -> Vec<String> {
    let Some(Selected {
        target, containers, ..
    }) = Selected::of(pod, namespace, cluster)
    else {
        return Vec::new();
    };
    let containers = containers.into_iter();
    containers
        .flat_map(|container| {
            let found = server(container, &target).into_iter();
            found
                .chain(keys(container, &target))
                .map(|words| format!("container {}: {words}", container.name))
        })
        .collect()
}

/// A service that is not the one of the MooncakeCluster.
fn server(container: &Container, target: &Target) -> Option<String> {
    let value = literal(own(container, METADATA_SERVER)?)?;
    let wanted = &target.metadata;
    if value == wanted {
        return None;
    }
    let cause = match local_host(value) {
        Some(host) => format!("{host} is the pod itself, in each pod another one"),
        None if value == P2P => "the pools use a metadata service".to_owned(),
        None => "it is another service than that of the pools".to_owned(),
    };
    Some(format!(
        "{METADATA_SERVER} is {value:?}: {cause}. Its engines do not find the pool pods of MooncakeCluster {}. \
         Remove the variable: injection sets it to {wanted:?}",
        target.cluster
    ))
}

/// Keys of another set than that of the MooncakeCluster.
fn keys(container: &Container, target: &Target) -> Option<String> {
    let wanted = target.metadata_cluster.as_deref();
    let value = literal(own(container, METADATA_CLUSTER)?)?;
    let same = |wanted: &str| value.trim_end_matches('/') == wanted.trim_end_matches('/');
    // Without a service it has no effect.
    if target.metadata == P2P || same(wanted.unwrap_or_default()) {
        return None;
    }
    let remedy = match wanted {
        Some(wanted) => format!("Remove the variable: injection sets it to {wanted:?}"),
        None => "Remove the variable".to_owned(),
    };
    Some(format!(
        "{METADATA_CLUSTER} is {value:?}: its engines use other keys than the pool pods of MooncakeCluster {}. {remedy}",
        target.cluster
    ))
}

/// Returns the first host of a service that each pod takes for itself. Without a scheme it is an etcd.
fn local_host(value: &str) -> Option<String> {
    let parsed = match value.contains("://") {
        true => ServiceAddress::parse(value),
        false => ServiceAddress::parse(&format!("etcd://{value}")),
    };
    let hosts = match parsed.ok()? {
        ServiceAddress::Http(url) => vec![url.host],
        ServiceAddress::Etcd(endpoints) => endpoints.into_iter().map(|of| of.host).collect(),
    };
    hosts.into_iter().find(|host| is_local(host))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ETCD: &str = "etcd://etcd.infra.svc:2379";

    /// The warnings about a container with these variables, in a cluster with this `spec.metadata`.
    fn warnings(metadata: Value, variables: &[(&str, &str)]) -> Vec<String> {
        let environment: Vec<Value> = variables
            .iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        let pod = json!({
            "metadata": {"name": "a", "labels": {"mooncake.io/inject": "kv"}},
            "spec": {"containers": [{"name": "main", "env": environment}]},
        });
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let spec = json!({ "metadata": metadata });
        let cluster = MooncakeCluster::new("kv", serde_json::from_value(spec).unwrap());
        advise(&pod, "team", Some(&cluster))
    }

    fn etcd() -> Value {
        json!({"type": "Etcd", "endpoints": ["etcd.infra.svc:2379"]})
    }

    #[test]
    fn a_service_on_loopback_is_named_with_what_to_do() {
        for (value, host) in [
            ("http://127.0.0.1:8080/metadata", "127.0.0.1"),
            ("http://localhost:8080/metadata", "localhost"),
            ("http://[::1]:8080/metadata", "::1"),
            ("etcd://10.0.0.1:2379,0.0.0.0:2379", "0.0.0.0"),
            ("localhost:2379", "localhost"),
        ] {
            for metadata in [json!({}), json!({"type": "HTTP"}), etcd()] {
                let [words] = warnings(metadata, &[(METADATA_SERVER, value)])
                    .try_into()
                    .unwrap();
                let named = format!(
                    "container main: MOONCAKE_TE_META_DATA_SERVER is {value:?}: {host} is the pod itself"
                );
                assert!(words.starts_with(&named), "{words}");
                assert!(words.contains("Remove the variable"), "{words}");
            }
        }
    }

    #[test]
    fn another_service_than_that_of_the_cluster_is_named_with_the_right_one() {
        let own = "http://kv-master.team.svc:8080/metadata";
        let http = || json!({"type": "HTTP"});
        for (metadata, value, wanted) in [
            (http(), "http://10.0.0.1:8080/metadata", own),
            (http(), P2P, own),
            (etcd(), "https://etcd.infra.svc:2379", ETCD),
            (json!({}), own, P2P),
        ] {
            let [words] = warnings(metadata, &[(METADATA_SERVER, value)])
                .try_into()
                .unwrap();
            let end = format!("injection sets it to {wanted:?}");
            assert!(words.ends_with(&end), "{words}");
        }
        for (metadata, same) in [(http(), own), (etcd(), ETCD), (json!({}), P2P)] {
            assert!(warnings(metadata.clone(), &[(METADATA_SERVER, same)]).is_empty());
            assert!(warnings(metadata.clone(), &[]).is_empty());
            // The kubelet knows its value.
            let unseen = &[(METADATA_SERVER, "http://$(HOST)/metadata")];
            assert!(warnings(metadata, unseen).is_empty());
        }
    }

    #[test]
    fn keys_of_another_cluster_are_named() {
        let other = &[(METADATA_CLUSTER, "team/other")];
        let [words] = warnings(etcd(), other).try_into().unwrap();
        assert!(
            words.contains("injection sets it to \"team/kv\""),
            "{words}"
        );
        let [words] = warnings(json!({"type": "HTTP"}), other).try_into().unwrap();
        assert!(words.ends_with("Remove the variable"), "{words}");
        assert!(warnings(json!({}), other).is_empty());
        for same in ["team/kv", "team/kv/"] {
            assert!(warnings(etcd(), &[(METADATA_CLUSTER, same)]).is_empty());
        }
        assert!(warnings(json!({"type": "HTTP"}), &[(METADATA_CLUSTER, "")]).is_empty());
    }
}
