//! The passive side of a rendezvous: queue pairs over which peers access an endpoint's memory. They stay until their
//! peer replaces them or is not admitted any more, or its address has too many: a device that is accessed gets no sign of a
//! peer's end.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proto::address::ServerName;
use proto::rdma::{Rendezvous, nic_path, split_nic_path};
use sys::verbs::QueuePair;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use super::card::Card;
use super::cards::Cards;
use super::connect::{MOST_PAIRS, body, connect, create};
use crate::admission::PeerFilter;

/// Most connections to one device of an endpoint.
const CONNECTIONS: usize = 4096;

/// Most connections of one address to one device, so that no peer takes those of the others. Another one ends the oldest:
/// engines that restart at an address have another port each time, and leave theirs behind. A peer that still uses it
/// connects again.
const PER_ADDRESS: usize = 256;

/// Most requests at a device at a time. It is to carry out so many before the first peer gives up, also if each takes some
/// ten milliseconds. Others wait for their turn.
const TURNS: usize = 64;

/// The connections of peers to one endpoint.
#[derive(Debug)]
pub(crate) struct Served(Vec<ServedDevice>);

/// The connections of peers to one device of an endpoint.
#[derive(Debug)]
struct ServedDevice {
    card: Arc<Card>,
    /// The endpoint's NIC path.
    path: String,
    turns: Semaphore,
    /// By the peer's NIC path.
    connections: Mutex<HashMap<String, Connection>>,
    /// Of the connections so far.
    count: AtomicU64,
}

#[derive(Debug)]
struct Connection {
    peer: IpAddr,
    /// Of the connections to the device, in the order in which they were made.
    number: u64,
    /// Numbers of the peer's queue pairs.
    theirs: Vec<u32>,
    pairs: Vec<QueuePair>,
}

impl Served {
    pub(crate) fn new(cards: &Cards, server: &str) -> Self {
        let devices = cards.iter().map(|card| ServedDevice {
            path: nic_path(server, card.device()),
            card: Arc::clone(card),
            turns: Semaphore::new(TURNS),
            connections: Mutex::default(),
            count: AtomicU64::new(0),
        });
        Self(devices.collect())
    }

    /// Waits for the turn of a request for a device with this NIC path. `None`: there is none, and the answer states it.
    pub(crate) async fn turn(&self, path: &str) -> Option<SemaphorePermit<'_>> {
        let device = self.0.iter().find(|device| device.path == path)?;
        device.turns.acquire().await.ok()
    }

    /// Answers a request at the handshake port. A refusal has a text, which the peer logs.
    pub(crate) async fn answer(&self, from: IpAddr, request: Rendezvous) -> Rendezvous {
        let peer = request.local_nic_path.clone();
        match self.serve(from, &request).await {
            Ok(reply) => reply,
            Err(reply_msg) => {
                tracing::warn!(%from, peer, reply_msg, "RDMA connection refused");
                Rendezvous {
                    local_nic_path: request.peer_nic_path,
                    peer_nic_path: peer,
                    reply_msg,
                    ..Rendezvous::default()
                }
            }
        }
    }

    async fn serve(&self, from: IpAddr, request: &Rendezvous) -> Result<Rendezvous, String> {
        let requested = &request.peer_nic_path;
        let Some(device) = self.0.iter().find(|device| device.path == *requested) else {
            let paths: Vec<_> = self.0.iter().map(|device| &*device.path).collect();
            return Err(format!(
                "{} can be reached, not {requested}",
                paths.join(", ")
            ));
        };
        device.serve(from, request).await
    }

    /// Ends the connections of peers that are not admitted.
    pub(crate) async fn admit(&self, filter: &PeerFilter) {
        for device in &self.0 {
            device.admit(filter).await;
        }
    }

    /// Ends all connections.
    pub(crate) async fn close(&self) {
        for device in &self.0 {
            device.close().await;
        }
    }
}

impl ServedDevice {
    async fn serve(&self, from: IpAddr, request: &Rendezvous) -> Result<Rendezvous, String> {
        let peer = &request.local_nic_path;
        let theirs = &request.qp_num;
        let Some((server, _)) = split_nic_path(peer) else {
            return Err(format!("{} cannot parse the NIC path `{peer}`", self.path));
        };
        let mut connections = self.connections.lock().await;
        // A NIC path is the peer's own word: another address must not end its connection, nor keep the owner of the path
        // from getting one.
        let others = connections.get(peer).filter(|one| one.peer != from);
        if let Some(other) = others.filter(|_| !owns(from, server)) {
            return Err(format!(
                "{} has a connection of {peer} from {}, which is still admitted, and this request is from {from}",
                self.path, other.peer
            ));
        }
        let own = connections.get(peer).filter(|one| one.peer == from);
        let known = own.filter(|one| one.theirs == *theirs);
        if request.ready_ack == Some(true) {
            // Nothing waits for it: this side posts no requests.
            return match known {
                Some(_) => Ok(Rendezvous::default()),
                None => Err(format!(
                    "{} has no connection with queue pairs {theirs:?} of {peer}",
                    self.path
                )),
            };
        }
        if let Some(known) = known {
            return Ok(body(&self.card, &self.path, peer, &known.pairs));
        }
        if !(1..=MOST_PAIRS).contains(&theirs.len()) {
            return Err(format!(
                "{} connects 1 to {MOST_PAIRS} queue pairs, and {peer} has sent {}",
                self.path,
                theirs.len()
            ));
        }
        let is_new = connections.get(peer).is_none_or(|one| one.peer != from);
        let superfluous = is_new.then(|| superfluous(&connections, from, server));
        let superfluous = superfluous.flatten();
        let has_space = connections.len() < CONNECTIONS || connections.contains_key(peer);
        if !has_space && superfluous.is_none() {
            return Err(format!(
                "{} has {CONNECTIONS} connections, the maximum",
                self.path
            ));
        }
        if let Some((path, one)) = superfluous.and_then(|path| connections.remove_entry(&path)) {
            tracing::info!(
                device = self.card.device(), %from, path, by = peer,
                "the oldest of {PER_ADDRESS} RDMA connections of an address is ended for another one"
            );
            self.end(one);
        }
        // The peer has restarted, or has given up the earlier ones, or another address had taken its path.
        if let Some(replaced) = connections.remove(peer) {
            self.end(replaced);
        }
        let silent = self.card.silent_queue().clone();
        let pairs = create(&self.card, &silent, theirs.len(), 1)
            .await
            .map_err(|error| error.to_string())?;
        let pairs = connect(&self.card, pairs, &self.path, peer, request)
            .await
            .map_err(|error| error.to_string())?;
        let reply = body(&self.card, &self.path, peer, &pairs);
        let connection = Connection {
            peer: from,
            number: self.count.fetch_add(1, Ordering::Relaxed),
            theirs: theirs.clone(),
            pairs: pairs.take(),
        };
        connections.insert(peer.clone(), connection);
        Ok(reply)
    }

    async fn admit(&self, filter: &PeerFilter) {
        let mut connections = self.connections.lock().await;
        let refused = connections.extract_if(|_, one| !filter.allows(one.peer));
        refused.for_each(|(_, one)| self.end(one));
    }

    async fn close(&self) {
        let mut connections = self.connections.lock().await;
        connections.drain().for_each(|(_, one)| self.end(one));
    }

    fn end(&self, connection: Connection) {
        self.card
            .worker()
            .start_call("ending a served connection", move || {
                for pair in connection.pairs {
                    if let Err(error) = pair.destroy() {
                        tracing::error!(%error, peer = %connection.peer, "served queue pair not destroyed");
                    }
                }
            });
    }
}

/// Returns the path of the connection that ends for another one of an address, if that has as many as it may: the oldest one,
/// of other servers than the one that connects if there are any.
fn superfluous(
    connections: &HashMap<String, Connection>,
    from: IpAddr,
    server: &str,
) -> Option<String> {
    let own = || connections.iter().filter(|(_, one)| one.peer == from);
    if own().count() < PER_ADDRESS {
        return None;
    }
    let oldest = own().min_by_key(|(path, one)| {
        let is_same = split_nic_path(path).is_some_and(|(of, _)| of == server);
        (is_same, one.number)
    });
    oldest.map(|(path, _)| path.clone())
}

/// Returns whether the server part of a NIC path is this address. A host name is of no known address.
fn owns(address: IpAddr, server: &str) -> bool {
    let host = ServerName::parse(server).host.parse::<IpAddr>();
    host.is_ok_and(|host| host.to_canonical() == address.to_canonical())
}

impl Drop for ServedDevice {
    fn drop(&mut self) {
        let connections = std::mem::take(self.connections.get_mut());
        connections.into_values().for_each(|one| self.end(one));
    }
}
