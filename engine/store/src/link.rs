//! Calls on a session's current connection, for work that outlives a connection.

use std::sync::Arc;

use proto::store::Rpc;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::master::{Cause, Error, Master, Stage};

/// Follows the connections of a session.
#[derive(Clone)]
pub(crate) struct Link {
    current: watch::Receiver<Option<Master>>,
    peer: Arc<str>,
}

impl Link {
    pub(crate) fn new(current: watch::Receiver<Option<Master>>, peer: Arc<str>) -> Self {
        Self { current, peer }
    }

    /// Calls on the current connection, and retries on the next one, until `deadline`. The master may carry
    /// out the call more than once, so the function must be idempotent.
    pub(crate) async fn call_until<R: Rpc>(
        &self,
        arguments: &R::Arguments,
        deadline: Instant,
    ) -> Result<R::Value, Error> {
        let mut current = self.current.clone();
        let mut last = None;
        let attempts = async {
            loop {
                let master = current.borrow_and_update().clone();
                if let Some(master) = master {
                    match master.call::<R>(arguments).await {
                        Err(error) if error.is_connection_error() => last = Some(error),
                        answer => return answer,
                    }
                }
                if current.changed().await.is_err() {
                    return Err(self.unconnected::<R>(last.take()));
                }
            }
        };
        match timeout_at(deadline, attempts).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(self.unconnected::<R>(last)),
        }
    }

    /// Returns whether the session has ended: there will be no other connection.
    pub(crate) fn has_ended(&self) -> bool {
        self.current.has_changed().is_err()
    }

    /// Calls once, on the current connection.
    pub(crate) async fn call_once<R: Rpc>(
        &self,
        arguments: &R::Arguments,
    ) -> Result<R::Value, Error> {
        let master = self.current.borrow().clone();
        match master {
            Some(master) => master.call::<R>(arguments).await,
            None => Err(self.unconnected::<R>(None)),
        }
    }

    fn unconnected<R: Rpc>(&self, last: Option<Error>) -> Error {
        last.unwrap_or_else(|| Error {
            peer: Arc::clone(&self.peer),
            rpc: R::METHOD,
            stage: Stage::Connect,
            cause: Cause::NotConnected,
        })
    }
}
