//! Listeners of the HTTP services: one for admitted peers, and one for every peer with few and short connections.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use crate::leadership::Leadership;
use crate::server::Master;

/// Connections at a time on the open port. Further ones are closed at once.
const OPEN_CONNECTIONS: usize = 64;
/// Longest duration of a connection on the open port.
const OPEN_DURATION: Duration = Duration::from_secs(30);
/// Wait after a failed `accept`, for example without free descriptors.
const PAUSE: Duration = Duration::from_millis(10);

/// A listener that closes the connections of some peers before a byte is read, and ends others later.
#[derive(Debug)]
pub(super) struct Guarded {
    listener: TcpListener,
    rule: Rule,
}

#[derive(Debug)]
enum Rule {
    Admitted(Arc<Master>),
    Open(Arc<Semaphore>),
}

impl Guarded {
    /// Accepts admitted peers, until they are no longer admitted.
    pub(super) fn admitted(listener: TcpListener, master: Arc<Master>) -> Self {
        let rule = Rule::Admitted(master);
        Self { listener, rule }
    }

    /// Accepts every peer.
    pub(super) fn open(listener: TcpListener) -> Self {
        let rule = Rule::Open(Arc::new(Semaphore::new(OPEN_CONNECTIONS)));
        Self { listener, rule }
    }
}

impl Rule {
    /// Returns what bounds the connection; `None` if it is refused.
    fn end(&self, address: SocketAddr) -> Option<Bounds> {
        match self {
            Self::Admitted(master) => {
                let peer = master.admit(address)?;
                Some(Bounds {
                    end: Box::pin(Arc::clone(master).no_longer_served(peer)),
                    leadership: Some(master.leadership().clone()),
                    _place: None,
                })
            }
            Self::Open(places) => {
                let place = Arc::clone(places).try_acquire_owned().ok()?;
                Some(Bounds {
                    end: Box::pin(sleep(OPEN_DURATION)),
                    leadership: None,
                    _place: Some(place),
                })
            }
        }
    }
}

/// What bounds a connection.
struct Bounds {
    end: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// Nothing is sent after its end, also where the process was stopped meanwhile.
    leadership: Option<Leadership>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Listener for Guarded {
    type Io = Limited;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Limited, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    if let Some(bounds) = self.rule.end(address) {
                        let limited = Limited {
                            stream,
                            bounds,
                            ended: false,
                        };
                        return (limited, address);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection for HTTP");
                    sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that fails from a certain moment on.
pub(super) struct Limited {
    stream: TcpStream,
    bounds: Bounds,
    ended: bool,
}

impl Limited {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Bounds {
            end,
            leadership,
            _place: _,
        } = &mut self.bounds;
        self.ended = self.ended
            || leadership.as_ref().is_some_and(|leads| !leads.holds())
            || end.as_mut().poll(context).is_ready();
        if self.ended {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        Ok(())
    }
}

impl AsyncRead for Limited {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Limited {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
