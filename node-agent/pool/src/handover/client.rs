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
    /// Version of the protocol of the attached pool.
    protocol: u32,
    next: u64,
    /// Calls that were given up, whose answers may still come.
    given_up: u64,
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
            given_up: 0,
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
        loop {
            match self.connection.receive().await?.0 {
                FromPool::Touched {
                    index,
                    bytes,
                    failure,
                } => {
                    return Ok(Event::Touched {
                        index,
                        bytes,
                        failure,
                    });
                }
                FromPool::DrainRequest => return Ok(Event::DrainRequest),
                FromPool::Answer { .. } if self.given_up > 0 => self.given_up -= 1,
                FromPool::Answer { .. } => {
                    return Err(Error::InvalidMessage {
                        cause: "an answer without a request".to_owned(),
                    });
                }
            }
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
                    (FromPool::Answer { id: of, .. }, _) if of < id => {
                        self.given_up = self.given_up.saturating_sub(1);
                        continue;
                    }
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
            Err(_) => {
                self.given_up += 1;
                Err(Error::TimedOut {
                    stage: name,
                    deadline: ANSWER_DEADLINE,
                })
            }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// A client, and a pool whose highest version this is. It answers until the client is dropped, and returns the names of
    /// the requests.
    fn pool(highest: u32) -> (Client, tokio::task::JoinHandle<Vec<&'static str>>) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (ours, its) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let its = Connection::new(its).unwrap();
        let answers = tokio::spawn(async move {
            let mut requests = Vec::new();
            while let Ok((Call { id, request }, _)) = its.receive::<Call>().await {
                requests.push(request.name());
                let reply = match request {
                    Request::Attach { protocol } if protocol > highest => Reply::Refused {
                        kind: RefusalKind::Protocol,
                        message: String::new(),
                    },
                    Request::Attach { protocol } => Reply::Attached(Attached {
                        pod_uid: String::new(),
                        pod_ip: String::new(),
                        handshake_port: 1,
                        data_port: 2,
                        extents: Vec::new(),
                        ending: false,
                        ledger: (protocol >= 2).then_some(1),
                    }),
                    Request::Secret => Reply::Secret {
                        files: BTreeMap::new(),
                    },
                    _ => Reply::Done,
                };
                let answer = FromPool::Answer { id, reply };
                let sent = its.send(&answer, &[], Duration::from_secs(5)).await;
                sent.unwrap();
            }
            requests
        });
        (Client::new(Connection::new(ours).unwrap()), answers)
    }

    #[tokio::test]
    async fn pools_of_all_versions_are_attached_and_only_the_newest_gets_a_request_for_its_secret()
    {
        for (version, ledger, secret) in
            [(1, None, None), (2, Some(1), None), (3, Some(1), Some(0))]
        {
            let (mut client, answers) = pool(version);
            assert_eq!(client.attach().await.unwrap().ledger, ledger);
            let files = client.secret().await.unwrap();
            assert_eq!(files.map(|files| files.len()), secret);
            drop(client);
            let requests = answers.await.unwrap();
            let attempts = usize::try_from(PROTOCOL - version + 1).unwrap();
            let mut expected = vec!["attach"; attempts];
            expected.extend(secret.map(|_| "secret"));
            assert_eq!(requests, expected);
        }
    }

    #[tokio::test]
    async fn the_late_answer_to_a_call_that_was_given_up_does_not_end_the_connection() {
        let (mut client, its) = connected();
        let late = client.record().await.unwrap_err();
        assert!(matches!(late, Error::TimedOut { .. }), "{late}");
        let (Call { id, .. }, _) = its.receive().await.unwrap();
        let answer = FromPool::Answer {
            id,
            reply: Reply::Record { record: None },
        };
        for message in [&answer, &FromPool::DrainRequest, &answer] {
            its.send(message, &[], Duration::from_secs(5))
                .await
                .unwrap();
        }
        assert_eq!(client.event().await.unwrap(), Event::DrainRequest);
        let twice = client.event().await.unwrap_err();
        assert!(matches!(twice, Error::InvalidMessage { .. }), "{twice}");
    }

    #[tokio::test]
    async fn a_pool_without_a_common_version_is_refused() {
        let (mut client, _answers) = pool(0);
        let error = client.attach().await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Refused {
                    kind: RefusalKind::Protocol,
                    ..
                }
            ),
            "{error}"
        );
    }

    /// A client, and the pool's end of its connection.
    fn connected() -> (Client, Connection) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (ours, its) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let its = Connection::new(its).unwrap();
        (Client::new(Connection::new(ours).unwrap()), its)
    }

    /// Sends these packets after the next request.
    async fn answer(pool: &Connection, packets: impl IntoIterator<Item = FromPool>) {
        let _request: (Call, _) = pool.receive().await.unwrap();
        for packet in packets {
            // Fails if the client has given up.
            let _sent = pool.send(&packet, &[], Duration::from_secs(5)).await;
        }
    }

    #[tokio::test]
    async fn an_answer_to_another_request_is_an_error_that_names_the_request() {
        let wrong = |id, reply| [FromPool::Answer { id, reply }];
        let named = |ended: Result<(), Error>, name: &str| {
            let error = ended.unwrap_err();
            assert!(
                matches!(error, Error::WrongAnswer { request } if request == name),
                "{error}"
            );
        };
        let (mut client, pool) = connected();
        client.protocol = PROTOCOL;
        let status = || {
            Reply::Status(Status {
                ready: true,
                reason: String::new(),
            })
        };
        let (ended, ()) = tokio::join!(client.attach(), answer(&pool, wrong(1, Reply::Done)));
        named(ended.map(drop), "attach");
        client.protocol = PROTOCOL;
        let (ended, ()) = tokio::join!(client.status(), answer(&pool, wrong(2, Reply::Done)));
        named(ended.map(drop), "status");
        let (ended, ()) = tokio::join!(client.record(), answer(&pool, wrong(3, status())));
        named(ended.map(drop), "getRecord");
        let (ended, ()) = tokio::join!(client.secret(), answer(&pool, wrong(4, status())));
        named(ended.map(drop), "secret");
        let touch = client.request(Request::Touch { index: 0 });
        let (ended, ()) = tokio::join!(touch, answer(&pool, wrong(5, status())));
        named(ended, "touch");
        // Without its descriptor.
        let extent = client.descriptors::<1>(Request::Extent { index: 0 });
        let (ended, ()) = tokio::join!(extent, answer(&pool, wrong(6, Reply::Done)));
        named(ended.map(drop), "extent");
        // To a request that was not sent yet.
        let (ended, ()) = tokio::join!(client.status(), answer(&pool, wrong(8, status())));
        named(ended.map(drop), "status");
    }

    #[tokio::test]
    async fn events_before_an_answer_are_kept_in_their_order_up_to_a_limit() {
        let touched = |bytes| FromPool::Touched {
            index: 1,
            bytes,
            failure: Some("no memory".to_owned()),
        };
        let record = FromPool::Answer {
            id: 1,
            reply: Reply::Record { record: None },
        };
        let (mut client, pool) = connected();
        let packets = [touched(1), FromPool::DrainRequest, record, touched(2)];
        let (read, ()) = tokio::join!(client.record(), answer(&pool, packets));
        assert_eq!(read.unwrap(), None);
        let event = |bytes| Event::Touched {
            index: 1,
            bytes,
            failure: Some("no memory".to_owned()),
        };
        for expected in [event(1), Event::DrainRequest, event(2)] {
            assert_eq!(client.event().await.unwrap(), expected);
        }
        let packets = (0..=EVENT_LIMIT as u64).map(touched);
        let (read, ()) = tokio::join!(client.record(), answer(&pool, packets));
        let error = read.unwrap_err().to_string();
        assert!(error.contains("too many events"), "{error}");
    }

    #[tokio::test]
    async fn packets_that_are_no_messages_and_the_end_have_their_errors() {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (ours, its) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        let mut client = Client::new(Connection::new(ours).unwrap());
        for packet in [&b"{"[..], br#"{"type":"left"}"#, b"\xff"] {
            sys::net::seqpacket::send(&its, packet, &[]).unwrap();
            let error = client.event().await.unwrap_err();
            assert!(matches!(error, Error::InvalidMessage { .. }), "{error}");
        }
        let long = Request::PutRecord {
            record: "r".repeat(crate::handover::PACKET_LIMIT),
        };
        let error = client.request(long).await.unwrap_err();
        assert!(matches!(error, Error::InvalidMessage { .. }), "{error}");
        drop(its);
        let error = client.event().await.unwrap_err();
        assert!(
            matches!(error, Error::Closed { stage: "receiving" }),
            "{error}"
        );
        let error = client.status().await.unwrap_err();
        assert!(
            matches!(error, Error::Closed { stage: "sending" }),
            "{error}"
        );
    }
}
