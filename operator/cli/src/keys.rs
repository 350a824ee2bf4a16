//! `keys CLUSTER`: which keys a cluster has, how many bytes, and on which pool pods and nodes. Pure, apart from what
//! reads.

pub mod collect;
pub mod master;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crds::names::DEFAULT_TENANT;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde::Serialize;

use crate::renderer::{Cell, Renderer, Style, cells, size_text};
use master::{Answer, Found};

/// Rows of the table of pool pods in the text.
const PLACES: usize = 20;

/// What a master answered, and the pods that have the addresses in it.
#[derive(Debug)]
pub struct Inputs {
    pub namespace: String,
    pub cluster: String,
    /// Names in `spec.master.tenants`.
    pub tenants: Vec<String>,
    /// The tenant whose keys were read.
    pub tenant: String,
    /// Name of the master pod that answered.
    pub master: String,
    pub answer: Answer,
    /// Pool pods of the cluster.
    pub pools: Vec<Pod>,
}

/// The report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Keys {
    pub namespace: String,
    pub cluster: String,
    pub tenant: String,
    pub master: String,
    /// False if the time was over before all keys were looked at: the numbers are too low.
    pub complete: bool,
    /// Matching keys.
    pub count: u64,
    /// Their bytes; those of further replicas are not included. Absent if the master does not count them.
    pub bytes: Option<u64>,
    /// The first matching keys in their order.
    pub keys: Vec<Key>,
    /// Segments with matching keys, those with the most bytes first. Empty if the master does not count them.
    pub segments: Vec<Place>,
    /// What is not in this report.
    pub note: Option<String>,
}

/// A key.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    pub key: String,
    /// Absent if the master does not list it.
    pub bytes: Option<u64>,
    pub hard_pin: Option<bool>,
    pub replicas: Vec<Replica>,
}

/// Where a replica is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replica {
    /// Address of the pool pod, or of a client that stores keys itself.
    pub endpoint: String,
    /// Absent if no pool pod has the address.
    pub pod: Option<String>,
    pub node: Option<String>,
}

/// The matching keys in one segment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    pub segment: String,
    #[serde(flatten)]
    pub at: Replica,
    /// Its objects move to other segments, because its pool pod ends.
    pub draining: bool,
    pub count: u64,
    pub bytes: u64,
}

/// Computes the report.
pub fn keys(inputs: Inputs) -> Keys {
    let Inputs {
        namespace,
        cluster,
        tenants,
        tenant,
        master,
        answer,
        pools,
    } = inputs;
    let pods = by_address(&pools);
    let at = |endpoint: &str| replica(&pods, endpoint);
    let note = tenant_note(&tenants, &tenant);
    let report = Keys {
        namespace,
        cluster,
        tenant,
        master,
        complete: true,
        count: 0,
        bytes: None,
        keys: Vec::new(),
        segments: Vec::new(),
        note,
    };
    match answer {
        Answer::Search(found) => {
            let keys = found.keys.iter().map(|key| Key {
                key: key.key.clone(),
                bytes: Some(key.size),
                hard_pin: Some(key.hard_pin),
                replicas: places(&found, &key.segments).map(at).collect(),
            });
            let keys = keys.collect();
            let used = found.segments.iter().filter(|segment| segment.objects > 0);
            let mut segments: Vec<Place> = used
                .map(|segment| Place {
                    segment: segment.name.clone(),
                    at: at(&segment.endpoint),
                    draining: segment.leaves,
                    count: segment.objects,
                    bytes: segment.bytes,
                })
                .collect();
            segments.sort_by(|a, b| (b.bytes, &a.segment).cmp(&(a.bytes, &b.segment)));
            Keys {
                complete: found.complete,
                count: found.objects,
                bytes: Some(found.bytes),
                keys,
                segments,
                ..report
            }
        }
        Answer::List { count, listed } => Keys {
            count,
            keys: listed
                .into_iter()
                .map(|(key, replicas)| Key {
                    key,
                    bytes: replicas.first().map(|replica| replica.size),
                    hard_pin: None,
                    replicas: replicas.iter().map(|one| at(&one.endpoint)).collect(),
                })
                .collect(),
            note: Some(LIST_ONLY.to_owned()),
            ..report
        },
    }
}

/// What is missing without a search by the master.
const LIST_ONLY: &str = "This master has no search: bytes are known for the listed keys only. Unfinished puts are counted.";

/// What a reader of one tenant's keys should know of the listed tenants.
fn tenant_note(listed: &[String], tenant: &str) -> Option<String> {
    let others = listed.iter().map(String::as_str);
    let others: Vec<&str> = others.filter(|other| *other != tenant).collect();
    let (are_all, others) = (others.len() == listed.len(), others.join(", "));
    if others.is_empty() {
        None
    } else if are_all && tenant != DEFAULT_TENANT {
        Some(format!(
            "Tenant {tenant} is not in spec.master.tenants ({others}): its puts are refused."
        ))
    } else {
        Some(format!(
            "Keys of other tenants are read with --tenant: {others}."
        ))
    }
}

fn places<'a>(found: &'a Found, numbers: &'a [usize]) -> impl Iterator<Item = &'a str> {
    let segments = numbers
        .iter()
        .filter_map(|number| found.segments.get(*number));
    segments.map(|segment| segment.endpoint.as_str())
}

pub(crate) fn by_address<'a>(pools: impl IntoIterator<Item = &'a Pod>) -> HashMap<IpAddr, &'a Pod> {
    let mut pods = HashMap::new();
    for pod in pools {
        let addresses = pod.status.iter().flat_map(|status| {
            let all = status.pod_ips.iter().flatten();
            all.map(|one| &one.ip).chain(&status.pod_ip)
        });
        for address in addresses.filter_map(|text| text.parse().ok()) {
            pods.insert(address, pod);
        }
    }
    pods
}

/// Returns the pod with the address of an endpoint.
pub(crate) fn at_endpoint<'a>(pods: &HashMap<IpAddr, &'a Pod>, endpoint: &str) -> Option<&'a Pod> {
    let address = endpoint.parse::<SocketAddr>().ok()?;
    pods.get(&address.ip().to_canonical()).copied()
}

fn replica(pods: &HashMap<IpAddr, &Pod>, endpoint: &str) -> Replica {
    let pod = at_endpoint(pods, endpoint);
    Replica {
        endpoint: endpoint.to_owned(),
        pod: pod.map(|pod| pod.name_any()),
        node: pod.and_then(|pod| pod.spec.as_ref()?.node_name.clone()),
    }
}

impl Replica {
    fn text(&self) -> String {
        match (&self.pod, &self.node) {
            (Some(pod), Some(node)) => format!("{pod} ({node})"),
            (Some(pod), None) => pod.clone(),
            (None, _) => format!("{} (no pool pod)", self.endpoint),
        }
    }
}

impl Keys {
    /// 0: complete, 2: the time was over before.
    pub(crate) fn exit_code(&self) -> u8 {
        if self.complete { 0 } else { 2 }
    }

    pub(crate) fn show(&self, out: &mut Renderer) {
        let tenant = match self.tenant.as_str() {
            DEFAULT_TENANT => String::new(),
            tenant => format!(", tenant {tenant}"),
        };
        let name = format!(
            "MooncakeCluster {}/{}{tenant}:",
            self.namespace, self.cluster
        );
        let keys = if self.count == 1 { "key" } else { "keys" };
        let bytes = self.bytes.map(|bytes| format!(", {}", size_text(bytes)));
        let counted = format!("{} {keys}{}", self.count, bytes.unwrap_or_default());
        let by = Cell::new(format!("(master {})", self.master), Style::Dim);
        out.line(cells![Cell::new(name, Style::Bold), counted, by]);
        if !self.complete {
            let text =
                "Incomplete: the time was over before all keys were looked at. Increase --timeout.";
            out.line(cells![Cell::new(text, Style::Warning)]);
        }
        let rows = self.keys.iter().map(|key| {
            let replicas: Vec<String> = key.replicas.iter().map(Replica::text).collect();
            let pinned = key.hard_pin.filter(|pinned| *pinned).map(|_| "pinned");
            cells![
                &key.key,
                Cell::optional(key.bytes.map(size_text)),
                Cell::optional(pinned),
                replicas.join(", ")
            ]
        });
        out.table(&["KEY", "SIZE", "PIN", "REPLICAS"], rows);
        let more = self.count.saturating_sub(self.keys.len() as u64);
        if more > 0 && !self.keys.is_empty() {
            out.line(cells![format!("{more} more. Use --limit.")]);
        }
        let rows = self.segments.iter().take(PLACES).map(|place| {
            cells![
                Cell::optional(place.at.pod.as_ref()),
                Cell::optional(place.at.node.as_ref()),
                &place.segment,
                &place.at.endpoint,
                place.count,
                size_text(place.bytes),
                if place.draining { "draining" } else { "" }
            ]
        });
        let head = [
            "POOL POD", "NODE", "SEGMENT", "ENDPOINT", "KEYS", "SIZE", "STATE",
        ];
        out.table(&head, rows);
        let more = self.segments.len().saturating_sub(PLACES);
        if more > 0 {
            out.line(cells![format!("{more} more. Use -o json for all.")]);
        }
        if let Some(note) = &self.note {
            out.blank_line();
            out.line(cells![note]);
        }
    }
}
