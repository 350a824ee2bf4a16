//! The processes that a cluster consists of, and their names.

use std::fmt;
use std::str::FromStr;

/// A process that can be killed and started on its own. In the order of starting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    Etcd,
    ApiServer,
    Controllers,
    Scheduler,
    /// The process that holds a namespace node's namespaces, or QEMU.
    Node(u8),
    Containerd(u8),
    Kubelet(u8),
    Proxy(u8),
}

const SINGLE: [(Part, &str); 4] = [
    (Part::Etcd, "etcd"),
    (Part::ApiServer, "apiserver"),
    (Part::Controllers, "controllers"),
    (Part::Scheduler, "scheduler"),
];

type OfNode = (fn(u8) -> Part, &'static str);

const OF_NODE: [OfNode; 4] = [
    (Part::Containerd, "containerd"),
    (Part::Kubelet, "kubelet"),
    (Part::Proxy, "proxy"),
    (Part::Node, "node"),
];

/// The control plane, in the order of starting.
pub(super) const CONTROL_PLANE: [Part; 4] = [
    Part::Etcd,
    Part::ApiServer,
    Part::Controllers,
    Part::Scheduler,
];

impl Part {
    /// The node of the part; None for the control plane.
    pub fn node(self) -> Option<u8> {
        match self {
            Self::Containerd(node) | Self::Kubelet(node) | Self::Proxy(node) | Self::Node(node) => {
                Some(node)
            }
            Self::Etcd | Self::ApiServer | Self::Controllers | Self::Scheduler => None,
        }
    }

    /// Order of killing: first the parts that would restart others.
    pub fn kill_order(self) -> u8 {
        match self {
            Self::Kubelet(_) | Self::Controllers => 0,
            Self::Containerd(_) => 1,
            Self::Etcd | Self::ApiServer | Self::Scheduler | Self::Proxy(_) | Self::Node(_) => 2,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((_, name)) = SINGLE.iter().find(|(part, _)| part == self) {
            return f.write_str(name);
        }
        OF_NODE
            .iter()
            .filter_map(|(make, name)| self.node().map(|node| (make(node), name, node)))
            .find(|(part, _, _)| part == self)
            .map_or(Err(fmt::Error), |(_, name, node)| {
                write!(f, "{name}-n{node}")
            })
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((part, _)) = SINGLE.iter().find(|(_, name)| *name == text) {
            return Ok(*part);
        }
        text.rsplit_once("-n")
            .and_then(|(kind, node)| {
                let (make, _) = OF_NODE.iter().find(|(_, name)| *name == kind)?;
                node.parse().ok().map(make)
            })
            .ok_or_else(|| {
                format!(
                    "unknown part {text}; parts are etcd, apiserver, controllers, scheduler, and \
                     containerd-n1, kubelet-n1, proxy-n1 of node n1"
                )
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_parsed_from_its_name() {
        let nodes = OF_NODE.iter().map(|(make, _)| make(7));
        for part in SINGLE.iter().map(|(part, _)| *part).chain(nodes) {
            assert_eq!(part.to_string().parse(), Ok(part));
        }
    }

    #[test]
    fn the_error_for_an_unknown_part_lists_the_parts() {
        let error = "kubelet".parse::<Part>().unwrap_err();
        assert!(error.contains("kubelet-n1"), "{error}");
    }
}
