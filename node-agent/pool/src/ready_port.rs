//! The port that is open while the pool is ready. The kubelet's readiness probe connects to it, which starts no process.

use std::io;

use tokio::net::{TcpListener, TcpStream};

use crate::handover::message::Status;
use crate::serve::bind;

/// The port, open or closed.
pub(super) struct ReadyPort {
    port: u16,
    listener: Option<TcpListener>,
}

impl ReadyPort {
    pub(super) fn closed(port: u16) -> Self {
        Self {
            port,
            listener: None,
        }
    }

    /// Opens or closes the port, as the status demands. A port that cannot be opened is logged; the next call tries again.
    pub(super) fn follow(&mut self, status: &Status) {
        match (status.ready, &self.listener) {
            (true, None) => match open(self.port) {
                Ok(listener) => {
                    tracing::info!("ready: {}", status.reason);
                    self.listener = Some(listener);
                }
                Err(error) => {
                    tracing::warn!(%error, port = self.port, "cannot open the port of the readiness probe");
                }
            },
            (false, Some(_)) => {
                tracing::info!("not ready: {}", status.reason);
                self.listener = None;
            }
            _ => {}
        }
    }

    /// Waits for a connection. Never returns while the port is closed. A failure closes the port until the next
    /// [`Self::follow`].
    pub(super) async fn accept(&mut self) -> io::Result<TcpStream> {
        let Some(listener) = &self.listener else {
            return std::future::pending().await;
        };
        match listener.accept().await {
            Ok((connection, _)) => Ok(connection),
            Err(error) => {
                self.listener = None;
                Err(error)
            }
        }
    }
}

fn open(port: u16) -> io::Result<TcpListener> {
    let listener = bind(port)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}
