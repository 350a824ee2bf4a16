//! The condition TransportsReady, and the transport of stock pods that the status states. Pure.

use std::collections::BTreeSet;

use crds::cluster::Transport;
use crds::text::first_clauses;
use crds::{ConditionStatus, ConditionType, NewCondition, Reason};

use super::{MAX_LISTED, describe};
use crate::cache::Claimable;
use crate::cluster::pool_pod::{PoolPodStatus, PoolService};
use crate::cluster::transport::{Facts, Fallback, Obstacle, Rdma, StoringNode};

/// Evaluates the decided transport and the one over which pool pods are served. Where the spec requires RDMA, the status
/// states no transport while no pool pod is served over it; where the transport is decided, agents and webhook read it there.
pub(super) fn evaluate(
    facts: &Facts,
    pods: &[PoolPodStatus],
    claimable: &Claimable,
) -> (Option<Transport>, NewCondition) {
    let transport = facts.decide();
    match (facts.required, transport) {
        (None, None) => {
            let message = "the transport is not decided yet: not every pool pod exists".to_owned();
            (None, not(Reason::Progressing, message))
        }
        (Some(Transport::Rdma), _) => {
            let condition = required_rdma(facts, pods, claimable);
            let ready = condition.state == ConditionStatus::True;
            (transport.filter(|_| ready), condition)
        }
        (None, Some(Transport::Rdma)) => (transport, decided_rdma(facts, pods)),
        (Some(Transport::Tcp), _) => (transport, tcp(pods, (Reason::AsExpected, String::new()))),
        (None, Some(Transport::Tcp)) => (transport, tcp(pods, why_tcp(facts))),
    }
}

/// The condition by which the operator remembers a fallback to TCP; `None` where there was none.
pub(super) fn rdma_usable(facts: &Facts) -> Option<NewCondition> {
    let kind = ConditionType::RdmaUsable;
    Some(match facts.next_fallback()? {
        Fallback::Unusable => {
            let message = format!(
                "the cluster has changed from RDMA to TCP, and TransportsReady has the cause. It returns when RDMA has \
                 been usable for {} s",
                facts.settling.as_secs()
            );
            NewCondition::new(kind, false, Reason::TransportDegraded, message)
        }
        Fallback::Unknown => {
            let message = format!(
                "the cluster has changed from RDMA to TCP, and RDMA is not known to be usable on {}. It returns when every storing \
                 node has proved RDMA for {} s",
                named(&facts.lacking(true)),
                facts.settling.as_secs()
            );
            NewCondition::new(
                kind,
                ConditionStatus::Unknown,
                Reason::TransportDegraded,
                message,
            )
        }
        Fallback::UsableSince(since) => {
            let at = facts.returns_at(since);
            let returns = match &facts.obstacle {
                _ if facts.paused => format!("after the pause, and not before {at}"),
                _ if facts.wanted() == Some(Transport::Rdma) => {
                    format!("at {at} if it stays so")
                }
                Some(Obstacle::Unknown) => {
                    format!("when pods are known to claim RDMA devices, and not before {at}")
                }
                _ => format!("when every pool pod exists, and not before {at}"),
            };
            let message = format!(
                "every storing node has proved RDMA again, and the cluster returns to it {returns}"
            );
            NewCondition::new(kind, true, Reason::Progressing, message)
        }
    })
}

fn ready(reason: Reason, message: String) -> NewCondition {
    NewCondition::new(ConditionType::TransportsReady, true, reason, message)
}

fn not(reason: Reason, message: String) -> NewCondition {
    NewCondition::new(ConditionType::TransportsReady, false, reason, message)
}

fn required_rdma(facts: &Facts, pods: &[PoolPodStatus], claimable: &Claimable) -> NewCondition {
    let lead = "the spec requires RDMA";
    if let Claimable::No(why) = claimable {
        let message = format!("{lead}, and injected pods are given no RDMA device: {why}");
        return not(Reason::NoUsableTransport, message);
    }
    let remedy = "To use TCP, set spec.transports.rdma to Prefer, spec.transports.tcp not to Forbid, and remove Pd from \
                  spec.usage";
    match served_over_rdma(pods, lead, remedy) {
        Ok(count) => match unequal_mtus(facts) {
            Some(why) => ready(Reason::MtuMismatch, use_rdma(count) + &why),
            None => ready(Reason::AsExpected, use_rdma(count)),
        },
        Err(condition) => condition,
    }
}

fn decided_rdma(facts: &Facts, pods: &[PoolPodStatus]) -> NewCondition {
    let mut rest = outlook(facts, Transport::Rdma);
    let lacking = facts.lacking(false);
    let remedy =
        "To use TCP at once, set spec.transports.rdma to Forbid and create the injected pods again";
    let count = match served_over_rdma(pods, "stock pods use RDMA", remedy) {
        Ok(count) => count,
        Err(mut condition) => {
            condition.message += &rest;
            return condition;
        }
    };
    let mtus = unequal_mtus(facts);
    let reason = match &mtus {
        _ if !(lacking.is_empty() && rest.is_empty()) => Reason::TransportDegraded,
        Some(_) => Reason::MtuMismatch,
        None => Reason::AsExpected,
    };
    if !lacking.is_empty() {
        rest = format!(", and it is no longer proved on {}{rest}", named(&lacking));
    }
    ready(reason, use_rdma(count) + &rest + &mtus.unwrap_or_default())
}

/// The nodes whose ports have another path MTU than those of other nodes. PortMtu compares the ports of one node.
fn unequal_mtus(facts: &Facts) -> Option<String> {
    let nodes = facts.unequal_mtus();
    let of = |(mtus, names): (&BTreeSet<u32>, &Vec<String>)| {
        let mtus: Vec<_> = mtus.iter().map(u32::to_string).collect();
        format!(
            "{} on {}",
            mtus.join(" and "),
            first_clauses(names, MAX_LISTED)
        )
    };
    let named: Vec<_> = nodes
        .iter()
        .map(|(mtus, names)| of((mtus, names)))
        .collect();
    (!named.is_empty()).then(|| {
        format!(
            ". The path MTU of the RDMA ports differs between nodes ({}), and transfers between stock engines and pool pods \
             with another one fail. Set one MTU on every node",
            named.join(", ")
        )
    })
}

fn use_rdma(count: usize) -> String {
    format!("stock pods use RDMA, over which {count} pool pods are served")
}

/// Returns the number of pool pods that are served over RDMA.
///
/// # Errors
/// The condition, where pool pods are served over TCP, or none over RDMA.
fn served_over_rdma(
    pods: &[PoolPodStatus],
    lead: &str,
    remedy: &str,
) -> Result<usize, NewCondition> {
    let over_tcp = served_over(pods, Transport::Tcp);
    if !over_tcp.is_empty() {
        let message = format!(
            "{lead}, and these pool pods are still served over TCP: {}. Their agents change that, if they are of release \
             0.2.0 or later",
            first_clauses(&over_tcp, MAX_LISTED)
        );
        return Err(not(Reason::Progressing, message));
    }
    let count = served_over(pods, Transport::Rdma).len();
    if count > 0 {
        return Ok(count);
    }
    let unproved = pods.iter().filter_map(|pod| match &pod.service {
        PoolService::NotServing { reason, message } if *reason == Reason::NoUsableTransport => {
            Some(describe(pod, *reason, message))
        }
        _ => None,
    });
    let unproved: Vec<_> = unproved.collect();
    Err(if unproved.is_empty() {
        let message = format!("{lead}, and no pool pod is served over it yet");
        not(Reason::Progressing, message)
    } else {
        let unproved = first_clauses(&unproved, MAX_LISTED);
        let message = format!("{lead}, and no pool pod is served over it: {unproved}. {remedy}");
        not(Reason::NoUsableTransport, message)
    })
}

fn served_over(pods: &[PoolPodStatus], wanted: Transport) -> Vec<String> {
    let serving = pods.iter().filter(
        |pod| matches!(pod.service, PoolService::Serving { transport, .. } if transport == wanted),
    );
    serving
        .map(|pod| format!("{} on {}", pod.pod, pod.node))
        .collect()
}

/// TCP, with the reason and the cause of it.
fn tcp(pods: &[PoolPodStatus], (reason, why): (Reason, String)) -> NewCondition {
    let over_rdma = served_over(pods, Transport::Rdma);
    if over_rdma.is_empty() {
        return ready(reason, format!("stock pods use TCP{why}"));
    }
    let message = format!(
        "stock pods use TCP{why}. These pool pods are still served over RDMA, and their agents change that: {}",
        first_clauses(&over_rdma, MAX_LISTED)
    );
    not(Reason::Progressing, message)
}

/// Why stock pods use TCP although the spec prefers RDMA.
fn why_tcp(facts: &Facts) -> (Reason, String) {
    let outlook = outlook(facts, Transport::Tcp);
    if let Some(Obstacle::Spec(why)) = facts.obstacle {
        return (Reason::AsExpected, format!(": {why}{outlook}"));
    }
    // An agent that is silent for a moment changes nothing here.
    let no_device = |node: &StoringNode| matches!(node.rdma, Rdma::NoDevice | Rdma::Unknown(_));
    if !facts.nodes.is_empty() && facts.nodes.iter().all(no_device) {
        let why = format!(": no storing node has reported a usable RDMA device{outlook}");
        return (Reason::AsExpected, why);
    }
    let mut causes = Vec::new();
    let lacking = facts.lacking(true);
    if !lacking.is_empty() {
        causes.push(format!("RDMA is not proved on {}", named(&lacking)));
    }
    match &facts.obstacle {
        Some(Obstacle::NoClaims(why)) => {
            causes.push(format!("injected pods are given no RDMA device: {why}"));
        }
        Some(Obstacle::Unknown) => {
            causes.push("it is not known yet whether pods can claim RDMA devices".to_owned());
        }
        Some(Obstacle::Spec(_)) | None => {}
    }
    if !causes.is_empty() {
        let why = format!(": {}{outlook}", causes.join("; "));
        return (Reason::TransportDegraded, why);
    }
    if facts.wanted() == Some(Transport::Rdma) {
        let why = format!(", although every storing node has proved RDMA{outlook}");
        return (Reason::TransportDegraded, why);
    }
    let why = format!(": not every pool pod exists{outlook}");
    (Reason::AsExpected, why)
}

/// For what a change to the wanted transport waits, and which injected pods have RDMA where TCP is decided.
fn outlook(facts: &Facts, decided: Transport) -> String {
    let pods = &facts.over_rdma;
    let mut text = String::new();
    if let Some(wanted) = facts.wanted().filter(|wanted| *wanted != decided) {
        if facts.paused {
            text += &format!(". This changes to {} after the pause", word(wanted));
        } else if !pods.is_empty() {
            text += &format!(
                ". This changes to {} when the last of {} injected pods with RDMA has ended: {}",
                word(wanted),
                pods.len(),
                first_clauses(pods, MAX_LISTED)
            );
        } else if let Some(at) = facts.settles_at() {
            text += &format!(
                ". This changes to {} at {at} if every proof is kept until then: after a change to TCP, RDMA has to be \
                 usable for {} s",
                word(wanted),
                facts.settling.as_secs()
            );
        }
    }
    if decided == Transport::Tcp && !pods.is_empty() {
        text += &format!(
            ". These injected pods have RDMA, and fail until they are created again: {}",
            first_clauses(pods, MAX_LISTED)
        );
    }
    text
}

fn word(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "TCP",
        Transport::Rdma => "RDMA",
    }
}

fn named(nodes: &[&StoringNode]) -> String {
    let named = nodes.iter().map(|node| match &node.rdma {
        Rdma::Proved => node.name.clone(),
        Rdma::NoDevice => format!("{} (no RDMA device)", node.name),
        Rdma::Unproved(why) | Rdma::Unknown(why) => format!("{} ({why})", node.name),
    });
    first_clauses(named, MAX_LISTED)
}

#[cfg(test)]
mod tests;
