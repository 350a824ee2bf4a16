//! All checks, one file each, named after the check.

use crate::Check;

pub(crate) mod clock;
pub(crate) mod container_runtime;
pub(crate) mod device_file;
pub(crate) mod device_readable;
pub(crate) mod device_responsive;
pub(crate) mod dns;
pub(crate) mod engine_processor_time;
pub mod ephemeral_ports;
pub(crate) mod fixes;
pub(crate) mod gpu_direct;
pub(crate) mod gpu_direct_proof;
pub(crate) mod gpu_rail;
pub(crate) mod gpu_responsive;
pub mod host_readable;
pub(crate) mod hugepages;
pub(crate) mod hugepages_per_numa;
pub(crate) mod imex;
pub(crate) mod kernel_log;
pub mod map_count;
pub(crate) mod memlock;
pub(crate) mod memory_key;
pub(crate) mod modules;
pub(crate) mod mr_limit;
pub(crate) mod partition_key;
pub(crate) mod pci_link;
pub(crate) mod peer_reachable;
pub(crate) mod pod_devices;
pub(crate) mod pod_engine;
pub(crate) mod pod_hcas;
pub(crate) mod pod_host_ports;
pub(crate) mod pod_hugepages;
pub(crate) mod pod_memlock;
pub(crate) mod pod_ports;
pub(crate) mod pod_rdma_settings;
pub(crate) mod port_active;
pub mod port_gid;
pub(crate) mod port_mtu;
pub(crate) mod qp_growth;
pub(crate) mod qp_headroom;
pub(crate) mod rdma_cm;
pub(crate) mod rdma_loopback;
pub(crate) mod rdma_namespaces;
pub(crate) mod time_wait;

/// Every check, in the order of [`crds::CheckId`].
pub const CATALOG: &[Check] = &[
    clock::CHECK,
    container_runtime::CHECK,
    device_file::CHECK,
    device_readable::CHECK,
    device_responsive::CHECK,
    dns::CHECK,
    engine_processor_time::CHECK,
    ephemeral_ports::CHECK,
    fixes::CHECK,
    gpu_direct::CHECK,
    gpu_direct_proof::CHECK,
    gpu_rail::CHECK,
    gpu_responsive::CHECK,
    host_readable::CHECK,
    hugepages::CHECK,
    hugepages_per_numa::CHECK,
    imex::CHECK,
    kernel_log::CHECK,
    map_count::CHECK,
    memlock::CHECK,
    memory_key::CHECK,
    modules::CHECK,
    mr_limit::CHECK,
    partition_key::CHECK,
    pci_link::CHECK,
    peer_reachable::CHECK,
    pod_devices::CHECK,
    pod_engine::CHECK,
    pod_hcas::CHECK,
    pod_host_ports::CHECK,
    pod_hugepages::CHECK,
    pod_memlock::CHECK,
    pod_ports::CHECK,
    pod_rdma_settings::CHECK,
    port_active::CHECK,
    port_gid::CHECK,
    port_mtu::CHECK,
    qp_growth::CHECK,
    qp_headroom::CHECK,
    rdma_cm::CHECK,
    rdma_loopback::CHECK,
    rdma_namespaces::CHECK,
    time_wait::CHECK,
];
