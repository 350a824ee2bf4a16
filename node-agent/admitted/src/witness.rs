//! Requests between electors: the holder of the Lease requests a promise of its witness. One request per connection: a line
//! `promise HOLDER EPOCH`, answered by `yes` or `no`.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

/// Deadline for a request to arrive, and for its answer to be taken.
const LINE: Duration = Duration::from_secs(1);
/// Longest line: the name of a pod has at most 253 characters.
const LONGEST: u64 = 512;
/// Wait after a connection could not be accepted.
const RETRY: Duration = Duration::from_millis(500);

/// The elector that is named as witness in a Lease: `NAME ADDRESS:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Witness {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.address)
    }
}

impl FromStr for Witness {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (name, address) = text.split_once(' ').ok_or(())?;
        Ok(Self {
            name: name.to_owned(),
            address: address.parse().map_err(drop)?,
        })
    }
}

/// A request of the holder. Without an answer, none is sent.
#[derive(Debug)]
pub struct Request {
    pub holder: String,
    pub epoch: u64,
    pub answer: oneshot::Sender<bool>,
}

/// Accepts requests of one address until it is dropped.
#[derive(Debug)]
pub struct Requests {
    address: SocketAddr,
    received: mpsc::Receiver<Request>,
    holder: watch::Sender<Option<IpAddr>>,
    task: AbortHandle,
}

impl Requests {
    /// Port 0: any free one.
    ///
    /// # Errors
    /// The errors of `bind`.
    pub async fn listen(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let (send, received) = mpsc::channel(1);
        let (holder, admitted) = watch::channel(None);
        let task = tokio::spawn(accept(listener, admitted, send));
        Ok(Self {
            address,
            received,
            holder,
            task: task.abort_handle(),
        })
    }

    /// Returns where this elector gets requests.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Only the elector at this address may send any. Others are closed before a byte is read.
    pub fn admit(&self, holder: Option<IpAddr>) {
        self.holder.send_replace(holder);
    }

    /// Waits for a request. Cancel-safe.
    pub async fn next(&mut self) -> Request {
        match self.received.recv().await {
            Some(request) => request,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One connection at a time: there is one holder, which sends one request at a time.
async fn accept(
    listener: TcpListener,
    admitted: watch::Receiver<Option<IpAddr>>,
    send: mpsc::Sender<Request>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let peer = peer.ip().to_canonical();
                if *admitted.borrow() == Some(peer) {
                    answer(stream, &send).await;
                } else {
                    tracing::debug!(%peer, "refused: not the elector that holds the Lease");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection of another elector");
                sleep(RETRY).await;
            }
        }
    }
}

/// A holder that sends nothing or leaves gets no answer.
async fn answer(stream: TcpStream, send: &mpsc::Sender<Request>) {
    let (read, mut write) = stream.into_split();
    let mut line = String::new();
    let mut read = BufReader::new(read.take(LONGEST));
    let Ok(Ok(_)) = timeout(LINE, read.read_line(&mut line)).await else {
        return;
    };
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["promise", holder, epoch] = *words else {
        tracing::warn!(line, "an elector sent an unknown line");
        return;
    };
    let Ok(epoch) = epoch.parse() else { return };
    let (reply, promised) = oneshot::channel();
    let request = Request {
        holder: holder.to_owned(),
        epoch,
        answer: reply,
    };
    // The elector may be in a call to the API server for seconds; the holder has given up then.
    let answered = timeout(LINE, async {
        send.send(request).await.ok()?;
        promised.await.ok()
    });
    if let Ok(Some(promised)) = answered.await {
        let text = if promised { "yes\n" } else { "no\n" };
        let _left = timeout(LINE, write.write_all(text.as_bytes())).await;
    }
}

/// Requests a promise of a witness, from this elector's own address, that lets the master of this term go on. False: it refuses.
///
/// # Errors
/// No answer before the limit, in words that follow the name of the witness.
pub(crate) async fn request(
    own: IpAddr,
    witness: &Witness,
    holder: &str,
    epoch: u64,
    limit: Duration,
) -> Result<bool, String> {
    let conversation = async {
        let socket = match witness.address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.bind(SocketAddr::new(own, 0))?;
        let stream = socket.connect(witness.address).await?;
        let (read, mut write) = stream.into_split();
        write
            .write_all(format!("promise {holder} {epoch}\n").as_bytes())
            .await?;
        let mut line = String::new();
        let mut read = BufReader::new(read.take(LONGEST));
        read.read_line(&mut line).await?;
        io::Result::Ok(line)
    };
    match timeout(limit, conversation).await {
        Ok(Ok(line)) => match line.as_str() {
            "yes\n" => Ok(true),
            "no\n" => Ok(false),
            "" => Err("it has closed the connection".to_owned()),
            other => Err(format!("it sent {other:?}")),
        },
        Ok(Err(error)) => Err(error.to_string()),
        Err(_elapsed) => Err(format!("no answer in {limit:?}")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const SOON: Duration = Duration::from_secs(30);

    fn loopback(last: u8) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, last).into()
    }

    /// A witness that promises epoch 7 to the elector at this address.
    async fn witness(holder: IpAddr) -> Witness {
        let mut requests = Requests::listen(SocketAddr::new(loopback(1), 0))
            .await
            .unwrap();
        requests.admit(Some(holder));
        let address = requests.address();
        tokio::spawn(async move {
            loop {
                let Request {
                    holder,
                    epoch,
                    answer,
                } = requests.next().await;
                answer.send(holder == "a" && epoch == 7).unwrap();
            }
        });
        Witness {
            name: "b".to_owned(),
            address,
        }
    }

    #[tokio::test]
    async fn a_request_is_answered_and_a_stranger_is_closed() {
        let witness = witness(loopback(2)).await;
        let from = |own, epoch| request(own, &witness, "a", epoch, SOON);
        assert_eq!(from(loopback(2), 7).await, Ok(true));
        assert_eq!(from(loopback(2), 8).await, Ok(false));
        assert!(from(loopback(3), 7).await.is_err(), "another address");
        assert_eq!(from(loopback(2), 7).await, Ok(true), "and after it");
    }

    #[tokio::test]
    async fn a_holder_that_sends_nothing_or_something_else_blocks_no_later_request() {
        let witness = witness(loopback(1)).await;
        let _silent = TcpStream::connect(witness.address).await.unwrap();
        let mut other = TcpStream::connect(witness.address).await.unwrap();
        other.write_all(b"lead 7\n").await.unwrap();
        let promised = request(loopback(1), &witness, "a", 7, SOON).await;
        assert_eq!(promised, Ok(true));
    }

    #[test]
    fn a_witness_is_written_as_it_is_read() {
        for text in ["kv-master-1 10.0.0.1:9005", "b [fd00::1]:9005"] {
            assert_eq!(text.parse::<Witness>().unwrap().to_string(), text);
        }
        for wrong in ["", "b", "b 10.0.0.1", "10.0.0.1:9005"] {
            assert!(wrong.parse::<Witness>().is_err(), "{wrong}");
        }
    }
}
