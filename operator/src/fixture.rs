//! Builders for tests.

use crds::MooncakeCluster;
use crds::cluster::MooncakeClusterSpec;

use crate::cluster::validate::{Settings, Valid, validate};

/// The operator's settings in every test.
pub(crate) fn settings() -> Settings {
    Settings {
        operator_namespace: "mooncake-system".to_owned(),
        pool_image: "localhost/mooncake-pool:dev".to_owned(),
        gate_image: "localhost/mooncake-gate:dev".to_owned(),
        master_image: "localhost/mooncake-stock:0.3.13".to_owned(),
        admitted_role: "mooncake-admitted".to_owned(),
        pool_priority_class: Some("mooncake-pool".to_owned()),
        guard_priority_class: Some("mooncake-guard".to_owned()),
        metrics_namespaces: vec!["monitoring".to_owned()],
        rdma_settling: crate::cluster::transport::SETTLING,
    }
}

/// Cluster `kv` in namespace `team` with this spec in YAML.
pub(crate) fn cluster(spec: &str) -> MooncakeCluster {
    let spec: MooncakeClusterSpec = serde_yaml_ng::from_str(spec).unwrap();
    let mut cluster = MooncakeCluster::new("kv", spec);
    cluster.metadata.namespace = Some("team".to_owned());
    cluster.metadata.uid = Some("c1".to_owned());
    cluster.metadata.generation = Some(1);
    cluster
}

/// The validated [`cluster`] of this spec.
pub(crate) fn valid(spec: &str) -> Valid {
    validate(&cluster(spec)).unwrap()
}
