//! Environment variables of an injected container: those that stock stacks read. Values that the user set are kept.

use std::ops::RangeInclusive;

use crds::policy::HostPorts;
use crds::stock::{Demand, GLOBAL_SEGMENT_SIZE, LOCAL_BUFFER_SIZE, Set};
use k8s_openapi::api::core::v1::{Container, EnvVar};

use super::configuration::{self, File};
use super::target::Target;
use super::transport::StockTransport;
use crate::args::RdmaClass;
use crate::pod_parts::{env, env_from_field};

pub(super) const MASTER: &str = "MOONCAKE_MASTER";
pub(super) const METADATA_SERVER: &str = "MOONCAKE_TE_META_DATA_SERVER";
/// With which the keys of stock engines begin in a metadata service.
pub(super) const METADATA_CLUSTER: &str = "MC_METADATA_CLUSTER_ID";
pub(super) const LOCAL_HOSTNAME: &str = "MOONCAKE_LOCAL_HOSTNAME";
/// Transport of the store, and also of SGLang's prefill/decode engine. The store's file contains it, so it is set only
/// for a container whose SGLang does not read that file.
pub const PROTOCOL: &str = "MOONCAKE_PROTOCOL";
const HASH_SEED: &str = "PYTHONHASHSEED";
/// Its presence keeps every stock engine of a process on TCP. Injection does not set it: the store does not need it,
/// and the prefill/decode engine of the same process would lose RDMA.
pub const FORCE_TCP: &str = "MC_FORCE_TCP";

/// Its presence has a stock engine prefer the peer's device of the same name, where it would connect each
/// device to each: queue pairs are what runs out first.
pub(super) const DEVICE_AFFINITY: &str = "MC_ENABLE_DEST_DEVICE_AFFINITY";

/// Class of the packets that a stock engine sends; those that answer it have the class of its peer. Default: 0.
const TRAFFIC_CLASS: &str = "MC_IB_TC";
const SERVICE_LEVEL: &str = "MC_IB_SL";

/// From and to which port a stock engine listens, and the spelling that it had before, which a container may use.
pub(super) const FIRST_PORT: &str = "MC_MIN_RPC_PORT";
pub(super) const LAST_PORT: &str = "MC_MAX_RPC_PORT";
const OLDER_PORTS: [&str; 2] = ["MC_MIN_PRC_PORT", "MC_MAX_PRC_PORT"];

/// Milliseconds after which a stock client gives up a request to the master, or the connection for it; 30,000 if they are not
/// set. Nothing else ends a connection to a master whose node is lost. All calls of the master have the same deadline, and no
/// transfer of bytes has it.
const REQUEST_TIMEOUT: &str = "MC_RPC_TIMEOUT_MS";
const CONNECT_TIMEOUT: &str = "MC_RPC_CONNECT_TIMEOUT_MS";
/// Least and most for a request. The master answers or ends the connection of a call that waits for pool pods after 3 s. The
/// rest is for a request of megabytes, a lost packet, and calls before it. With more, clients would wait for a lost master for no
/// reason.
const REQUEST_MILLISECONDS: RangeInclusive<u32> = 5_000..=10_000;
/// Least and most for a connection, whose first packet is sent again after 1 s if it was lost.
const CONNECT_MILLISECONDS: RangeInclusive<u32> = 2_000..=3_000;

/// The deadlines of clients where another master takes over after the Lease has run out: a request that was on its way when the node
/// was lost fails before then, and a connection that was tried a little too early soon after.
fn deadlines(lease_seconds: u32) -> [(&'static str, u32); 2] {
    let within = |milliseconds: u32, limits: RangeInclusive<u32>| {
        milliseconds.clamp(*limits.start(), *limits.end())
    };
    let lease = lease_seconds.saturating_mul(1000);
    [
        (REQUEST_TIMEOUT, within(lease / 3 * 2, REQUEST_MILLISECONDS)),
        (CONNECT_TIMEOUT, within(lease / 5, CONNECT_MILLISECONDS)),
    ]
}

/// Value for stock engines: peers exchange descriptors by handshake.
pub(super) const P2P: &str = "P2PHANDSHAKE";

/// The user's own entry of that name. Variables that come by `envFrom` cannot be seen here.
pub(super) fn own<'a>(container: &'a Container, name: &str) -> Option<&'a EnvVar> {
    container.env.iter().flatten().find(|var| var.name == name)
}

/// Variables that the container lacks, in a fixed order. One that the user has set, to whatever
/// value, is not among them.
pub(super) fn missing(container: &Container, target: &Target, file: Option<&File>) -> Vec<EnvVar> {
    wanted(container, target, file)
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

fn wanted(container: &Container, target: &Target, file: Option<&File>) -> Vec<EnvVar> {
    let mut vars = vec![
        env(MASTER, &target.master),
        env(METADATA_SERVER, &target.metadata),
        env_from_field(LOCAL_HOSTNAME, "status.podIP"),
        // The pod contributes no memory. The default of SGLang is 4 GB.
        env(GLOBAL_SEGMENT_SIZE, "0"),
        env(LOCAL_BUFFER_SIZE, &target.local_buffer_size.to_string()),
        // Keys are made of Python hashes, which differ between processes unless seeded.
        env(HASH_SEED, "0"),
    ];
    if let Some(cluster) = &target.metadata_cluster {
        vars.push(env(METADATA_CLUSTER, cluster));
    }
    if let Some(seconds) = target.elected_for {
        vars.extend(deadlines(seconds).map(|(name, value)| env(name, &value.to_string())));
    }
    if configuration::without_file(container, file).is_some() {
        vars.push(env(PROTOCOL, target.transport.protocol()));
    }
    if target.transport == StockTransport::Rdma {
        vars.push(env(DEVICE_AFFINITY, "1"));
        let RdmaClass {
            traffic_class,
            service_level,
        } = target.rdma_class;
        let class = [
            (TRAFFIC_CLASS, traffic_class),
            (SERVICE_LEVEL, service_level),
        ];
        let others = class.into_iter().filter(|(_, value)| *value != 0);
        vars.extend(others.map(|(name, value)| env(name, &value.to_string())));
    }
    if let Some(HostPorts { first, last }) = target.host_ports
        && !OLDER_PORTS
            .iter()
            .any(|name| own(container, name).is_some())
    {
        vars.push(env(FIRST_PORT, &first.to_string()));
        vars.push(env(LAST_PORT, &last.to_string()));
    }
    if let Some(file) = file {
        let names = configuration::variables(container);
        vars.extend(names.map(|name| env(name, &file.path())));
    }
    vars
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_lease_gives_short_deadlines_that_an_honest_request_meets() {
        let of = |seconds| deadlines(seconds).map(|(_, milliseconds)| milliseconds);
        assert_eq!(of(15), [10_000, 3_000], "the default");
        assert_eq!(of(60), [10_000, 3_000]);
        assert_eq!(of(12), [8_000, 2_400]);
        assert_eq!(of(5), [5_000, 2_000]);
    }
}
