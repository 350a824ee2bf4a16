//! Admission warnings about a second engine of a container, which moves KV cache between prefill and decode: the injected
//! variables that it reads as well, and the RDMA device that it lacks. Pure.

use crds::MooncakeCluster;
use crds::stock::flag;
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};

use super::claim::{self, Claim};
use super::environment::{DEVICE_AFFINITY, FIRST_PORT, LAST_PORT, PROTOCOL};
use super::inject::InjectionContext;
use super::selection::Selected;
use super::target::Target;
use super::{configuration, environment};

/// Injected variables that each stock engine of a process reads.
const SHARED: [&str; 3] = [DEVICE_AFFINITY, FIRST_PORT, LAST_PORT];

/// SGLang's flags: the mode, and the backend, which is Mooncake by default.
const MODE: &str = "--disaggregation-mode";
const BACKEND: &str = "--disaggregation-transfer-backend";
/// vLLM's connector for prefill/decode, in its JSON.
const CONNECTOR: &str = "MooncakeConnector";

/// Resources that are not RDMA devices.
const OTHER_RESOURCES: [&str; 5] = ["cpu", "memory", "ephemeral-storage", "hugepages-", "gpu"];

/// The warnings about a pod before its injection.
pub(super) fn advise(
    pod: &Pod,
    namespace: &str,
    cluster: Option<&MooncakeCluster>,
    context: &InjectionContext,
) -> Vec<String> {
    let Some(Selected {
        spec,
        request,
        target,
        containers,
    }) = Selected::of(pod, namespace, cluster)
    else {
        return Vec::new();
    };
    let transport = target.transport;
    let claim = claim::of(
        pod,
        spec,
        namespace,
        &request,
        transport,
        &context.claimable,
    );
    let target = Target {
        host_ports: context.host_ports,
        ..target
    };
    let containers = containers.into_iter();
    containers
        .flat_map(|container| {
            let file = configuration::file(container, &target);
            let added = environment::missing(container, &target, file.as_ref());
            let without_file = configuration::without_file(container, file.as_ref());
            let protocol = match without_file {
                Some(why) => injected(&added, &why),
                None => kept(container, target.transport.protocol()),
            };
            let engine = engine(container).map(|sign| {
                let shared = shared(&added, &sign);
                let device = matches!(claim, Claim::By(_)) || may_have_device(container);
                let lacks = (!device).then(|| lacks_device(&sign));
                shared.into_iter().chain(lacks)
            });
            protocol
                .into_iter()
                .chain(engine.into_iter().flatten())
                .map(|words| format!("container {}: {words}", container.name))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The words of a command line by which a container has an engine for prefill/decode that may use RDMA.
fn engine(container: &Container) -> Option<String> {
    let command = container.command.iter().flatten();
    let arguments = command.chain(container.args.iter().flatten());
    let quotes = ['"', '\''];
    let words: Vec<&str> = arguments
        .flat_map(|word| word.split_whitespace())
        .map(|word| word.trim_matches(quotes))
        .collect();
    let backend = flag(&words, BACKEND).map(|word| word.trim_matches(quotes));
    let mode = flag(&words, MODE).map(|word| word.trim_matches(quotes));
    if let Some(mode @ ("prefill" | "decode")) = mode
        && matches!(backend, None | Some("mooncake"))
    {
        return Some(format!("{MODE} {mode}"));
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut names = words.iter().flat_map(|word| word.split(|c| !is_part(c)));
    names
        .any(|name| name == CONNECTOR)
        .then(|| CONNECTOR.to_owned())
}

/// The user's transport, which the store does not use.
fn kept(container: &Container, transport: &str) -> Option<String> {
    let value = environment::literal(environment::own(container, PROTOCOL)?)?;
    (value != transport).then(|| {
        format!("{PROTOCOL}={value} remains for its other engines; its store uses {transport}")
    })
}

fn injected(added: &[EnvVar], why: &str) -> Option<String> {
    let set = assignment(added, PROTOCOL)?;
    Some(format!(
        "{set} is injected, because {why}. SGLang's prefill/decode engine reads it too: set {PROTOCOL} in the \
         container if that engine needs another transport"
    ))
}

fn shared(added: &[EnvVar], sign: &str) -> Option<String> {
    let set: Vec<String> = SHARED
        .iter()
        .filter_map(|name| assignment(added, name))
        .collect();
    (!set.is_empty()).then(|| {
        format!(
            "its prefill/decode engine ({sign}) reads the injected {} too: set these variables in the \
             container, or leave it out of the annotation {}",
            set.join(" "),
            crds::names::ANNOTATION_CONTAINERS
        )
    })
}

fn assignment(added: &[EnvVar], name: &str) -> Option<String> {
    let var = added.iter().find(|var| var.name == name)?;
    Some(format!("{name}={}", var.value.as_deref()?))
}

fn lacks_device(sign: &str) -> String {
    format!(
        "its prefill/decode engine ({sign}) has no RDMA device, so it uses TCP or NVLink: claim a device \
         (docs/devices.md), or ignore this if that is intended"
    )
}

/// A claim, a device plugin's resource or privilege may give the container a device.
fn may_have_device(container: &Container) -> bool {
    let security = container.security_context.as_ref();
    if security.and_then(|security| security.privileged) == Some(true) {
        return true;
    }
    container.resources.as_ref().is_some_and(|resources| {
        let mut limits = resources.limits.iter().flatten();
        let is_other = |name: &str| OTHER_RESOURCES.iter().any(|other| name.contains(other));
        resources.claims.as_ref().is_some_and(|of| !of.is_empty())
            || limits.any(|(name, _)| !is_other(name))
    })
}

#[cfg(test)]
mod tests {
    use crds::policy::HostPorts;
    use serde_json::{Value, json};

    use super::*;

    fn warnings(cluster: Value, change: Value, ports: Option<HostPorts>) -> Vec<String> {
        let mut pod = json!({
            "metadata": {"name": "a", "labels": {"mooncake.io/inject": "kv"}},
            "spec": {"containers": [{"name": "main"}]},
        });
        json_patch::merge(&mut pod["spec"]["containers"][0], &change);
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let cluster = MooncakeCluster::new("kv", serde_json::from_value(cluster).unwrap());
        let context = InjectionContext {
            claimable: crate::cache::Claimable::Yes,
            host_ports: ports,
            ..InjectionContext::default()
        };
        advise(&pod, "team", Some(&cluster), &context)
    }

    fn of_command(command: &str) -> Vec<String> {
        let words: Vec<&str> = command.split('|').collect();
        warnings(json!({}), json!({ "command": words }), None)
    }

    #[test]
    fn a_prefill_or_decode_engine_without_a_device_is_reported() {
        for command in [
            "python3|-m|sglang.launch_server|--disaggregation-mode|prefill",
            "sh|-c|exec sglang serve --disaggregation-mode=decode --tp 8",
            "sglang|--disaggregation-mode|decode|--disaggregation-transfer-backend|mooncake",
            r#"vllm|serve|m|--kv-transfer-config|{"kv_connector":"MooncakeConnector","kv_role":"kv_producer"}"#,
            r#"vllm|serve|--kv-transfer-config.kv_connector=MooncakeConnector"#,
        ] {
            let [words] = of_command(command).try_into().unwrap();
            assert!(words.contains("has no RDMA device"), "{command}: {words}");
        }
        for command in [
            "sglang|serve",
            "sglang|--disaggregation-mode|null",
            "sglang|--disaggregation-mode|prefill|--disaggregation-transfer-backend|nixl",
            "sglang|--disaggregation-mode|prefill|--disaggregation-transfer-backend=mooncake_tcp",
            r#"vllm|--kv-transfer-config|{"kv_connector":"MooncakeStoreConnector"}"#,
        ] {
            assert_eq!(of_command(command), [""; 0], "{command}");
        }
        let [words] = of_command("sglang|--disaggregation-mode|prefill")
            .try_into()
            .unwrap();
        assert_eq!(
            words,
            "container main: its prefill/decode engine (--disaggregation-mode prefill) has no RDMA device, so it \
             uses TCP or NVLink: claim a device (docs/devices.md), or ignore this if that is intended"
        );
    }

    #[test]
    fn a_container_that_may_have_a_device_is_not_reported() {
        let command = json!(["sglang", "--disaggregation-mode", "prefill"]);
        for (change, expected) in [
            (json!({"resources": {"limits": {"rdma/hca": "1"}}}), 0),
            (json!({"resources": {"claims": [{"name": "rail"}]}}), 0),
            (json!({"securityContext": {"privileged": true}}), 0),
            (
                json!({"resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "1", "memory": "1Gi"}}}),
                1,
            ),
        ] {
            let mut change = change;
            change["command"] = command.clone();
            let words = warnings(json!({}), change.clone(), None);
            assert_eq!(words.len(), expected, "{change}: {words:?}");
        }
    }

    #[test]
    fn the_injected_variables_that_a_prefill_engine_reads_are_named() {
        let command = json!({"command": ["sglang", "--disaggregation-mode", "prefill"]});
        let rdma = json!({"transports": {"rdma": "Require"}});
        let ports = HostPorts {
            first: 20_000,
            last: 20_100,
        };
        let [words] = warnings(rdma.clone(), command, Some(ports))
            .try_into()
            .unwrap();
        assert_eq!(
            words,
            "container main: its prefill/decode engine (--disaggregation-mode prefill) reads the injected \
             MC_ENABLE_DEST_DEVICE_AFFINITY=1 MC_MIN_RPC_PORT=20000 MC_MAX_RPC_PORT=20100 too: set these variables \
             in the container, or leave it out of the annotation mooncake.io/containers"
        );
        assert!(warnings(rdma, json!({}), Some(ports)).is_empty());
    }

    #[test]
    fn an_injected_protocol_is_reported_with_the_cause() {
        let own = json!({"env": [{"name": "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH", "value": "/etc/own.json"}]});
        let [words] = warnings(json!({}), own, None).try_into().unwrap();
        assert_eq!(
            words,
            "container main: MOONCAKE_PROTOCOL=tcp is injected, because SGLANG_HICACHE_MOONCAKE_CONFIG_PATH names \
             a file of its own. SGLang's prefill/decode engine reads it too: set MOONCAKE_PROTOCOL in the container \
             if that engine needs another transport"
        );
        let unseen = json!({"env": [{"name": "MOONCAKE_MASTER", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]});
        let [words] = warnings(json!({}), unseen, None).try_into().unwrap();
        assert!(
            words.contains("no configuration file can be injected"),
            "{words}"
        );
        let extra = |config: &str| {
            let flag = "--hicache-storage-backend-extra-config";
            warnings(json!({}), json!({"args": [flag, config]}), None)
        };
        for config in [r#"{"master_server_address": "a:1"}"#, "@/etc/extra.json"] {
            let [words] = extra(config).try_into().unwrap();
            assert!(
                words.contains("sets no protocol that is known here"),
                "{words}"
            );
        }
        for config in [
            r#"{"master_server_address": "a:1", "protocol": "rdma"}"#,
            r#"{"extra_backend_tag": "a"}"#,
        ] {
            assert_eq!(extra(config), [""; 0], "{config}");
        }
        let set = json!({"env": [
            {"name": "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH", "value": "/etc/own.json"},
            {"name": "MOONCAKE_PROTOCOL", "value": "efa"},
        ]});
        assert!(warnings(json!({}), set, None).is_empty());
    }

    #[test]
    fn a_transport_of_the_user_that_the_store_does_not_use_is_reported() {
        let set = |value: &str| json!({"env": [{"name": "MOONCAKE_PROTOCOL", "value": value}]});
        let [words] = warnings(json!({}), set("efa"), None).try_into().unwrap();
        assert_eq!(
            words,
            "container main: MOONCAKE_PROTOCOL=efa remains for its other engines; its store uses tcp"
        );
        assert!(warnings(json!({}), set("tcp"), None).is_empty());
    }
}
