//! Decides from its address whether a peer may connect, and what it may do. The addresses come from a file that another
//! program replaces when they change (docs/decisions/master-admission.md).

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::time::sleep;

use crate::watched::{LOOK, Watched};

/// What an admitted peer may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Everything but a change of segments that another address has mounted.
    Member,
    /// Everything.
    Operator,
}

/// The peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    pub address: IpAddr,
    pub role: Role,
}

/// Why a list of addresses is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is {text:?}, not `member ADDRESS [POD…]` or `operator ADDRESS [POD…]`")]
pub struct ParseError {
    line: usize,
    text: String,
}

/// A pod by its UID, or an address that is listed without one.
type Pod = Arc<str>;

/// Admitted addresses. IPv4-mapped IPv6 addresses count as IPv4.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Addresses {
    known: HashMap<IpAddr, Known>,
    /// All pods of all addresses.
    pods: HashSet<Pod>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    role: Role,
    pods: Vec<Pod>,
}

/// The pods behind an address at one time: several pods on the host network share theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) address: IpAddr,
    pods: Vec<Pod>,
}

impl Owner {
    fn shares_pod(&self, pods: &[Pod]) -> bool {
        self.pods.iter().any(|pod| pods.contains(pod))
    }
}

impl Addresses {
    /// Returns what a peer at this address may do; `None` if it is not listed.
    pub(crate) fn role(&self, address: IpAddr) -> Option<Role> {
        let known = self.known.get(&address.to_canonical())?;
        Some(known.role)
    }

    /// Returns the pods behind an address; `None` if it is not listed.
    pub(crate) fn owner(&self, address: IpAddr) -> Option<Owner> {
        let address = address.to_canonical();
        let pods = self.known.get(&address)?.pods.clone();
        Some(Owner { address, pods })
    }

    /// Whether one of the pods is listed, also at another address.
    pub(crate) fn has(&self, owner: &Owner) -> bool {
        owner.pods.iter().any(|pod| self.pods.contains(pod))
    }

    /// Whether the address belongs to one of the pods.
    pub(crate) fn is_of(&self, address: IpAddr, owner: &Owner) -> bool {
        let address = address.to_canonical();
        let known = self.known.get(&address);
        address == owner.address || known.is_some_and(|known| owner.shares_pod(&known.pods))
    }
}

impl FromStr for Addresses {
    type Err = ParseError;

    /// Parses lines of `member ADDRESS [POD…]` and `operator ADDRESS [POD…]`, where the pods are UIDs. An address with both
    /// roles is an operator. The addresses of one pod have one UID.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut list = Self::default();
        for (index, line) in text.lines().enumerate() {
            let parsed = parse(line).ok_or_else(|| ParseError {
                line: index + 1,
                text: line.to_owned(),
            })?;
            let (role, address, mut pods) = parsed;
            if pods.is_empty() {
                pods.push(address.to_string().into());
            }
            list.pods.extend(pods.iter().cloned());
            let known = list.known.entry(address).or_insert_with(|| Known {
                role,
                pods: Vec::new(),
            });
            if role == Role::Operator {
                known.role = role;
            }
            known.pods.extend(pods);
        }
        Ok(list)
    }
}

fn parse(line: &str) -> Option<(Role, IpAddr, Vec<Pod>)> {
    let mut words = line.split(' ');
    let role = match words.next()? {
        "member" => Role::Member,
        "operator" => Role::Operator,
        _ => return None,
    };
    let address = words.next()?.parse::<IpAddr>().ok()?.to_canonical();
    let pods: Vec<Pod> = words.map(Pod::from).collect();
    let valid = pods.iter().all(|pod| !pod.is_empty());
    valid.then_some((role, address, pods))
}

/// Which peers may connect. Clones share the list.
#[derive(Debug, Clone)]
pub enum Admission {
    /// Every peer, as an operator: what the stock master does.
    Anyone,
    /// The listed addresses, and 127.0.0.1 and ::1 as operators. Nothing else before the first list.
    Listed(watch::Receiver<Option<Arc<Addresses>>>),
}

impl Admission {
    /// Returns what a peer at this address may do; `None` if it may not connect.
    #[must_use]
    pub fn role(&self, address: IpAddr) -> Option<Role> {
        let Self::Listed(addresses) = self else {
            return Some(Role::Operator);
        };
        let address = address.to_canonical();
        // A process of the same pod.
        if address == Ipv4Addr::LOCALHOST || address == Ipv6Addr::LOCALHOST {
            return Some(Role::Operator);
        }
        addresses.borrow().as_ref()?.role(address)
    }

    /// Returns the addresses in force; `None` before the first list, and where every peer may connect.
    pub(crate) fn listed(&self) -> Option<Arc<Addresses>> {
        match self {
            Self::Anyone => None,
            Self::Listed(addresses) => addresses.borrow().clone(),
        }
    }

    /// True once the addresses are known.
    #[must_use]
    pub fn is_known(&self) -> bool {
        match self {
            Self::Anyone => true,
            Self::Listed(addresses) => addresses.borrow().is_some(),
        }
    }

    /// Returns when the peer no longer has its role.
    pub async fn revoked(mut self, peer: Peer) {
        loop {
            // Before the check: a change between the two is seen by the next check.
            if let Self::Listed(addresses) = &mut self {
                addresses.borrow_and_update();
            }
            if self.role(peer.address) != Some(peer.role) {
                return;
            }
            let Self::Listed(addresses) = &mut self else {
                return std::future::pending().await;
            };
            if addresses.changed().await.is_err() {
                // The file is not read any more: the last list stays in force.
                return std::future::pending().await;
            }
        }
    }
}

/// Reads the file whenever it has been replaced. While it cannot be read or parsed, the last list stays in force.
#[derive(Debug)]
pub struct File {
    watched: Watched,
    addresses: watch::Sender<Option<Arc<Addresses>>>,
}

impl File {
    #[must_use]
    pub fn new(path: PathBuf) -> (Self, Admission) {
        let (addresses, receiver) = watch::channel(None);
        let watched = Watched::new(path);
        let file = Self { watched, addresses };
        (file, Admission::Listed(receiver))
    }

    /// Reads the file now and after each change, until the future is dropped.
    pub async fn follow(mut self) {
        loop {
            self.look();
            sleep(LOOK).await;
        }
    }

    /// Reads the file if it has changed.
    fn look(&mut self) {
        let read = self.watched.read::<Addresses>();
        let file = self.watched.path().display();
        match read {
            Ok(None) => {}
            Ok(Some(addresses)) => {
                tracing::info!(%file, addresses = addresses.known.len(), "admitted addresses changed");
                self.addresses.send_replace(Some(Arc::new(addresses)));
            }
            Err(failure) => {
                tracing::warn!(%file, %failure,
                    "cannot read the admitted addresses; the last ones stay in force");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_list_gives_each_address_its_role_and_localhost_every_right() {
        let list = "member 10.0.0.1\noperator 10.0.0.2\nmember ::ffff:10.0.0.3\n\
                    operator 10.0.0.4\nmember 10.0.0.4\nmember fd00::1\n";
        let (sender, receiver) = watch::channel(None);
        let admission = Admission::Listed(receiver);
        assert_eq!(admission.role(address("10.0.0.1")), None);
        assert!(!admission.is_known());
        sender.send_replace(Some(Arc::new(list.parse().unwrap())));
        assert!(admission.is_known());
        for (peer, role) in [
            ("10.0.0.1", Some(Role::Member)),
            ("::ffff:10.0.0.1", Some(Role::Member)),
            ("10.0.0.2", Some(Role::Operator)),
            ("10.0.0.3", Some(Role::Member)),
            ("10.0.0.4", Some(Role::Operator)),
            ("fd00::1", Some(Role::Member)),
            ("127.0.0.1", Some(Role::Operator)),
            ("::1", Some(Role::Operator)),
            ("127.0.0.2", None),
            ("10.0.0.5", None),
            ("0.0.0.0", None),
        ] {
            assert_eq!(admission.role(address(peer)), role, "{peer}");
        }
        assert_eq!(
            Admission::Anyone.role(address("10.0.0.5")),
            Some(Role::Operator)
        );
    }

    #[test]
    fn a_list_with_an_invalid_line_is_refused_as_a_whole() {
        for wrong in [
            "member",
            "member 10.0.0.256",
            "guest 10.0.0.1",
            "member 10.0.0.1 ",
            "member 10.0.0.1  a",
            "member a 10.0.0.1",
            "member 10.0.0.1\n\nmember 10.0.0.2",
        ] {
            assert!(wrong.parse::<Addresses>().is_err(), "{wrong}");
        }
        assert_eq!("".parse(), Ok(Addresses::default()));
    }

    #[test]
    fn a_pod_is_known_by_its_uid_at_each_of_its_addresses() {
        let list: Addresses = "member 10.0.0.1 a\nmember fd00::1 a\nmember 10.0.0.2 b c\n\
                               member 10.0.0.3\noperator 10.0.0.9 o\n"
            .parse()
            .unwrap();
        let owner = |text| list.owner(address(text)).unwrap();
        assert!(list.is_of(address("fd00::1"), &owner("10.0.0.1")));
        assert!(list.is_of(address("::ffff:10.0.0.1"), &owner("fd00::1")));
        assert!(!list.is_of(address("10.0.0.2"), &owner("10.0.0.1")));
        assert!(!list.is_of(address("10.0.0.4"), &owner("10.0.0.1")));
        assert_eq!(list.owner(address("10.0.0.4")), None);
        let (a, b, without) = (owner("10.0.0.1"), owner("10.0.0.2"), owner("10.0.0.3"));
        // Its address belongs to another pod now; a pod that moved; a pod of two that share an address.
        let later: Addresses = "member 10.0.0.1 d\nmember 10.0.0.7 c\nmember 10.0.0.3\n"
            .parse()
            .unwrap();
        assert!(!later.has(&a));
        assert!(later.has(&b) && later.has(&without));
        let neither: Addresses = "member 10.0.0.2 e\n".parse().unwrap();
        assert!(!neither.has(&b) && !neither.has(&without));
    }

    #[test]
    fn the_last_valid_list_stays_in_force_while_the_file_is_missing_or_invalid() {
        let directory = std::env::temp_dir().join(format!("admitted-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("addresses");
        let replace = |text: &str| {
            let new = directory.join("new");
            fs::write(&new, text).unwrap();
            fs::rename(&new, &path).unwrap();
        };
        let (mut file, admission) = File::new(path.clone());
        let mut admitted = |peer: &str| {
            file.look();
            admission.role(address(peer)).is_some()
        };
        assert!(!admitted("10.0.0.1"));
        replace("member 10.0.0.1\n");
        assert!(admitted("10.0.0.1"));
        replace("nonsense");
        assert!(admitted("10.0.0.1"));
        fs::remove_file(&path).unwrap();
        assert!(admitted("10.0.0.1"));
        replace("member 10.0.0.2\n");
        assert!(!admitted("10.0.0.1"));
        assert!(admitted("10.0.0.2"));
        fs::remove_dir_all(&directory).unwrap();
    }

    #[tokio::test]
    async fn a_peer_is_revoked_when_it_is_no_longer_listed_or_has_another_role() {
        let (sender, receiver) = watch::channel(None);
        let admission = Admission::Listed(receiver);
        let list = |text: &str| {
            sender.send_replace(Some(Arc::new(text.parse().unwrap())));
        };
        let peer = Peer {
            address: address("10.0.0.1"),
            role: Role::Member,
        };
        for last in ["member 10.0.0.2", "operator 10.0.0.1", ""] {
            list("member 10.0.0.1");
            let revoked = tokio::spawn(admission.clone().revoked(peer));
            list("member 10.0.0.1\nmember 10.0.0.3");
            tokio::task::yield_now().await;
            assert!(!revoked.is_finished());
            list(last);
            tokio::time::timeout(Duration::from_secs(30), revoked)
                .await
                .expect("the peer is revoked")
                .unwrap();
        }
    }
}
