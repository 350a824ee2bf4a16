//! The passive side of a rendezvous: queue pairs over which peers access an endpoint's memory. They stay until their
//! peer replaces them or is not admitted any more: a device that is accessed gets no sign of a peer's end.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use proto::address::ServerName;
use proto::rdma::{Rendezvous, nic_path, split_nic_path};
use sys::verbs::QueuePair;
use tokio::sync::Mutex;

use super::card::Card;
use super::cards::Cards;
use super::connect::{MOST_PAIRS, body, connect, create};
use crate::admission::PeerFilter;

/// Most connections to one device of an endpoint.
const CONNECTIONS: usize = 4096;

/// Most connections of one address to one device, so that no peer takes those of the others.
const PER_ADDRESS: usize = 256;

/// The connections of peers to one endpoint.
#[derive(Debug)]
pub(crate) struct Served(Vec<ServedDevice>);

/// The connections of peers to one device of an endpoint.
#[derive(Debug)]
struct ServedDevice {
    card: Arc<Card>,
    /// The endpoint's NIC path.
    path: String,
    /// By the peer's NIC path.
    connections: Mutex<HashMap<String, Connection>>,
}

#[derive(Debug)]
struct Connection {
    peer: IpAddr,
    /// Numbers of the peer's queue pairs.
    theirs: Vec<u32>,
    pairs: Vec<QueuePair>,
}

impl Served {
    pub(crate) fn new(cards: &Cards, server: &str) -> Self {
        let devices = cards.iter().map(|card| ServedDevice {
            path: nic_path(server, card.device()),
            card: Arc::clone(card),
            connections: Mutex::default(),
        });
        Self(devices.collect())
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
        if connections.len() >= CONNECTIONS && !connections.contains_key(peer) {
            return Err(format!(
                "{} has {CONNECTIONS} connections, the maximum",
                self.path
            ));
        }
        let has_own = connections.get(peer).is_some_and(|one| one.peer == from);
        let of_address = connections.values().filter(|one| one.peer == from).count();
        if of_address >= PER_ADDRESS && !has_own {
            return Err(format!(
                "{} has {PER_ADDRESS} connections of {from}, the maximum of one address",
                self.path
            ));
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
