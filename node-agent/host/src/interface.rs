//! Network interfaces of RDMA ports, and TCP sockets of the node's network namespace.

use serde::{Deserialize, Serialize};

use super::tree::Tree;

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    pub mtu: Option<u32>,
    /// The kernel's name of it.
    pub state: Option<String>,
    /// Its bond or bridge.
    pub master: Option<String>,
    /// It or its master has the node's default route.
    pub default_route: bool,
    /// It is stacked on the device's own interface, or has the same address.
    pub stacked: bool,
    /// Whether IPv6 is enabled; none where the kernel has no IPv6.
    pub ipv6: Option<bool>,
}

/// Folders whose files show the reader's network namespace.
pub(super) const NETWORK_FILES: [&str; 2] = ["proc/thread-self/net", "proc/sys/net"];

/// Reads an interface; none where this network namespace does not have it.
pub(super) fn read(tree: &Tree, name: &str, stacked: bool) -> Option<Interface> {
    let at = format!("sys/class/net/{name}");
    tree.node(&at)?;
    let master = tree.link_name(&format!("{at}/master"));
    let routes = default_routes(tree);
    Some(Interface {
        mtu: tree.value(&format!("{at}/mtu")),
        state: tree.text(&format!("{at}/operstate")),
        default_route: routes
            .iter()
            .any(|route| *route == name || Some(route) == master.as_ref()),
        master,
        stacked,
        ipv6: tree
            .value(&format!("proc/sys/net/ipv6/conf/{name}/disable_ipv6"))
            .map(|off: u8| off == 0),
        name: name.to_owned(),
    })
}

/// Interfaces with a default route of IPv4 or IPv6.
fn default_routes(tree: &Tree) -> Vec<String> {
    let v4 = tree.text("proc/thread-self/net/route").unwrap_or_default();
    let v6 = tree
        .text("proc/thread-self/net/ipv6_route")
        .unwrap_or_default();
    let v4 = v4.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        (words.get(1) == Some(&"00000000") && words.get(7) == Some(&"00000000"))
            .then(|| words[0].to_owned())
    });
    let v6 = v6.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let any = words
            .first()
            .is_some_and(|word| word.bytes().all(|b| b == b'0'));
        let interface = words.get(9).filter(|name| **name != "lo")?;
        (any && words.get(1) == Some(&"00")).then(|| (*interface).to_owned())
    });
    v4.chain(v6).collect()
}

/// TCP sockets of the node's network namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sockets {
    pub in_use: u64,
    /// Closed ones that hold their ports for a while.
    pub time_wait: u64,
}

pub(super) fn sockets(tree: &Tree) -> Option<Sockets> {
    let path = "proc/thread-self/net/sockstat";
    tree.parsed(path, tree.need(path)?, |text| {
        let line = text.lines().find_map(|line| line.strip_prefix("TCP: "))?;
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let of = |word: &str| {
            let at = words.iter().position(|known| *known == word)?;
            words.get(at + 1)?.parse().ok()
        };
        Some(Sockets {
            in_use: of("inuse")?,
            time_wait: of("tw")?,
        })
    })
}

/// RoCE path MTU of an interface's MTU: the largest power of 2 from 256 to 4096 that fits with all headers, as in the
/// kernel's `iboe_get_mtu`.
pub fn path_mtu(mtu: u32) -> Option<u32> {
    const HEADERS: u32 = 40 + 8 + 12 + 4 + 28 + 4;
    let room = mtu.checked_sub(HEADERS)?;
    [4096, 2048, 1024, 512, 256]
        .into_iter()
        .find(|payload| *payload <= room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_mtu_follows_the_interface_mtu() {
        for (mtu, payload) in [
            (9000, Some(4096)),
            (4200, Some(4096)),
            (4191, Some(2048)),
            (1500, Some(1024)),
            (351, None),
            (0, None),
        ] {
            assert_eq!(path_mtu(mtu), payload, "{mtu}");
        }
    }
}
