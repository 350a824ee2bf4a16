//! Client of the hand-over: one call at a time; events are queued in order.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use super::message::{
    Attached, Call, FromPool, OLDEST_PROTOCOL, PROTOCOL, PROTOCOL_WITH_SECRET, RefusalKind, Reply,
    Request, Status,
};
use super::{ANSWER_DEADLINE, Connection, Error};

/// Messages of a pool without a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Progress of touching an extent.
    Touched {
        /// Which extent.
        index: usize,
        /// Bytes whose pages exist.
        bytes: u64,
        /// Why touching stopped before the end.
        failure: Option<String>,
    },
    /// The pool is terminating.
    DrainRequest,
}

/// Most events that are queued while an answer is awaited.
const EVENT_LIMIT: usize = 4096;

/// An agent's (or a probe's) end of the connection.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    /// Of the pool that is attached.
    protocol: u32,
    next: u64,
    events: VecDeque<Event>,
}

impl Client {
    /// Uses a connected socket.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            protocol: OLDEST_PROTOCOL,
            next: 1,
            events: VecDeque::new(),
        }
    }

    /// Becomes the pool's agent, with the highest version that the pool has too.
    ///
    /// # Errors
    /// See [`Self::call`].
    pub async fn attach(&mut self) -> Result<Attached, Error> {
        let mut protocol = PROTOCOL;
        loop {
            match self.attach_with(protocol).await {
                Err(Error::Refused {
                    kind: RefusalKind::Protocol,
                    ..
                }) if protocol > OLDEST_PROTOCOL => protocol -= 1,
                attached => {
                    self.protocol = protocol;
                    return attached;
                }
            }
        }
    }

    async fn attach_with(&mut self, protocol: u32) -> Result<Attached, Error> {
        match self.call(Request::Attach { protocol }).await? {
            (Reply::Attached(attached), _) => Ok(attached),
            _ => Err(Error::WrongAnswer { request: "attach" }),
        }
    }

    /// Reads the status.
    ///
    /// # Errors
    /// See [`Self::call`].
    pub async fn status(&mut self) -> Result<Status, Error> {
        match self.call(Request::Status).await? {
            (Reply::Status(status), _) => Ok(status),
            _ => Err(Error::WrongAnswer { request: "status" }),
        }
    }

    /// Reads the stored record, if there is one.
    ///
    /// # Errors
    /// See [`Self::call`].
    pub async fn record(&mut self) -> Result<Option<String>, Error> {
        match self.call(Request::GetRecord).await? {
            (Reply::Record { record }, _) => Ok(record),
            _ => Err(Error::WrongAnswer {
                request: "getRecord",
            }),
        }
    }

    /// Reads what the Secret of the metadata service has now; `None` if the pool is of an earlier release.
    ///
    /// # Errors
    /// See [`Self::call`]; [`Error::Refused`] if the pod has no such Secret, or a file cannot be read.
    pub async fn secret(&mut self) -> Result<Option<BTreeMap<String, String>>, Error> {
        if self.protocol < PROTOCOL_WITH_SECRET {
            return Ok(None);
        }
        match self.call(Request::Secret).await? {
            (Reply::Secret { files }, _) => Ok(Some(files)),
            _ => Err(Error::WrongAnswer { request: "secret" }),
        }
    }

    /// Sends a request whose answer has no content.
    ///
    /// # Errors
    /// See [`Self::call`].
    pub async fn request(&mut self, request: Request) -> Result<(), Error> {
        self.descriptors::<0>(request).await.map(|[]| ())
    }

    /// Sends a request whose answer has exactly `N` descriptors.
    ///
    /// # Errors
    /// See [`Self::call`]; [`Error::WrongAnswer`] for another count.
    pub async fn descriptors<const N: usize>(
        &mut self,
        request: Request,
    ) -> Result<[OwnedFd; N], Error> {
        let name = request.name();
        let wrong = Error::WrongAnswer { request: name };
        match self.call(request).await? {
            (Reply::Done, descriptors) => descriptors.try_into().map_err(|_| wrong),
            _ => Err(wrong),
        }
    }

    /// Waits for an event without a deadline; cancel-safe.
    ///
    /// # Errors
    /// [`Error::Closed`]: the pool exited or has a newer agent.
    pub async fn event(&mut self) -> Result<Event, Error> {
        if let Some(event) = self.events.pop_front() {
            return Ok(event);
        }
        match self.connection.receive().await?.0 {
            FromPool::Touched {
                index,
                bytes,
                failure,
            } => Ok(Event::Touched {
                index,
                bytes,
                failure,
            }),
            FromPool::DrainRequest => Ok(Event::DrainRequest),
            FromPool::Answer { .. } => Err(Error::InvalidMessage {
                cause: "an answer without a request".to_owned(),
            }),
        }
    }

    /// One request and its answer, within [`ANSWER_DEADLINE`].
    async fn call(&mut self, request: Request) -> Result<(Reply, Vec<OwnedFd>), Error> {
        let name = request.name();
        let id = self.next;
        self.next += 1;
        let exchange = async {
            let call = Call { id, request };
            self.connection.send(&call, &[], ANSWER_DEADLINE).await?;
            loop {
                let event = match self.connection.receive().await? {
                    (FromPool::Answer { id: of, reply }, descriptors) if of == id => {
                        return Ok((reply, descriptors));
                    }
                    // The answer to an abandoned call.
                    (FromPool::Answer { id: of, .. }, _) if of < id => continue,
                    (FromPool::Answer { .. }, _) => {
                        return Err(Error::WrongAnswer { request: name });
                    }
                    (FromPool::DrainRequest, _) => Event::DrainRequest,
                    (
                        FromPool::Touched {
                            index,
                            bytes,
                            failure,
                        },
                        _,
                    ) => Event::Touched {
                        index,
                        bytes,
                        failure,
                    },
                };
                if self.events.len() == EVENT_LIMIT {
                    return Err(Error::InvalidMessage {
                        cause: "too many events".to_owned(),
                    });
                }
                self.events.push_back(event);
            }
        };
        let answer = tokio::time::timeout(ANSWER_DEADLINE, exchange).await;
        match answer {
            Err(_) => Err(Error::TimedOut {
                stage: name,
                deadline: ANSWER_DEADLINE,
            }),
            Ok(Err(error)) => Err(error),
            Ok(Ok((Reply::Refused { kind, message }, _))) => Err(Error::Refused {
                request: name,
                kind,
                message,
            }),
            Ok(Ok(answer)) => Ok(answer),
        }
    }
}
