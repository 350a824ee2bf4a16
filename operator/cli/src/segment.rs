//! `segment NAME`: who serves the segment that a stock client names in an error, or what became of its owner. Pure.

use std::net::{IpAddr, SocketAddr};

use crds::node::{PoolAssignment, PoolReport, PoolState};
use crds::{MooncakeNode, Reason, names};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use mooncake_operator::cluster::pool_pod::current_report;
use mooncake_operator::pod::{is_component, is_over};
use serde::Serialize;

use crate::age::age;
use crate::read_error::ReadError;
use crate::renderer::{Cell, Renderer, Style, cells};
use crate::status::without_remedy;

/// Least similarity (Jaro-Winkler) of a name that is listed; 1 is equal.
const SIMILARITY: f64 = 0.85;
/// Most names that are listed.
const SIMILAR_LIMIT: usize = 3;

/// A name and the objects that show its owner.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// A server name `IP:PORT`, or the name of a segment in the master.
    pub name: String,
    pub nodes: Vec<MooncakeNode>,
    /// Pods with the address of the name in their status. Completed ones have lost it.
    pub holders: Vec<Pod>,
    pub read_errors: Vec<ReadError>,
}

/// What is known of the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum State {
    Served,
    /// A pool pod has the name and does not serve, or its agent does not report.
    NotServed,
    /// A pool pod has the address and serves another port.
    OtherPort,
    /// A pod that is no pool pod has the address.
    OtherPod,
    /// No pod has the address, and no pool pod the name.
    NoOwner,
    /// The objects that show it could not be read.
    Unknown,
}

/// A pool pod and a name of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    pub name: String,
    pub namespace: String,
    pub pod: String,
    pub node: String,
    /// Absent if the operator does not assign the pod any more.
    pub cluster: Option<String>,
    pub state: String,
}

/// The report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Segment {
    pub name: String,
    pub state: State,
    /// The pool pod that has the name or its address.
    pub owner: Option<Owner>,
    /// Absent when there is no problem.
    pub reason: Option<String>,
    pub message: String,
    pub remedy: Option<&'static str>,
    pub docs: Option<String>,
    /// Names of pool pods, the most similar first.
    pub similar: Vec<Owner>,
    pub read_errors: Vec<ReadError>,
}

/// A pool pod in a MooncakeNode.
struct Candidate<'a> {
    node: &'a MooncakeNode,
    report: &'a PoolReport,
    assignment: Option<&'a PoolAssignment>,
}

impl Candidate<'_> {
    fn names(&self) -> impl Iterator<Item = &str> {
        let endpoint = Some(self.report.endpoint.as_str()).filter(|name| !name.is_empty());
        endpoint
            .into_iter()
            .chain(self.report.segments.iter().map(String::as_str))
    }

    fn address(&self) -> Option<IpAddr> {
        Some(self.report.endpoint.parse::<SocketAddr>().ok()?.ip())
    }

    fn owner(&self, name: &str) -> Owner {
        Owner {
            name: name.to_owned(),
            namespace: self.report.namespace.clone(),
            pod: self.report.pod_name.clone(),
            node: self.node.name_any(),
            cluster: self.assignment.map(|entry| entry.cluster.clone()),
            state: self.report.state.to_string(),
        }
    }

    fn title(&self) -> String {
        let PoolReport {
            namespace,
            pod_name,
            ..
        } = self.report;
        let node = self.node.name_any();
        format!("pool pod {namespace}/{pod_name} on node {node}")
    }
}

/// The address in a name `IP:PORT`; `None` for other names.
pub fn address(name: &str) -> Option<IpAddr> {
    let socket = name.parse::<SocketAddr>().ok()?;
    Some(socket.ip().to_canonical())
}

/// Computes the report.
pub fn segment(inputs: Inputs, now: Timestamp) -> Segment {
    let Inputs {
        name,
        nodes,
        holders,
        read_errors,
    } = inputs;
    let candidates = candidates(&nodes);
    let owner = candidates
        .iter()
        .find(|one| one.names().any(|own| own == name));
    if let Some(owner) = owner {
        return Segment {
            owner: Some(owner.owner(&name)),
            read_errors,
            ..of_owner(&name, owner)
        };
    }
    let unknown = Segment {
        reason: Some(Reason::SegmentUnknown.to_string()),
        remedy: Some(Reason::SegmentUnknown.remedy()),
        docs: Some(Reason::SegmentUnknown.docs_anchor()),
        similar: similar(&name, &candidates),
        ..Segment::new(&name, State::NoOwner, String::new())
    };
    let address = address(&name);
    let neighbour = address.and_then(|address| {
        let mut others = candidates.iter();
        others.find(|one| one.address() == Some(address))
    });
    let found = if let Some(other) = neighbour {
        Segment {
            state: State::OtherPort,
            owner: Some(other.owner(&other.report.endpoint)),
            message: format!(
                "{} has the address and serves {}: the name is of an earlier pool pod or process",
                other.title(),
                other.report.endpoint
            ),
            ..unknown
        }
    } else if let Some(error) = read_errors.first() {
        Segment {
            state: State::Unknown,
            reason: None,
            remedy: None,
            docs: None,
            message: format!(
                "the owner is unknown, because {} could not be read",
                error.resource.0
            ),
            ..unknown
        }
    } else if let Some(pod) = holders.iter().find(|pod| !is_over(pod)) {
        Segment {
            state: State::OtherPod,
            message: of_holder(pod, now),
            ..unknown
        }
    } else {
        let who = match address {
            Some(address) => format!("no pod has the address {address}, and no pool pod the name"),
            None => "no pool pod has a segment of this name".to_owned(),
        };
        Segment {
            message: format!("{who}: its owner has ended, or it never existed"),
            ..unknown
        }
    };
    Segment {
        read_errors,
        ..found
    }
}

fn candidates<'a>(nodes: &'a [MooncakeNode]) -> Vec<Candidate<'a>> {
    let pairs = nodes.iter().flat_map(|node| {
        let reports = node.status.iter().flat_map(|status| &status.pools);
        reports.map(move |report| (node, report))
    });
    let candidate = |(node, report): (&'a MooncakeNode, &'a PoolReport)| {
        let mut assigned = node.spec.pools.iter();
        Candidate {
            node,
            report,
            assignment: assigned.find(|entry| entry.pod_uid == report.pod_uid),
        }
    };
    pairs.map(candidate).collect()
}

/// The report about a name that a pool pod has.
fn of_owner(name: &str, owner: &Candidate<'_>) -> Segment {
    let report = owner.report;
    // What the agent of a lost node reported last does not count.
    if let Err((reason, message)) = current_report(Some(owner.node)) {
        return Segment {
            reason: Some(reason.to_string()),
            remedy: Some(reason.remedy()),
            docs: Some(reason.docs_anchor()),
            ..Segment::new(
                name,
                State::NotServed,
                format!(
                    "{} has it, and whether it serves is unknown: {message}",
                    owner.title()
                ),
            )
        };
    }
    if report.state == PoolState::Serving {
        let mut message = format!("{} serves it", owner.title());
        if let Some(entry) = owner.assignment {
            message += &format!(" for MooncakeCluster {}/{}", entry.namespace, entry.cluster);
        }
        return Segment {
            remedy: Some(SERVED),
            ..Segment::new(name, State::Served, message)
        };
    }
    let reason = report.reason.known();
    let message = without_remedy(&report.message);
    Segment {
        reason: Some(report.reason.to_string()),
        remedy: reason.map(Reason::remedy),
        docs: reason.map(Reason::docs_anchor),
        ..Segment::new(
            name,
            State::NotServed,
            format!(
                "{} has it and is {}: {message}",
                owner.title(),
                report.state
            ),
        )
    }
}

/// What to do where a client does not find a segment that is served.
const SERVED: &str = "If a client does not find it, it cannot connect to this address, or is not admitted: run \
    kubectl mooncake why POD for the client's pod.";

fn of_holder(pod: &Pod, now: Timestamp) -> String {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let since = created(pod).map(|then| format!(", which is {} old", age(then, now)));
    let since = since.unwrap_or_default();
    if is_component(pod, names::COMPONENT_POOL) {
        format!(
            "pool pod {namespace}/{name}{since}, has the address, and its agent has not reported it"
        )
    } else {
        format!(
            "pod {namespace}/{name}{since}, has the address and is no pool pod: the owner of the name has ended"
        )
    }
}

fn created(pod: &Pod) -> Option<Timestamp> {
    Some(pod.metadata.creation_timestamp.as_ref()?.0)
}

fn similar(name: &str, candidates: &[Candidate<'_>]) -> Vec<Owner> {
    let mut similar: Vec<(f64, Owner)> = candidates
        .iter()
        .flat_map(|one| {
            one.names()
                .map(move |own| (strsim::jaro_winkler(own, name), one.owner(own)))
        })
        .filter(|(similarity, _)| *similarity >= SIMILARITY)
        .collect();
    similar.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    similar.truncate(SIMILAR_LIMIT);
    similar.into_iter().map(|(_, owner)| owner).collect()
}

impl Segment {
    fn new(name: &str, state: State, message: String) -> Self {
        Self {
            name: name.to_owned(),
            state,
            owner: None,
            reason: None,
            message,
            remedy: None,
            docs: None,
            similar: Vec::new(),
            read_errors: Vec::new(),
        }
    }

    pub(crate) fn show(&self, out: &mut Renderer) {
        let name = format!("Segment {}", self.name);
        out.line(cells![Cell::new(name, Style::Bold), self.state.cell()]);
        let reason = self.reason.as_ref().map(|reason| format!("{reason}:"));
        let reason = Cell::new(reason.unwrap_or_default(), Style::Bold);
        out.indented(2, cells![reason, &self.message]);
        if let Some(remedy) = self.remedy {
            out.remedy(remedy, self.docs.as_deref().unwrap_or_default());
        }
        let rows = self.similar.iter().map(|one| {
            let pod = format!("{}/{}", one.namespace, one.pod);
            cells![
                &one.name,
                pod,
                &one.node,
                Cell::optional(one.cluster.as_ref()),
                &one.state
            ]
        });
        out.table(
            &["SIMILAR NAME", "POOL POD", "NODE", "CLUSTER", "STATE"],
            rows,
        );
    }
}

impl State {
    fn cell(self) -> Cell {
        let (text, style) = match self {
            Self::Served => ("is served", Style::Good),
            Self::NotServed => ("is not served", Style::Bad),
            Self::OtherPort => ("is not served at this port", Style::Bad),
            Self::OtherPod => ("has lost its owner", Style::Bad),
            Self::NoOwner => ("has no owner", Style::Bad),
            Self::Unknown => ("has an unknown owner", Style::Warning),
        };
        Cell::new(text, style)
    }
}
