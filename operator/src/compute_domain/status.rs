//! Status of one cluster's ComputeDomain: the condition MnnvlReady and `status.mnnvl`. Pure.

use crds::cluster::MnnvlStatus;
use crds::text::first_clauses;
use crds::{ConditionType, NewCondition, Reason};

use crate::cache::compute_domains::objects::{Claim, Domain};
use crate::cache::compute_domains::snapshot::DomainSnapshot;
use crate::compute_domain::membership::NodeMembership;
use crate::compute_domain::request::{DomainRequest, Found};

/// Most entries in a message.
const MAX_LISTED: usize = 4;

/// The condition and status.mnnvl of a cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct DomainStatus {
    pub finding: NewCondition,
    pub status: MnnvlStatus,
}

/// Order of Reasons: the one to act on first.
const ORDER: [Reason; 12] = [
    Reason::ComputeDomainDeletedInUse,
    Reason::ChannelNotPermitted,
    Reason::ComputeDomainLabelConflict,
    Reason::NodeWithoutFabric,
    Reason::CliqueMismatch,
    Reason::ImexDomainFull,
    Reason::ComputeDomainPluginMissing,
    Reason::NodeNotReady,
    Reason::ChannelBusy,
    Reason::HostImexUnverified,
    Reason::ChannelNotInPod,
    Reason::ComputeDomainNotReady,
];

fn rank(reason: Reason) -> usize {
    let place = ORDER.iter().position(|known| *known == reason);
    place.unwrap_or(ORDER.len())
}

/// The status without ComputeDomains in the API server.
pub fn absent(request: &DomainRequest, why: &str) -> DomainStatus {
    DomainStatus {
        finding: not(Reason::ComputeDomainCrdMissing, why.to_owned()),
        status: MnnvlStatus {
            domain: request.domain.clone(),
            claim_template: None,
            clique: None,
            nodes: "0/0".to_owned(),
            ..request.known.clone()
        },
    }
}

/// The status from the memberships. `failed`: why the domain could not be created.
pub fn status(
    snapshot: &DomainSnapshot,
    request: &DomainRequest,
    memberships: &[NodeMembership],
    failed: Option<&str>,
) -> DomainStatus {
    let found = request.found(snapshot);
    let domain = match found {
        Found::Usable(domain) => Some(domain),
        Found::Foreign(_) | Found::Nothing => None,
    };
    let members = memberships
        .iter()
        .filter(|membership| membership.member)
        .count();
    DomainStatus {
        finding: failed.map_or_else(
            || finding(snapshot, request, found, memberships),
            |why| not(Reason::ApiFailed, why.to_owned()),
        ),
        status: MnnvlStatus {
            domain: request.domain.clone(),
            domain_uid: domain
                .map(|domain| domain.uid.clone())
                .or_else(|| request.known.domain_uid.clone()),
            claim_template: domain
                .filter(|domain| owns_template(snapshot, domain) == Some(true))
                .map(|domain| domain.template.clone()),
            clique: domain.and_then(|domain| request.clique(snapshot, domain)),
            nodes: format!("{members}/{}", memberships.len()),
            former_uids: request.former(snapshot),
        },
    }
}

fn not(reason: Reason, message: String) -> NewCondition {
    let message = format!(
        "{}. Remedy: {}",
        message.trim_end_matches('.'),
        reason.remedy()
    );
    let message = crds::condition::shorten(&message);
    NewCondition::new(ConditionType::MnnvlReady, false, reason, message)
}

/// Whether the template of the domain's name belongs to it; `None` if it does not exist.
fn owns_template(snapshot: &DomainSnapshot, domain: &Domain) -> Option<bool> {
    let template = snapshot.template(&domain.namespace, &domain.template)?;
    Some(template.domain.as_deref() == Some(domain.uid.as_str()))
}

/// True if the template name of the new domain is taken: its own template would never be created, and a
/// pod that uses the name would join another domain.
pub fn clashes(snapshot: &DomainSnapshot, request: &DomainRequest) -> bool {
    let template = snapshot.template(&request.namespace, &request.domain);
    // One that is being deleted belongs to the earlier domain of this name.
    template.is_some_and(|template| !template.leaving)
}

fn finding(
    snapshot: &DomainSnapshot,
    request: &DomainRequest,
    found: Found<'_>,
    memberships: &[NodeMembership],
) -> NewCondition {
    let domain = match found {
        Found::Usable(domain) => domain,
        Found::Foreign(domain) => {
            let message = format!(
                "ComputeDomain {} exists and does not belong to this cluster",
                domain.name
            );
            return not(Reason::ComputeDomainNameTaken, message);
        }
        Found::Nothing => return nothing(snapshot, request),
    };
    if domain.leaving {
        return leaving(snapshot, request, domain);
    }
    let template = owns_template(snapshot, domain);
    if template == Some(false) {
        let message = format!(
            "ResourceClaimTemplate {} does not belong to ComputeDomain {}",
            domain.template, domain.name
        );
        return not(Reason::TemplateNameClash, message);
    }
    let troubles = troubles(snapshot, request, domain, memberships);
    let ready = memberships.len() - memberships.iter().filter(|v| !v.member).count();
    if let Some((reason, _)) = troubles.first() {
        let message = format!(
            "{ready} of {} nodes are members; {}",
            memberships.len(),
            first_clauses(troubles.iter().map(|(_, words)| words), MAX_LISTED)
        );
        return not(*reason, message);
    }
    if memberships.is_empty() {
        return match template {
            None => not(
                Reason::Progressing,
                format!(
                    "ComputeDomain {} has no ResourceClaimTemplate {} yet; if it stays missing, check the \
                     driver's controller",
                    domain.name, domain.template
                ),
            ),
            Some(_) => not(
                Reason::ComputeDomainEmpty,
                format!("ComputeDomain {} has no member", domain.name),
            ),
        };
    }
    NewCondition::new(
        ConditionType::MnnvlReady,
        true,
        Reason::AsExpected,
        format!(
            "{ready} of {ready} nodes are members of ComputeDomain {}",
            domain.name
        ),
    )
}

/// The condition while the domain is being deleted.
fn leaving(snapshot: &DomainSnapshot, request: &DomainRequest, domain: &Domain) -> NewCondition {
    let name = &domain.name;
    match snapshot.claims_of(&domain.uid).next() {
        Some(_) => {
            let claims = describe(snapshot.claims_of(&domain.uid), &request.namespace);
            let message = format!("ComputeDomain {name} is being deleted while in use: {claims}");
            not(Reason::ComputeDomainDeletedInUse, message)
        }
        None => {
            let message = format!("ComputeDomain {name} is being deleted");
            not(Reason::Deleting, message)
        }
    }
}

/// Why nodes are no members, and why pods have no channel; the one to act on first comes first.
fn troubles(
    snapshot: &DomainSnapshot,
    request: &DomainRequest,
    domain: &Domain,
    memberships: &[NodeMembership],
) -> Vec<(Reason, String)> {
    let mut troubles: Vec<(Reason, String)> = memberships
        .iter()
        .filter(|membership| !membership.member)
        .map(|membership| {
            let NodeMembership {
                node,
                reason,
                message,
                ..
            } = membership;
            (*reason, format!("{node}: {reason}: {message}"))
        })
        .collect();
    troubles.extend(waiting(snapshot, request, domain));
    troubles.extend(
        memberships
            .iter()
            .filter(|membership| membership.member && !membership.without.is_empty())
            .map(|membership| {
                let pods = membership.without.join(", ");
                let words = format!("{}: pod {pods} holds no channel", membership.node);
                (Reason::ChannelNotInPod, words)
            }),
    );
    troubles.sort_by_key(|(reason, _)| rank(*reason));
    troubles
}

fn nothing(snapshot: &DomainSnapshot, request: &DomainRequest) -> NewCondition {
    let former = request.former(snapshot);
    let claims = || former.iter().flat_map(|uid| snapshot.claims_of(uid));
    if claims().next().is_some() {
        let message = format!(
            "ComputeDomain {} was deleted while in use: {}",
            request.domain,
            describe(claims(), &request.namespace)
        );
        return not(Reason::ComputeDomainDeletedInUse, message);
    }
    if request.create.is_none() {
        let message = format!(
            "ComputeDomain {} does not exist in namespace {}",
            request.domain, request.namespace
        );
        return not(Reason::ComputeDomainMissing, message);
    }
    if clashes(snapshot, request) {
        let message = format!(
            "ComputeDomain {} is not created: ResourceClaimTemplate {} exists and belongs to \
             another owner",
            request.domain, request.domain
        );
        return not(Reason::TemplateNameClash, message);
    }
    let message = format!("ComputeDomain {} is being created", request.domain);
    not(Reason::Progressing, message)
}

/// Claims of the domain that can have no channel now.
fn waiting(
    snapshot: &DomainSnapshot,
    request: &DomainRequest,
    domain: &Domain,
) -> Option<(Reason, String)> {
    let waiting: Vec<String> = snapshot
        .claims_of(&domain.uid)
        .filter(|claim| claim.node.is_none() && !claim.leaving)
        .filter(|claim| claim.namespace == request.namespace)
        .map(|claim| claim.describe(&request.namespace))
        .collect();
    if waiting.is_empty() {
        return None;
    }
    let words = first_clauses(&waiting, MAX_LISTED);
    let mut offered = snapshot.channels().peekable();
    if offered.peek().is_none() {
        let message = format!("no node offers a channel: {words}");
        return Some((Reason::ComputeDomainPluginMissing, message));
    }
    // If a channel is free, the scheduler can allocate it.
    offered
        .all(|node| snapshot.claims_on(node).next().is_some())
        .then(|| {
            let message = format!("the channel of every node is held by another claim: {words}");
            (Reason::ChannelBusy, message)
        })
}

fn describe<'a>(claims: impl Iterator<Item = &'a Claim>, to: &str) -> String {
    first_clauses(claims.map(|claim| claim.describe(to)), MAX_LISTED)
}

#[cfg(test)]
mod tests;
