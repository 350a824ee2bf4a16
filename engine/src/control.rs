//! What runs in tokio beside the data threads: accepting, handshakes, asking and connecting.

pub(crate) mod accept;
pub(crate) mod connect;
pub(crate) mod handshake;
pub(crate) mod identity;
mod resolve;

use std::sync::Arc;
use std::time::Duration;

use proto::scheduler::PeerKey;
use sys::net::Namespace;
use tokio::runtime::Handle;

use crate::command::{Command, Lane};
use crate::settings::Settings;
use crate::transport::tcp::Connector;
use crate::transport::{HostId, Incoming, LinkId, PeerCard};

use identity::Identity;

/// Makes connections for one data thread.
#[derive(Debug)]
pub(crate) struct Control {
    runtime: Handle,
    lane: Lane,
    settings: Settings,
}

impl Control {
    pub(crate) fn new(runtime: Handle, lane: Lane, settings: Settings) -> Self {
        Self {
            runtime,
            lane,
            settings,
        }
    }
}

impl Connector for Control {
    fn connect(&self, link: LinkId, to: &PeerCard) {
        let (lane, settings, card) = (self.lane.clone(), self.settings, to.clone());
        self.runtime.spawn(async move {
            let socket = connect::data(&card, settings).await;
            let connected = Incoming::Connected {
                link,
                socket,
                version: card.version,
            };
            // If the engine has stopped, nobody waits for it.
            let _stopped = lane.send(Command::Adopt(connected));
        });
    }
}

/// How one host asks its peers.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) runtime: Handle,
    pub(crate) network: Option<Arc<Namespace>>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) connect_timeout: Duration,
}

impl Outbound {
    /// Asks a peer for its descriptor; the answer goes to the data thread behind `lane`.
    pub(crate) fn resolve(
        self: &Arc<Self>,
        host: HostId,
        peer: PeerKey,
        name: Arc<str>,
        lane: Lane,
    ) {
        let outbound = Arc::clone(self);
        self.runtime.spawn(async move {
            let answer = resolve::resolve(&outbound, name).await;
            // If the engine has stopped, nobody waits for it.
            let _stopped = lane.send(Command::Resolved { host, peer, answer });
        });
    }
}
