//! Environment variables of an injected container: what stock stacks read, and what the user
//! already said.

use crds::policy::HostPorts;
use crds::stock::{CONFIG_PATH, Demand, GLOBAL_SEGMENT_SIZE, LOCAL_BUFFER_SIZE, Set};
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector};

use super::target::{StockTransport, Target};

pub(super) const MASTER: &str = "MOONCAKE_MASTER";
pub(super) const METADATA_SERVER: &str = "MOONCAKE_TE_META_DATA_SERVER";
pub(super) const LOCAL_HOSTNAME: &str = "MOONCAKE_LOCAL_HOSTNAME";
/// Tells a stock stack which transport to use.
pub const PROTOCOL: &str = "MOONCAKE_PROTOCOL";
const HASH_SEED: &str = "PYTHONHASHSEED";
/// Its presence keeps a stock engine on TCP.
pub const FORCE_TCP: &str = "MC_FORCE_TCP";

/// Its presence has a stock engine prefer the peer's device of the same name, where it would connect each
/// device to each: queue pairs are what runs out first.
const DEVICE_AFFINITY: &str = "MC_ENABLE_DEST_DEVICE_AFFINITY";

/// From and to which port a stock engine listens, and the spelling that it had before, which a container may use.
const FIRST_PORT: &str = "MC_MIN_RPC_PORT";
const LAST_PORT: &str = "MC_MAX_RPC_PORT";
const OLDER_PORTS: [&str; 2] = ["MC_MIN_PRC_PORT", "MC_MAX_PRC_PORT"];

/// The word by which stock engines know that peers ask each other for descriptors.
pub(super) const P2P: &str = "P2PHANDSHAKE";

/// The user's own entry of that name. Variables that come by `envFrom` cannot be seen here.
pub(super) fn own<'a>(container: &'a Container, name: &str) -> Option<&'a EnvVar> {
    container.env.iter().flatten().find(|var| var.name == name)
}

/// Variables that the container lacks, in a fixed order. One that the user has set, to whatever
/// value, is not among them.
pub(super) fn missing(
    container: &Container,
    target: &Target,
    config_path: Option<String>,
) -> Vec<EnvVar> {
    wanted(container, target, config_path)
        .into_iter()
        .filter(|var| own(container, &var.name).is_none())
        .collect()
}

/// What the container's engine will take, by the variables that it has once it is injected; none where one
/// of them is the kubelet's to know.
pub(super) fn demand(container: &Container, target: &Target) -> Option<Demand> {
    let ours = wanted(container, target, None);
    let variable = |name: &str| {
        let given = || ours.iter().find(|var| var.name == name);
        match own(container, name).or_else(given) {
            None => Set::No,
            Some(var) => literal(var).map_or(Set::Unseen, Set::To),
        }
    };
    let command = container.command.iter().flatten();
    let words = command.chain(container.args.iter().flatten());
    Demand::of(variable, words.map(String::as_str))
}

/// The value, if it is known before the kubelet runs.
pub(super) fn literal(var: &EnvVar) -> Option<&str> {
    if var.value_from.is_some() {
        return None;
    }
    let value = var.value.as_deref().unwrap_or_default();
    (!value.contains("$(")).then_some(value)
}

fn wanted(container: &Container, target: &Target, config_path: Option<String>) -> Vec<EnvVar> {
    let mut vars = vec![
        plain(MASTER, &target.master),
        plain(METADATA_SERVER, P2P),
        from_field(LOCAL_HOSTNAME, "status.podIP"),
        plain(PROTOCOL, target.transport.protocol()),
        // The pod lends no memory of its own: SGLang would take 4 GB.
        plain(GLOBAL_SEGMENT_SIZE, "0"),
        plain(LOCAL_BUFFER_SIZE, &target.local_buffer_size.to_string()),
        // Keys are made of Python hashes, which differ between processes unless seeded.
        plain(HASH_SEED, "0"),
    ];
    if forces_tcp(container, target) {
        vars.push(plain(FORCE_TCP, "1"));
    }
    if target.transport == StockTransport::Rdma {
        vars.push(plain(DEVICE_AFFINITY, "1"));
    }
    if let Some(HostPorts { first, last }) = target.host_ports
        && !OLDER_PORTS
            .iter()
            .any(|name| own(container, name).is_some())
    {
        vars.push(plain(FIRST_PORT, &first.to_string()));
        vars.push(plain(LAST_PORT, &last.to_string()));
    }
    if let Some(path) = config_path {
        vars.push(plain(CONFIG_PATH, &path));
    }
    vars
}

/// Stock engines take RDMA where they see an HCA, whatever MOONCAKE_PROTOCOL says; the presence of
/// the variable keeps them on TCP, any value at all. So it stays away where the user asks for
/// another protocol.
fn forces_tcp(container: &Container, target: &Target) -> bool {
    let protocol = own(container, PROTOCOL);
    target.transport == StockTransport::Tcp
        && protocol.is_none_or(|var| var.value.as_deref() == Some(StockTransport::Tcp.protocol()))
}

/// A variable with a literal value.
pub(super) fn plain(name: &str, value: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: Some(value.to_owned()),
        ..EnvVar::default()
    }
}

/// A variable that the kubelet fills from the pod.
pub(super) fn from_field(name: &str, path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: Some("v1".to_owned()),
                field_path: path.to_owned(),
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}
