//! The ComputeDomain that the operator creates. Pure.

use std::collections::BTreeMap;

use crds::cluster::Channels;
use crds::names;
use kube::api::DynamicObject;
use serde_json::json;

use crate::apply::{LABEL_MANAGED_BY, MANAGED_BY};
use crate::cache::compute_domains::objects::compute_domains;
use crate::compute_domain::DomainRequest;

/// The desired object. It has no owner reference: the garbage collector would delete it under the
/// pods that use it, and nothing in it protects them. [`crate::compute_domain::retire`] waits for them.
pub fn compute_domain(request: &DomainRequest, channels: Channels) -> DynamicObject {
    let mut domain = DynamicObject::new(&request.domain, &compute_domains())
        .within(&request.namespace)
        .data(json!({ "spec": {
            // It affects only the global status, which is not read.
            "numNodes": 0,
            "channel": {
                "allocationMode": channels.as_str(),
                "resourceClaimTemplate": { "name": request.domain },
            },
        }}));
    domain.metadata.labels = Some(BTreeMap::from([
        (names::LABEL_CLUSTER.to_owned(), request.cluster.clone()),
        (LABEL_MANAGED_BY.to_owned(), MANAGED_BY.to_owned()),
    ]));
    domain.metadata.annotations = Some(BTreeMap::from([(
        names::ANNOTATION_CLUSTER_UID.to_owned(),
        request.cluster_uid.clone(),
    )]));
    domain
}
