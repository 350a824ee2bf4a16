//! The active side of a rendezvous: creates queue pairs, exchanges their numbers at the peer's handshake port, connects
//! them, and confirms that they are ready.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use proto::handshake::{self, Kind, PREFIX_LENGTH};
use proto::rdma::{Rendezvous, Side, agree, gid_text, parse_gid};
use sys::verbs::{CompletionQueue, Destination, QueuePair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Handle;

use super::RdmaPeer;
#[cfg(test)]
use super::Served;
use super::card::Card;
use super::inbox::{Inbox, Message};
use super::link::{DEPTH, PAIRS};
use crate::connect::Dialer;
use crate::transport::{LinkError, LinkId};

const WHAT: &str = "exchanging queue pairs at the handshake port";
/// Most queue pairs of a connection; a stock engine makes as many as its `MC_NUM_QP_PER_EP`.
pub(super) const MOST_PAIRS: usize = 16;

/// Queue pairs of a rendezvous in progress. If it fails or is given up, the control thread destroys them: the device may
/// block that call, and the caller is in tokio.
#[derive(Debug)]
pub(crate) struct Joining {
    card: Arc<Card>,
    pairs: Vec<QueuePair>,
}

/// Connects links on the control side. The result arrives as [`Message::Connected`].
pub(crate) trait Connector: Debug + Send {
    /// Starts to connect. `ends` are our NIC path for this link and that of the peer.
    fn connect(
        &self,
        link: LinkId,
        ends: (String, String),
        to: &RdmaPeer,
        queue: CompletionQueue,
        inbox: Inbox,
    );
}

impl Joining {
    /// Returns the queue pairs, for which the caller is responsible from now on.
    pub(super) fn take(mut self) -> Vec<QueuePair> {
        std::mem::take(&mut self.pairs)
    }
}

impl Deref for Joining {
    type Target = [QueuePair];

    fn deref(&self) -> &[QueuePair] {
        &self.pairs
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        let pairs = std::mem::take(&mut self.pairs);
        if pairs.is_empty() {
            return;
        }
        let device = self.card.device().to_owned();
        let destroy = move || {
            for pair in pairs {
                if let Err(error) = pair.destroy() {
                    tracing::error!(device, %error, "queue pair of a failed rendezvous not destroyed");
                }
            }
        };
        let worker = self.card.worker();
        worker.start_call("destroying queue pairs of a failed rendezvous", destroy);
    }
}

/// Passes one rendezvous body to a peer and returns its reply.
#[derive(Debug, Clone)]
pub(crate) enum Exchange {
    /// At its handshake port.
    Port {
        dialer: Arc<Dialer>,
        host: String,
        port: u16,
    },
    /// In this process.
    #[cfg(test)]
    Direct(Arc<Served>),
}

/// Connects in tokio.
#[derive(Debug)]
pub(crate) struct RdmaConnector {
    runtime: Handle,
    card: Arc<Card>,
    timeout: Duration,
    /// Instead of the peers' handshake ports.
    #[cfg(test)]
    direct: Option<Arc<Served>>,
}

impl RdmaConnector {
    pub(crate) fn new(runtime: Handle, card: &Arc<Card>, timeout: Duration) -> Self {
        Self {
            runtime,
            card: Arc::clone(card),
            timeout,
            #[cfg(test)]
            direct: None,
        }
    }

    /// Connects to a peer in this process, without sockets.
    #[cfg(test)]
    pub(crate) fn direct(mut self, served: Arc<Served>) -> Self {
        self.direct = Some(served);
        self
    }

    fn exchange(&self, to: &RdmaPeer) -> Option<Exchange> {
        #[cfg(test)]
        if let Some(served) = &self.direct {
            return Some(Exchange::Direct(Arc::clone(served)));
        }
        Some(Exchange::Port {
            dialer: Arc::clone(to.dialer.as_ref()?),
            host: to.handshake.0.clone(),
            port: to.handshake.1,
        })
    }
}

impl Connector for RdmaConnector {
    fn connect(
        &self,
        link: LinkId,
        (path, peer): (String, String),
        to: &RdmaPeer,
        queue: CompletionQueue,
        inbox: Inbox,
    ) {
        let exchange = self.exchange(to);
        let (card, timeout) = (Arc::clone(&self.card), self.timeout);
        self.runtime.spawn(async move {
            let connecting = async {
                let exchange = exchange.ok_or(LinkError::Closed)?;
                rendezvous(&card, &queue, &exchange, &path, &peer).await
            };
            let result = match tokio::time::timeout(timeout, connecting).await {
                Ok(result) => result,
                Err(_) => Err(LinkError::TimedOut { what: WHAT }),
            };
            inbox.send(Message::Connected { link, result });
        });
    }
}

impl Exchange {
    async fn exchange(&self, body: &Rendezvous) -> Result<Rendezvous, LinkError> {
        match self {
            #[cfg(test)]
            Self::Direct(served) => {
                let local = std::net::Ipv4Addr::LOCALHOST.into();
                Ok(served.answer(local, body.clone()).await)
            }
            Self::Port { dialer, host, port } => {
                let mut last = LinkError::TimedOut { what: WHAT };
                for address in dialer.lookup(host, *port).await? {
                    match at_port(dialer, address, body).await {
                        Ok(reply) => return Ok(reply),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }
}

/// One request on a new connection: stock engines serve one handshake connection at a time.
async fn at_port(
    dialer: &Dialer,
    address: SocketAddr,
    body: &Rendezvous,
) -> Result<Rendezvous, LinkError> {
    let mut stream = dialer
        .stream(address, "connecting to the handshake port")
        .await?;
    let failed = || LinkError::io(WHAT);
    let violated = |error: handshake::FrameError| LinkError::Protocol(error.to_string());
    stream
        .write_all(&body.frame(true))
        .await
        .map_err(failed())?;
    let mut prefix = [0; PREFIX_LENGTH];
    stream.read_exact(&mut prefix).await.map_err(failed())?;
    let mut payload = vec![0; handshake::length(prefix).map_err(violated)?];
    stream.read_exact(&mut payload).await.map_err(failed())?;
    let body = handshake::reply_body(Kind::Connection, &payload).map_err(violated)?;
    Rendezvous::parse(body).map_err(violated)
}

async fn rendezvous(
    card: &Arc<Card>,
    queue: &CompletionQueue,
    exchange: &Exchange,
    path: &str,
    peer: &str,
) -> Result<Joining, LinkError> {
    let mut count = PAIRS;
    let (pairs, request, reply) = loop {
        let pairs = create(card, queue, count, DEPTH).await?;
        let request = body(card, path, peer, &pairs);
        let reply = exchange.exchange(&request).await?;
        let wanted = reply.qp_num.len();
        // A stock engine refuses another number than its own, and sends its own.
        if wanted != count && (1..=MOST_PAIRS).contains(&wanted) && count == PAIRS {
            count = wanted;
            continue;
        }
        break (pairs, request, reply);
    };
    if !reply.reply_msg.is_empty() {
        let refusal = format!("{peer} refuses the connection: {}", reply.reply_msg);
        return Err(LinkError::Device(refusal));
    }
    // An engine without RDMA answers with an empty body.
    if reply.qp_num.len() != pairs.len() || reply.local_nic_path != peer {
        let answered = format!(
            "{peer} has answered as `{}` with {} queue pairs for {}",
            reply.local_nic_path,
            reply.qp_num.len(),
            pairs.len()
        );
        return Err(LinkError::Protocol(answered));
    }
    let pairs = connect(card, pairs, path, peer, &reply).await?;
    let ready = Rendezvous {
        ready_ack: Some(true),
        ..request
    };
    let confirmed = exchange.exchange(&ready).await?;
    if !confirmed.reply_msg.is_empty() {
        let refusal = format!(
            "{peer} refuses the ready queue pairs: {}",
            confirmed.reply_msg
        );
        return Err(LinkError::Device(refusal));
    }
    Ok(pairs)
}

/// Our part of a rendezvous.
pub(super) fn body(card: &Card, path: &str, peer: &str, pairs: &[QueuePair]) -> Rendezvous {
    let side = card.side(path);
    Rendezvous {
        local_gid: side.gid.map(gid_text).unwrap_or_default(),
        local_lid: side.lid,
        local_nic_path: path.to_owned(),
        path_mtu: side.mtu,
        peer_nic_path: peer.to_owned(),
        qp_num: pairs.iter().map(QueuePair::number).collect(),
        ready_ack: Some(false),
        ..Rendezvous::default()
    }
}

pub(super) async fn create(
    card: &Arc<Card>,
    queue: &CompletionQueue,
    count: usize,
    depth: usize,
) -> Result<Joining, LinkError> {
    let (of, domain, queue) = (Arc::clone(card), card.domain().clone(), queue.clone());
    let depth = u16::try_from(depth).unwrap_or(u16::MAX);
    let make = move || {
        let pairs = (0..count).map(|_| QueuePair::with_depth(&domain, &queue, depth));
        let pairs = pairs.collect::<Result<_, _>>()?;
        Ok::<_, sys::verbs::Error>(Joining { card: of, pairs })
    };
    let made = card.worker().call("creating queue pairs", None, make).await;
    made.map_err(|error| LinkError::Device(error.to_string()))?
        .map_err(|error| {
            card.examine(&error);
            LinkError::Device(format!("RDMA device {}: {error}", card.device()))
        })
}

/// Moves queue pairs to RTS, each with its counterpart of the peer's part `theirs`.
pub(super) async fn connect(
    card: &Arc<Card>,
    pairs: Joining,
    path: &str,
    peer: &str,
    theirs: &Rendezvous,
) -> Result<Joining, LinkError> {
    let remote = Side {
        nic_path: peer,
        gid: parse_gid(&theirs.local_gid),
        lid: theirs.local_lid,
        mtu: theirs.path_mtu,
    };
    let mtu = agree(card.link(), &card.side(path), &remote)
        .map_err(|refused| LinkError::Device(refused.to_string()))?;
    let route = card.path(mtu);
    let gid = remote.gid.unwrap_or(std::net::Ipv6Addr::UNSPECIFIED);
    let (lid, numbers) = (remote.lid, theirs.qp_num.clone());
    let join = move || {
        for (pair, queue_pair) in pairs.iter().zip(numbers) {
            let to = Destination {
                queue_pair,
                gid,
                lid,
            };
            pair.init(&route)?;
            pair.ready_to_receive(&route, &to)?;
            pair.ready_to_send()?;
        }
        Ok::<_, sys::verbs::Error>(pairs)
    };
    let joined = card
        .worker()
        .call("connecting queue pairs", None, join)
        .await;
    joined
        .map_err(|error| LinkError::Device(error.to_string()))?
        .map_err(|error| {
            LinkError::Device(format!(
                "{path} cannot connect to {peer}: {error} (GID {gid}, LID {lid}, MTU {})",
                mtu.unwrap_or(0)
            ))
        })
}
