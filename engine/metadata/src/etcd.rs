//! Requests to an etcd: by the member that answered last, and by the others where it fails. What an engine publishes is
//! under a lease, so a dead engine leaves nothing.

pub(crate) mod credentials;
mod failure;
mod member;
mod tls;

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Client, Compare, CompareOp, PutOptions, Txn, TxnOp};
use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use proto::metadata::HostPort;
use tokio::time::{Instant, sleep, timeout};

use crate::connect::Lookup;
use crate::error::{Error, Problem};
use credentials::Credentials;
use member::{Login, Member};

/// Limit for an operation with its connections, as of stock engines.
const OPERATION_DEADLINE: Duration = Duration::from_secs(5);

/// Limit for one request to one member.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_millis(1_500);

/// Time until the next endpoint is tried beside one that has not answered yet.
const HEAD_START: Duration = Duration::from_millis(100);

/// Seconds after which etcd removes the keys of an engine that no longer renews them.
pub(crate) const LEASE_SECONDS: i64 = 60;

/// A lease that its owner has not renewed for this long is that of a dead process. A living one renews it every 3 s, and
/// needs up to 5 s more.
const SILENCE: Duration = Duration::from_secs(15);

/// A value and the lease that it is under; 0: none, as of stock engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) lease: i64,
    /// That of its last write.
    pub(crate) revision: i64,
}

/// A key to be written.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) key: String,
    pub(crate) value: Vec<u8>,
    /// [`Value::revision`] of what it replaces; 0: nothing.
    pub(crate) seen: i64,
}

/// An etcd.
pub(crate) struct Etcd {
    text: Arc<str>,
    endpoints: Vec<HostPort>,
    lookup: Lookup,
    /// `None`: without TLS, as stock engines.
    credentials: Option<Arc<Credentials>>,
    /// The member that answered last.
    current: Mutex<Option<Arc<Member>>>,
    lease: Mutex<Option<Lease>>,
}

/// The lease of what this process publishes.
struct Lease {
    id: i64,
    renewed: Instant,
    /// Names that this process has published, and to which another process has no right while this lease is renewed.
    names: BTreeSet<String>,
}

impl Etcd {
    pub(crate) fn new(
        text: Arc<str>,
        endpoints: Vec<HostPort>,
        lookup: Lookup,
        credentials: Option<Arc<Credentials>>,
    ) -> Self {
        Self {
            text,
            endpoints,
            lookup,
            credentials,
            current: Mutex::new(None),
            lease: Mutex::new(None),
        }
    }

    /// Returns the value of a key; `None` if there is no such key.
    pub(crate) async fn get(&self, key: &str) -> Result<Option<Value>, Error> {
        let key = key.to_owned();
        let response = self
            .call("Range", move |mut client| {
                let key = key.clone();
                async move { client.get(key, None).await }.boxed()
            })
            .await?;
        let found = response.kvs().first();
        Ok(found.map(|found| Value {
            bytes: found.value().to_vec(),
            lease: found.lease(),
            revision: found.mod_revision(),
        }))
    }

    /// Writes keys under a lease, all or none. Returns false if another process has written one of them since it was seen.
    pub(crate) async fn put(&self, writes: &[Write], lease: i64) -> Result<bool, Error> {
        let under = PutOptions::new().with_lease(lease);
        let seen =
            |write: &Write| Compare::mod_revision(write.key.as_str(), CompareOp::Equal, write.seen);
        let put = |write: &Write| {
            let (key, value) = (write.key.as_str(), write.value.as_slice());
            TxnOp::put(key, value, Some(under.clone()))
        };
        let seen: Vec<Compare> = writes.iter().map(seen).collect();
        let puts: Vec<TxnOp> = writes.iter().map(put).collect();
        let done = self
            .call("Txn", move |mut client| {
                let puts = Txn::new().when(seen.clone()).and_then(puts.clone());
                async move { client.txn(puts).await }.boxed()
            })
            .await?;
        Ok(done.succeeded())
    }

    /// Whether a process renews a lease: it lives. One that etcd does not have has ended.
    pub(crate) async fn is_renewed(&self, lease: i64) -> Result<bool, Error> {
        let left = self
            .call("LeaseTimeToLive", move |mut client| {
                async move { client.lease_time_to_live(lease, None).await }.boxed()
            })
            .await?;
        let silent = u64::try_from(left.granted_ttl() - left.ttl()).unwrap_or(0);
        Ok(left.ttl() > 0 && Duration::from_secs(silent) <= SILENCE)
    }

    /// Returns the lease of this process, renewed or new. Fails while etcd has an alarm, which also rejects writes.
    pub(crate) async fn lease(&self) -> Result<i64, Error> {
        let status = self
            .call("Status", |mut client| {
                let status = async move {
                    match client.status().await {
                        // A user that may not read it learns of an alarm when it writes.
                        Err(error) if failure::is_forbidden(&error) => Ok(None),
                        status => status.map(Some),
                    }
                };
                status.boxed()
            })
            .await?;
        let alarms = status.as_ref().map_or(&[][..], |status| status.errors());
        if !alarms.is_empty() {
            return Err(self.error(None, failure::alarm(alarms)));
        }
        let known = self.lease.lock().as_ref().map(|lease| lease.id);
        if let Some(lease) = known {
            let renewed = self
                .call("LeaseKeepAlive", move |mut client| {
                    let renewal = async move {
                        match client.lease_keep_alive(lease).await {
                            Ok(_) => Ok(true),
                            // An etcd that lost its data.
                            Err(etcd_client::Error::LeaseKeepAliveError(_)) => Ok(false),
                            Err(error) => Err(error),
                        }
                    };
                    renewal.boxed()
                })
                .await?;
            if renewed {
                if let Some(known) = self.lease.lock().as_mut() {
                    if known.renewed.elapsed() > SILENCE {
                        // Other processes took this one for dead.
                        known.names.clear();
                    }
                    known.renewed = Instant::now();
                }
                return Ok(lease);
            }
        }
        let granted = self
            .call("LeaseGrant", |mut client| {
                async move { client.lease_grant(LEASE_SECONDS, None).await }.boxed()
            })
            .await?;
        *self.lease.lock() = Some(Lease {
            id: granted.id(),
            renewed: Instant::now(),
            names: BTreeSet::new(),
        });
        Ok(granted.id())
    }

    /// Whether this process published under the name before, and others could see since then that it lives.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        let lease = self.lease.lock();
        lease
            .as_ref()
            .is_some_and(|lease| lease.names.contains(name))
    }

    /// This process has published under the name.
    pub(crate) fn take_name(&self, name: &str) {
        if let Some(lease) = self.lease.lock().as_mut() {
            lease.names.insert(name.to_owned());
        }
    }

    /// Ends the lease and with it what this process has published. What a successor has published under its own stays.
    pub(crate) async fn revoke(&self) -> Result<(), Error> {
        let Some(Lease { id: lease, .. }) = self.lease.lock().take() else {
            return Ok(());
        };
        self.call("LeaseRevoke", move |mut client| {
            let revocation = async move {
                match client.lease_revoke(lease).await {
                    Err(error) if failure::is_unknown_lease(&error) => Ok(()),
                    other => other.map(|_| ()),
                }
            };
            revocation.boxed()
        })
        .await
    }

    pub(crate) fn error(&self, address: Option<SocketAddr>, problem: Problem) -> Error {
        Error {
            url: Arc::clone(&self.text),
            address,
            problem,
        }
    }

    /// Sends a request to the member that answered last; if it fails there, to the first one that is found to work.
    async fn call<T>(
        &self,
        operation: &'static str,
        request: impl Fn(Client) -> BoxFuture<'static, Result<T, etcd_client::Error>>,
    ) -> Result<T, Error> {
        let last = Mutex::new(None);
        let done = timeout(OPERATION_DEADLINE, async {
            let known = self.current.lock().clone();
            // One with earlier credentials is replaced, also if it still works.
            let known = known.filter(|member| member.login.is_current(self.credentials.as_deref()));
            if let Some(member) = known {
                *last.lock() = Some(member.address);
                let done = timeout(REQUEST_DEADLINE, request(member.client.clone())).await;
                match done {
                    Ok(Ok(value)) => return Ok(value),
                    Ok(Err(error)) => {
                        if let Some(problem) = member.login.of_cluster(operation, &error) {
                            return Err(self.error(Some(member.address), problem));
                        }
                    }
                    Err(_) => {}
                }
                self.forget(&member);
            }
            let member = self.connect().await?;
            *last.lock() = Some(member.address);
            let problem = match timeout(REQUEST_DEADLINE, request(member.client.clone())).await {
                Ok(Ok(value)) => {
                    *self.current.lock() = Some(member);
                    return Ok(value);
                }
                Ok(Err(error)) => member.failure(operation, error).await,
                Err(_) => Problem::Slow(REQUEST_DEADLINE),
            };
            Err(self.error(Some(member.address), problem))
        })
        .await;
        done.unwrap_or_else(|_| {
            let last = *last.lock();
            Err(self.error(last, Problem::Slow(OPERATION_DEADLINE)))
        })
    }

    fn forget(&self, member: &Arc<Member>) {
        let mut current = self.current.lock();
        if current.as_ref().is_some_and(|now| Arc::ptr_eq(now, member)) {
            *current = None;
        }
    }

    /// Returns the first member that answers and has a leader. Begins with a random one, so that the engines of a cluster
    /// do not all use the same.
    async fn connect(&self) -> Result<Arc<Member>, Error> {
        let login = match &self.credentials {
            Some(credentials) => credentials.login(),
            None => Ok(Login::default()),
        };
        let login = &login.map_err(|problem| self.error(None, problem))?;
        let count = self.endpoints.len();
        // std seeds each hasher at random.
        let first = usize::try_from(RandomState::new().hash_one(0) >> 32).unwrap_or(0);
        let mut attempts: FuturesUnordered<_> = (0..count)
            .map(|turn| async move {
                sleep(HEAD_START * u32::try_from(turn).unwrap_or(0)).await;
                let endpoint = &self.endpoints[(first + turn) % count];
                let member = Member::connect(endpoint, &self.lookup, login).await;
                member.map_err(|(address, problem)| (endpoint, address, problem))
            })
            .collect();
        let mut failed = Vec::new();
        while let Some(attempt) = attempts.next().await {
            match attempt {
                Ok(member) => return Ok(Arc::new(member)),
                Err(failure) => failed.push(failure),
            }
        }
        Err(self.none_works(failed))
    }

    /// The failure of all endpoints. A member without a leader is the cause, and the other members are its evidence.
    fn none_works(&self, mut failed: Vec<(&HostPort, Option<SocketAddr>, Problem)>) -> Error {
        if failed.len() == 1
            && let Some((_, address, problem)) = failed.pop()
        {
            return self.error(address, problem);
        }
        failed.sort_by(|(one, ..), (other, ..)| one.authority.cmp(&other.authority));
        let found = failed
            .iter()
            .position(|(.., problem)| matches!(problem, Problem::NoQuorum(_)));
        if let Some(found) = found {
            let (_, address, _) = failed.remove(found);
            failed.retain(|(.., problem)| !matches!(problem, Problem::NoQuorum(_)));
            return self.error(address, Problem::NoQuorum(listed(&failed).into()));
        }
        self.error(None, Problem::NoEndpoint(listed(&failed).into()))
    }
}

/// Most endpoints that a message lists.
const LISTED: usize = 3;

fn listed(failed: &[(&HostPort, Option<SocketAddr>, Problem)]) -> String {
    let mut lines: Vec<String> = failed
        .iter()
        .take(LISTED)
        .map(|(endpoint, address, problem)| {
            let address = address.map_or_else(String::new, |address| address.to_string());
            if address.is_empty() || address == endpoint.authority {
                format!("{}: {}", endpoint.authority, problem.short())
            } else {
                format!("{} at {address}: {}", endpoint.authority, problem.short())
            }
        })
        .collect();
    if failed.len() > LISTED {
        lines.push(format!("and {} others", failed.len() - LISTED));
    }
    lines.join("; ")
}
