//! The ComputeDomain that the operator makes. Pure.

use std::collections::BTreeMap;

use crds::cluster::Channels;
use crds::names;
use kube::api::DynamicObject;
use serde_json::json;

use crate::cluster::desired::{LABEL_MANAGED_BY, MANAGED_BY};
use crate::domain::Wanted;
use crate::domain::objects::compute_domains;

/// The object to stand. It has no owner reference: the garbage collector would delete it under the
/// pods that use it, and nothing in it protects them. [`crate::domain::retire`] waits for them.
pub fn compute_domain(wanted: &Wanted, channels: Channels) -> DynamicObject {
    let mut domain = DynamicObject::new(&wanted.domain, &compute_domains())
        .within(&wanted.namespace)
        .data(json!({ "spec": {
            // It decides only what the global status says, which nobody here reads.
            "numNodes": 0,
            "channel": {
                "allocationMode": channels.as_str(),
                "resourceClaimTemplate": { "name": wanted.domain },
            },
        }}));
    domain.metadata.labels = Some(BTreeMap::from([
        (names::LABEL_CLUSTER.to_owned(), wanted.cluster.clone()),
        (LABEL_MANAGED_BY.to_owned(), MANAGED_BY.to_owned()),
    ]));
    domain.metadata.annotations = Some(BTreeMap::from([(
        names::ANNOTATION_CLUSTER_UID.to_owned(),
        wanted.cluster_uid.clone(),
    )]));
    domain
}
