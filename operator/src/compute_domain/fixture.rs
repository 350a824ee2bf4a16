//! Builders for tests.

use crds::MooncakeCluster;

use crate::cache::compute_domains::objects::{Claim, Domain, Holder};
use crate::compute_domain::request::DomainRequest;
use crate::fixture;

/// Domain `name` in namespace `team`.
pub(crate) fn domain(name: &str, uid: &str) -> Domain {
    Domain {
        namespace: "team".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        template: format!("{name}-channel"),
        leaving: false,
        made_for: None,
        listed: Vec::new(),
    }
}

/// A claim of namespace `team` that pod `NAME-pod` holds.
pub(crate) fn claim(name: &str, domain: &str, node: Option<&str>) -> Claim {
    Claim {
        domain: domain.to_owned(),
        namespace: "team".to_owned(),
        name: name.to_owned(),
        node: node.map(str::to_owned),
        holders: vec![Holder {
            name: format!("{name}-pod"),
            uid: format!("{name}-uid"),
        }],
        leaving: false,
    }
}

/// What cluster `kv` of namespace `team` wants with this `spec.mnnvl`.
pub(crate) fn domain_request(mnnvl: &str) -> DomainRequest {
    let cluster: MooncakeCluster = fixture::cluster(&format!("{{mnnvl: {{{mnnvl}}}}}"));
    DomainRequest::of(&cluster).unwrap()
}
