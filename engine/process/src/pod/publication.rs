//! Publishes the pod's segment descriptor in the cluster's metadata service, checks it there, publishes it again where it is
//! lost, and removes it at the end. Each check is also the probe of the service from the pod's network.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::Endpoint;
use metadata::{Entry, Error, Lookup, Published, Service};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use crate::control::agent::Agent;
use crate::control::message::Addresses;

/// Time between two checks. Each is one request: 333 per second at 1,000 nodes. With it, a service that drops packets is
/// reported within 10 s: the check, two attempts of at most 2.5 s, and the time between them.
const PERIOD: Duration = Duration::from_secs(3);

/// Time until the next attempt after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// Failures in a row that count: one lost packet is none.
const FAILURES: u32 = 2;

/// Limit for the removal of the keys.
const WITHDRAW_DEADLINE: Duration = Duration::from_secs(3);

/// What is known of the service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Known {
    /// The service had the pod's keys at least once.
    pub(super) published: bool,
    /// Why it cannot be used now.
    pub(super) failure: Option<String>,
    /// The last call of [`Publication::refresh`] that an attempt has followed, whatever its result.
    attempted: u64,
}

/// The publication of one endpoint.
pub(super) struct Publication {
    service: Service,
    known: watch::Receiver<Known>,
    refreshed: Arc<Refreshed>,
    task: JoinHandle<()>,
}

/// Calls of [`Publication::refresh`].
#[derive(Default)]
struct Refreshed {
    calls: AtomicU64,
    notify: Notify,
}

/// Looks up the hosts of the service by the agent: this process has no files, so no resolver. Without an agent the last
/// addresses of a host count.
pub(super) fn lookup(agent: Agent) -> Lookup {
    let last: Arc<Mutex<HashMap<String, Vec<IpAddr>>>> = Arc::default();
    Arc::new(move |host| {
        let (agent, last) = (agent.clone(), Arc::clone(&last));
        Box::pin(async move {
            match agent.metadata_addresses(host.clone()).await {
                Ok(Addresses::Found { addresses }) => {
                    last.lock().insert(host, addresses.clone());
                    Ok(addresses)
                }
                Ok(Addresses::Failed { cause }) => Err(cause),
                Err(failure) => last.lock().get(&host).cloned().ok_or(failure.message),
            }
        })
    })
}

impl Publication {
    /// Starts to publish. It ends when the endpoint is closed, or by [`Self::withdraw`].
    pub(super) fn start(service: Service, endpoint: &Arc<Endpoint>) -> Self {
        let refreshed = Arc::new(Refreshed::default());
        let (sender, known) = watch::channel(Known::default());
        let publisher = Publisher {
            service: service.clone(),
            endpoint: Arc::downgrade(endpoint),
            known: sender,
            refreshed: Arc::clone(&refreshed),
        };
        Self {
            service,
            known,
            refreshed,
            task: tokio::spawn(publisher.run()),
        }
    }

    pub(super) fn known(&self) -> Known {
        self.known.borrow().clone()
    }

    /// Waits for a change of [`Self::known`]. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        if self.known.changed().await.is_err() {
            // The endpoint is closed.
            std::future::pending::<()>().await;
        }
    }

    /// The descriptor has changed, or the service may have lost it: checks and publishes it at once.
    pub(super) fn refresh(&self) {
        self.refreshed.calls.fetch_add(1, Ordering::Relaxed);
        self.refreshed.notify.notify_one();
    }

    /// Whether an attempt has followed the last call of [`Self::refresh`].
    pub(super) fn is_attempted(&self) -> bool {
        self.known.borrow().attempted >= self.refreshed.calls.load(Ordering::Relaxed)
    }

    /// Ends the publication and removes the keys.
    pub(super) async fn withdraw(self, entry: &Entry) {
        self.task.abort();
        // Its request in progress must not publish again.
        let _ = self.task.await;
        match timeout(WITHDRAW_DEADLINE, entry.withdraw(&self.service)).await {
            Ok(Ok(())) => tracing::info!("removed the descriptor from the metadata service"),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the descriptor stays in the metadata service");
            }
            Err(_) => tracing::warn!(
                "the descriptor stays in the metadata service: no answer within {WITHDRAW_DEADLINE:?}"
            ),
        }
    }
}

struct Publisher {
    service: Service,
    endpoint: Weak<Endpoint>,
    known: watch::Sender<Known>,
    refreshed: Arc<Refreshed>,
}

impl Publisher {
    async fn run(self) {
        let mut sought: Option<Entry> = None;
        let mut failures = 0;
        let mut turn = false;
        loop {
            let Some(endpoint) = self.endpoint.upgrade() else {
                return;
            };
            let Some(mut entry) = endpoint.metadata_entry() else {
                return;
            };
            drop(endpoint);
            if let Some(before) = &sought {
                // Its time alone is no change.
                entry
                    .descriptor
                    .timestamp
                    .clone_from(&before.descriptor.timestamp);
            }
            let attempted = self.refreshed.calls.load(Ordering::Relaxed);
            let same = sought.as_ref() == Some(&entry);
            turn = !turn;
            let done = self.round(&entry, same, turn).await;
            let wait = match done {
                Ok(()) => {
                    failures = 0;
                    sought = Some(entry);
                    self.set(Known {
                        published: true,
                        failure: None,
                        attempted,
                    });
                    PERIOD
                }
                Err(error) => {
                    failures += 1;
                    sought = None;
                    if failures >= FAILURES {
                        self.fail(&error, attempted);
                    }
                    RETRY
                }
            };
            tokio::select! {
                () = sleep_until(Instant::now() + wait) => {}
                () = self.refreshed.notify.notified() => {}
            }
        }
    }

    /// Publishes an entry. One that is known to be there is only checked, one of its keys in turn.
    async fn round(&self, entry: &Entry, known: bool, turn: bool) -> Result<(), Error> {
        if known {
            let there = if turn {
                entry.is_described(&self.service).await?
            } else {
                entry.is_reachable(&self.service).await?
            };
            if there {
                return Ok(());
            }
            tracing::warn!("the metadata service lost the descriptor: publishing it again");
        }
        if entry.publish(&self.service).await? == Published::Written {
            tracing::info!(
                service = ?self.service, name = entry.descriptor.name,
                "published the descriptor in the metadata service"
            );
        }
        Ok(())
    }

    fn fail(&self, error: &Error, attempted: u64) {
        let before = self.known.borrow().clone();
        let failure = Some(error.to_string());
        if before.failure != failure {
            tracing::warn!("{error}");
        }
        self.set(Known {
            published: before.published,
            failure,
            attempted,
        });
    }

    fn set(&self, known: Known) {
        self.known.send_if_modified(|before| {
            let changed = *before != known;
            *before = known;
            changed
        });
    }
}
