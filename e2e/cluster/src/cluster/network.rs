//! The network of a cluster: a bridge in a namespace of its own, with veth pairs to nodes, control plane and machine.

use super::address::{Block, Ipv6Block};
use crate::Error;
use crate::command::Run;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// One cluster's network.
#[derive(Debug, Clone)]
pub(super) struct Network<'a> {
    pub cluster: &'a str,
    pub block: Block,
    /// Of a dual-stack cluster.
    pub ipv6: Option<Ipv6Block>,
}

impl Network<'_> {
    fn namespace(&self, place: &str) -> String {
        format!("{}-{place}", self.cluster)
    }

    pub(super) fn switch(&self) -> String {
        self.namespace("sw")
    }

    pub(super) fn control_plane(&self) -> String {
        self.namespace("cp")
    }

    pub(super) fn node(&self, node: u8) -> String {
        self.namespace(&format!("n{node}"))
    }

    /// Creates the switch and connects this machine and the control plane.
    ///
    /// # Errors
    /// [`Error::Command`] of `ip`.
    pub(super) fn make(&self) -> Result<(), Error> {
        let (switch, host) = (self.switch(), host_link(self.cluster));
        ip(&["netns", "add", &switch])?;
        batch(
            Some(&switch),
            &[
                "link set lo up".to_owned(),
                "link add br0 type bridge".to_owned(),
                "link set br0 up".to_owned(),
            ],
        )?;
        let mut cable = vec![
            format!("link add {host} type veth peer name p-host netns {switch}"),
            format!("addr add {}/24 dev {host}", self.block.gateway()),
            format!("link set {host} up"),
        ];
        cable.extend(self.ipv6.map(|ipv6| add_ipv6(&ipv6.gateway(), &host)));
        cable.extend(self.routes(None));
        batch(None, &cable)?;
        batch(Some(&switch), &["link set p-host master br0 up".to_owned()])?;
        let ipv6 = self.ipv6.map(Ipv6Block::api_server);
        self.plug("cp", &self.block.api_server(), ipv6, None)
    }

    /// Creates a namespace and connects it to the switch.
    fn plug(
        &self,
        place: &str,
        address: &str,
        ipv6: Option<String>,
        node: Option<u8>,
    ) -> Result<(), Error> {
        let namespace = self.namespace(place);
        ip(&["netns", "add", &namespace])?;
        batch(
            Some(&self.switch()),
            &[
                format!("link add p-{place} type veth peer name eth0 netns {namespace}"),
                format!("link set p-{place} master br0 up"),
            ],
        )?;
        let mut inside = vec![
            "link set lo up".to_owned(),
            format!("addr add {address}/24 dev eth0"),
            "link set eth0 up".to_owned(),
            format!("route add default via {}", self.block.gateway()),
        ];
        let mut forwarding = vec!["ipv4/ip_forward"];
        if let (Some(block), Some(address)) = (self.ipv6, ipv6) {
            inside.push(add_ipv6(&address, "eth0"));
            inside.push(format!("route add ::/0 via {}", block.gateway()));
            forwarding.push("ipv6/conf/all/forwarding");
        }
        inside.extend(self.routes(node));
        batch(Some(&namespace), &inside)?;
        forwarding.into_iter().try_for_each(|switch| {
            Run::new("ip")
                .args(["netns", "exec", &namespace])
                .args(["sh", "-c", &format!("echo 1 >/proc/sys/net/{switch}")])
                .done()
        })
    }

    /// Creates and connects the namespace of a node.
    ///
    /// # Errors
    /// [`Error::Command`] of `ip`.
    pub(super) fn plug_node(&self, node: u8) -> Result<(), Error> {
        let ipv6 = self.ipv6.map(|ipv6| ipv6.node(node));
        self.plug(
            &format!("n{node}"),
            &self.block.node(node),
            ipv6,
            Some(node),
        )
    }

    /// Creates a tap device on the switch, for a guest.
    ///
    /// # Errors
    /// [`Error::Command`] of `ip`.
    pub(super) fn tap(&self, node: u8) -> Result<(), Error> {
        batch(
            Some(&self.switch()),
            &[
                format!("tuntap add p-n{node} mode tap"),
                format!("link set p-n{node} master br0 up"),
            ],
        )
    }

    /// Routes to the pods of all possible nodes except one.
    pub(super) fn routes(&self, except: Option<u8>) -> Vec<String> {
        (1..=Block::NODES)
            .filter(|node| Some(*node) != except)
            .flat_map(|node| {
                let ipv4 = (self.block.pods_of(node), self.block.node(node));
                let ipv6 = self.ipv6.map(|ipv6| (ipv6.pods_of(node), ipv6.node(node)));
                [Some(ipv4), ipv6]
            })
            .flatten()
            .map(|(pods, node)| format!("route add {pods} via {node}"))
            .collect()
    }

    /// Disconnects or connects a node at the switch. The node's own link stays up, as in a real partition.
    ///
    /// # Errors
    /// [`Error::Command`] of `ip`.
    pub(super) fn link(&self, node: u8, up: bool) -> Result<(), Error> {
        let state = if up { "up" } else { "down" };
        batch(
            Some(&self.switch()),
            &[format!("link set p-n{node} {state}")],
        )
    }

    /// Removes a node from the network.
    ///
    /// # Errors
    /// [`Error::Command`] of `ip`.
    pub(super) fn unplug(&self, node: u8) -> Result<(), Error> {
        let namespace = self.node(node);
        if exists(&namespace) {
            // This also removes its veth pair.
            ip(&["netns", "del", &namespace])?;
        } else if self.has_port(node) {
            batch(Some(&self.switch()), &[format!("link del p-n{node}")])?;
        }
        Ok(())
    }

    /// Whether the switch has a link to a node: not while the disk of a guest is being made.
    fn has_port(&self, node: u8) -> bool {
        let switch = self.switch();
        ip(&[
            "-netns",
            &switch,
            "link",
            "show",
            "dev",
            &format!("p-n{node}"),
        ])
        .is_ok()
    }
}

/// The existing namespaces of a cluster, found by name.
pub(super) fn namespaces(cluster: &str) -> Vec<String> {
    let Ok(entries) = fs::read_dir("/run/netns") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| belongs_to(name, cluster))
        .collect()
}

fn belongs_to(namespace: &str, cluster: &str) -> bool {
    namespace
        .strip_prefix(cluster)
        .and_then(|rest| rest.strip_prefix('-'))
        .is_some_and(|place| {
            matches!(place, "sw" | "cp")
                || place
                    .strip_prefix('n')
                    .is_some_and(|number| number.parse::<u8>().is_ok())
        })
}

/// Removes the remaining namespaces of a cluster, and this machine's link to it.
///
/// # Errors
/// [`Error::Command`] of `ip`.
pub(super) fn remove(cluster: &str) -> Result<(), Error> {
    let host = host_link(cluster);
    let exists = || Path::new("/sys/class/net").join(&host).exists();
    // It may disappear meanwhile with the namespace of its other end.
    if exists()
        && let Err(error) = ip(&["link", "del", &host])
        && exists()
    {
        return Err(error);
    }
    for namespace in namespaces(cluster) {
        ip(&["netns", "del", &namespace])?;
    }
    Ok(())
}

/// This machine's link to the cluster.
fn host_link(cluster: &str) -> String {
    format!("{cluster}-host")
}

/// The processes in a network namespace.
///
/// # Errors
/// [`Error::Command`] of `ip`.
pub(super) fn processes(namespace: &str) -> Result<BTreeSet<i32>, Error> {
    if !exists(namespace) {
        return Ok(BTreeSet::new());
    }
    let pids = Run::new("ip").args(["netns", "pids", namespace]).output()?;
    Ok(pids.lines().filter_map(|line| line.parse().ok()).collect())
}

fn exists(namespace: &str) -> bool {
    Path::new("/run/netns").join(namespace).exists()
}

/// Adds an address that is usable at once: no other interface has it, so the kernel need not detect duplicates.
fn add_ipv6(address: &str, device: &str) -> String {
    format!("addr add {address}/64 dev {device} nodad")
}

fn ip(arguments: &[&str]) -> Result<(), Error> {
    Run::new("ip").args(arguments).done()
}

fn batch(namespace: Option<&str>, lines: &[String]) -> Result<(), Error> {
    let run = match namespace {
        Some(namespace) => Run::new("ip").args(["-netns", namespace]),
        None => Run::new("ip"),
    };
    run.args(["-batch", "-"]).input(lines.join("\n")).done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_belongs_to_the_cluster_with_exactly_its_prefix() {
        for own in ["mc-sw", "mc-cp", "mc-n7"] {
            assert!(belongs_to(own, "mc"), "{own}");
        }
        for foreign in ["mc0-sw", "mc-nx", "mc-else", "cni-1"] {
            assert!(!belongs_to(foreign, "mc"), "{foreign}");
        }
    }

    #[test]
    fn a_node_has_routes_to_the_pods_of_all_other_nodes() {
        let block = Block::new(0).unwrap();
        let mut network = Network {
            cluster: "mc",
            block,
            ipv6: None,
        };
        let others = usize::from(Block::NODES) - 1;
        let routes = network.routes(Some(1));
        assert_eq!(routes.len(), others);
        assert_eq!(routes[0], "route add 198.19.129.0/24 via 198.18.0.12");
        network.ipv6 = Some(block.ipv6());
        let routes = network.routes(Some(1));
        assert_eq!(routes.len(), 2 * others);
        assert_eq!(
            routes[1],
            "route add fd6d:6f6f:6e63:22::/64 via fd6d:6f6f:6e63::c"
        );
    }
}
