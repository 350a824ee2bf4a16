//! What one cluster is told of its ComputeDomain: the condition MnnvlReady and `status.mnnvl`. Pure.

use crds::cluster::MnnvlStatus;
use crds::{ConditionType, Finding, Reason};

use crate::domain::membership::Verdict;
use crate::domain::objects::{Claim, Domain};
use crate::domain::wanted::{Found, Wanted};
use crate::domain::world::World;

/// Nodes that a message tells of at most.
const TOLD: usize = 4;

/// What is to stand in the cluster's status.
#[derive(Clone, Debug, PartialEq)]
pub struct Outlook {
    pub finding: Finding,
    pub status: MnnvlStatus,
}

/// What a person must act on first comes first.
const ORDER: [Reason; 12] = [
    Reason::DomainDeletedInUse,
    Reason::ChannelNotPermitted,
    Reason::DomainLabelConflict,
    Reason::NodeWithoutFabric,
    Reason::CliqueMismatch,
    Reason::DomainFull,
    Reason::ComputeDomainPluginMissing,
    Reason::NodeNotReady,
    Reason::ChannelBusy,
    Reason::HostImexUnproven,
    Reason::ChannelNotInPod,
    Reason::DomainNotReady,
];

fn rank(reason: Reason) -> usize {
    let place = ORDER.iter().position(|known| *known == reason);
    place.unwrap_or(ORDER.len())
}

/// The outlook where the API server has no ComputeDomains.
pub fn absent(wanted: &Wanted, why: &str) -> Outlook {
    Outlook {
        finding: not(Reason::ComputeDomainCrdMissing, why.to_owned()),
        status: MnnvlStatus {
            domain: wanted.domain.clone(),
            claim_template: None,
            clique: None,
            nodes: "0/0".to_owned(),
            ..wanted.known.clone()
        },
    }
}

/// The outlook of a cluster whose nodes were judged. `failed`: why the domain could not be made.
pub fn outlook(
    world: &World,
    wanted: &Wanted,
    verdicts: &[Verdict],
    failed: Option<&str>,
) -> Outlook {
    let found = wanted.found(world);
    let domain = match found {
        Found::There(domain) => Some(domain),
        Found::Foreign(_) | Found::Nothing => None,
    };
    let members = verdicts.iter().filter(|verdict| verdict.member).count();
    Outlook {
        finding: failed.map_or_else(
            || finding(world, wanted, found, verdicts),
            |why| not(Reason::ApiFailed, why.to_owned()),
        ),
        status: MnnvlStatus {
            domain: wanted.domain.clone(),
            domain_uid: domain
                .map(|domain| domain.uid.clone())
                .or_else(|| wanted.known.domain_uid.clone()),
            claim_template: domain
                .filter(|domain| owns_template(world, domain) == Some(true))
                .map(|domain| domain.template.clone()),
            clique: domain.and_then(|domain| wanted.clique(world, domain)),
            nodes: format!("{members}/{}", verdicts.len()),
            former_uids: wanted.former(world),
        },
    }
}

fn not(reason: Reason, message: String) -> Finding {
    let message = format!(
        "{}. Remedy: {}",
        message.trim_end_matches('.'),
        reason.remedy()
    );
    let message = crds::condition::shorten(&message);
    Finding::new(ConditionType::MnnvlReady, false, reason, message)
}

/// Whether the template of the domain's name is its own; `None` where there is none.
fn owns_template(world: &World, domain: &Domain) -> Option<bool> {
    let template = world.template(&domain.namespace, &domain.template)?;
    Some(template.domain.as_deref() == Some(domain.uid.as_str()))
}

/// True where the name of the domain that is to be made is taken: its template would never come, and
/// a pod that uses the name would join another domain.
pub fn clashes(world: &World, wanted: &Wanted) -> bool {
    let template = world.template(&wanted.namespace, &wanted.domain);
    // One that lies in deletion goes with the earlier domain of this name.
    template.is_some_and(|template| !template.leaving)
}

fn finding(world: &World, wanted: &Wanted, found: Found<'_>, verdicts: &[Verdict]) -> Finding {
    let domain = match found {
        Found::There(domain) => domain,
        Found::Foreign(domain) => {
            let message = format!(
                "ComputeDomain {} exists and was not made for this cluster",
                domain.name
            );
            return not(Reason::ComputeDomainNameTaken, message);
        }
        Found::Nothing => return nothing(world, wanted),
    };
    if domain.leaving {
        return match world.claims_of(&domain.uid).next() {
            Some(_) => not(
                Reason::DomainDeletedInUse,
                format!(
                    "ComputeDomain {} is being deleted while in use: {}",
                    domain.name,
                    told(world.claims_of(&domain.uid), &wanted.namespace)
                ),
            ),
            None => not(
                Reason::Deleting,
                format!("ComputeDomain {} is being deleted", domain.name),
            ),
        };
    }
    let template = owns_template(world, domain);
    if template == Some(false) {
        let message = format!(
            "ResourceClaimTemplate {} is not that of ComputeDomain {}",
            domain.template, domain.name
        );
        return not(Reason::TemplateNameClash, message);
    }
    let mut troubles: Vec<(Reason, String)> = verdicts
        .iter()
        .filter(|verdict| !verdict.member)
        .map(|verdict| {
            let Verdict {
                node,
                reason,
                message,
                ..
            } = verdict;
            (*reason, format!("{node}: {reason}: {message}"))
        })
        .collect();
    troubles.extend(waiting(world, wanted, domain));
    troubles.extend(
        verdicts
            .iter()
            .filter(|verdict| verdict.member && !verdict.without.is_empty())
            .map(|verdict| {
                let pods = verdict.without.join(", ");
                let words = format!("{}: pod {pods} holds no channel", verdict.node);
                (Reason::ChannelNotInPod, words)
            }),
    );
    troubles.sort_by_key(|(reason, _)| rank(*reason));
    let ready = verdicts.len() - verdicts.iter().filter(|v| !v.member).count();
    if let Some((reason, _)) = troubles.first() {
        let words: Vec<String> = troubles.iter().map(|(_, words)| words.clone()).collect();
        let message = format!(
            "{ready} of {} nodes are members; {}",
            verdicts.len(),
            listed(&words)
        );
        return not(*reason, message);
    }
    if verdicts.is_empty() {
        return match template {
            None => not(
                Reason::Progressing,
                format!(
                    "ComputeDomain {} has no ResourceClaimTemplate {} yet; if none comes, see the \
                     driver's controller",
                    domain.name, domain.template
                ),
            ),
            Some(_) => not(
                Reason::DomainEmpty,
                format!("ComputeDomain {} has no member", domain.name),
            ),
        };
    }
    Finding::new(
        ConditionType::MnnvlReady,
        true,
        Reason::AsExpected,
        format!(
            "{ready} of {ready} nodes are members of ComputeDomain {}",
            domain.name
        ),
    )
}

fn nothing(world: &World, wanted: &Wanted) -> Finding {
    let former = wanted.former(world);
    let claims = || former.iter().flat_map(|uid| world.claims_of(uid));
    if claims().next().is_some() {
        let message = format!(
            "ComputeDomain {} was deleted while in use: {}",
            wanted.domain,
            told(claims(), &wanted.namespace)
        );
        return not(Reason::DomainDeletedInUse, message);
    }
    if wanted.create.is_none() {
        let message = format!(
            "there is no ComputeDomain {} in namespace {}",
            wanted.domain, wanted.namespace
        );
        return not(Reason::ComputeDomainMissing, message);
    }
    if clashes(world, wanted) {
        let message = format!(
            "ComputeDomain {} is not made: ResourceClaimTemplate {} is there and belongs to \
             somebody else",
            wanted.domain, wanted.domain
        );
        return not(Reason::TemplateNameClash, message);
    }
    let message = format!("ComputeDomain {} is being made", wanted.domain);
    not(Reason::Progressing, message)
}

/// Claims of the domain that can have no channel now.
fn waiting(world: &World, wanted: &Wanted, domain: &Domain) -> Option<(Reason, String)> {
    let waiting: Vec<String> = world
        .claims_of(&domain.uid)
        .filter(|claim| claim.node.is_none() && !claim.leaving)
        .filter(|claim| claim.namespace == wanted.namespace)
        .map(|claim| claim.told(&wanted.namespace))
        .collect();
    if waiting.is_empty() {
        return None;
    }
    let words = listed(&waiting);
    let mut offered = world.channels().peekable();
    if offered.peek().is_none() {
        let message = format!("no node offers a channel: {words}");
        return Some((Reason::ComputeDomainPluginMissing, message));
    }
    // Where one is free, it is the scheduler's turn.
    offered
        .all(|node| world.claims_on(node).next().is_some())
        .then(|| {
            let message = format!("the channel of every node is held by another claim: {words}");
            (Reason::ChannelBusy, message)
        })
}

fn told<'a>(claims: impl Iterator<Item = &'a Claim>, to: &str) -> String {
    listed(&claims.map(|claim| claim.told(to)).collect::<Vec<_>>())
}

fn listed(words: &[String]) -> String {
    let mut told = words[..words.len().min(TOLD)].join("; ");
    if words.len() > TOLD {
        told.push_str(&format!("; and {} more", words.len() - TOLD));
    }
    told
}

#[cfg(test)]
mod tests;
