//! The asking side of the hand-over: one call at a time, and what comes unasked kept in order.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use super::message::{Attached, Call, FromPool, PROTOCOL, Reply, Request, Status};
use super::{ANSWER_DEADLINE, Connection, Error};

/// What a pool says unasked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// How far the touching of an extent is.
    Touched {
        /// Which extent.
        index: usize,
        /// Bytes whose pages exist.
        bytes: u64,
        /// Why touching stopped before the end.
        failure: Option<String>,
    },
    /// The pool was told to end.
    DrainRequest,
}

/// Most events kept while an answer is awaited; more is nonsense.
const EVENT_LIMIT: usize = 4096;

/// An agent's (or a probe's) end of the connection.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    next: u64,
    events: VecDeque<Event>,
}

impl Client {
    /// Speaks over a connected socket.
    #[must_use]
    pub fn new(connection: Connection) -> Self {
        Self {
            connection,
            next: 1,
            events: VecDeque::new(),
        }
    }

    /// Becomes the pool's agent.
    ///
    /// # Errors
    /// See [`Self::call`].
    pub async fn attach(&mut self) -> Result<Attached, Error> {
        let request = Request::Attach { protocol: PROTOCOL };
        match self.call(request).await? {
            (Reply::Attached(attached), _) => Ok(attached),
            _ => Err(Error::WrongAnswer { request: "attach" }),
        }
    }

    /// How the pool is.
    ///
    /// # Errors
    /// See [`Self::call`].
    pub async fn status(&mut self) -> Result<Status, Error> {
        match self.call(Request::Status).await? {
            (Reply::Status(status), _) => Ok(status),
            _ => Err(Error::WrongAnswer { request: "status" }),
        }
    }

    /// The record kept for the agent, if one was ever put.
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

    /// Asks for something whose answer is only done or refused.
    ///
    /// # Errors
    /// See [`Self::call`].
    pub async fn tell(&mut self, request: Request) -> Result<(), Error> {
        self.descriptors::<0>(request).await.map(|[]| ())
    }

    /// Asks for something that comes with exactly `N` descriptors.
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

    /// Waits for what comes unasked, without a bound; dropping it loses nothing.
    ///
    /// # Errors
    /// [`Error::Closed`] when the pool is gone or has a newer agent.
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
            FromPool::Answer { .. } => Err(Error::Nonsense {
                cause: "an answer that nobody waits for".to_owned(),
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
                    // The answer to a call that was given up.
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
                    return Err(Error::Nonsense {
                        cause: "events without end".to_owned(),
                    });
                }
                self.events.push_back(event);
            }
        };
        let answer = tokio::time::timeout(ANSWER_DEADLINE, exchange).await;
        match answer {
            Err(_) => Err(Error::Silent {
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
