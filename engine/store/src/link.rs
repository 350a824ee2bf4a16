//! The session's present connection, for work that outlives one connection.

use std::sync::Arc;

use proto::store::Rpc;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::master::{Cause, Error, Master, Stage};

/// Follows a session from one connection to the next.
#[derive(Clone)]
pub(crate) struct Link {
    present: watch::Receiver<Option<Master>>,
    peer: Arc<str>,
}

impl Link {
    pub(crate) fn new(present: watch::Receiver<Option<Master>>, peer: Arc<str>) -> Self {
        Self { present, peer }
    }

    /// Calls on the present connection; when that one fails, again on the next, until `deadline`.
    /// So a call may be carried out twice: only for functions where that does no harm.
    pub(crate) async fn call_until<R: Rpc>(
        &self,
        arguments: &R::Arguments,
        deadline: Instant,
    ) -> Result<R::Value, Error> {
        let mut present = self.present.clone();
        let mut last = None;
        let attempts = async {
            loop {
                let master = present.borrow_and_update().clone();
                if let Some(master) = master {
                    match master.call::<R>(arguments).await {
                        Err(error) if error.is_of_the_connection() => last = Some(error),
                        answer => return answer,
                    }
                }
                if present.changed().await.is_err() {
                    return Err(self.unconnected::<R>(last.take()));
                }
            }
        };
        match timeout_at(deadline, attempts).await {
            Ok(answer) => answer,
            Err(_elapsed) => Err(self.unconnected::<R>(last)),
        }
    }

    /// Calls once, on the present connection.
    pub(crate) async fn call_once<R: Rpc>(
        &self,
        arguments: &R::Arguments,
    ) -> Result<R::Value, Error> {
        let master = self.present.borrow().clone();
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
            cause: Cause::Unconnected,
        })
    }
}
