//! A control thread of a device, which makes calls that may block in the kernel, one after the other. A data thread never
//! waits for it, every other caller has a deadline, and a call past its own is reported even if nothing waits for it.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use sys::verbs;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// A call of a healthy device takes milliseconds, also behind hundreds of others.
const CALL: Duration = Duration::from_secs(10);

struct Job {
    what: &'static str,
    within: Duration,
    run: Box<dyn FnOnce() + Send>,
}

/// The call that the thread makes now.
#[derive(Debug, Clone, Copy)]
struct Running {
    /// Of the calls of the thread.
    number: u64,
    what: &'static str,
    within: Duration,
    since: Instant,
}

/// The handle to a control thread, which ends after the jobs of the last handle.
#[derive(Debug)]
pub(super) struct Worker {
    device: String,
    jobs: Sender<Job>,
    running: watch::Receiver<Option<Running>>,
}

/// Why a device cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CardError {
    /// There is no such device.
    #[error("there is no RDMA device {device}; this machine has: {}", present.join(", "))]
    Missing {
        /// The wanted device.
        device: String,
        /// All devices.
        present: Vec<String>,
    },
    /// The port is not active.
    #[error(
        "port {port} of RDMA device {device} is not active; check its cable and its network interface"
    )]
    Down {
        /// The device.
        device: String,
        /// Its port.
        port: u8,
    },
    /// The device does not finish a call.
    #[error(
        "RDMA device {device} has not finished within {} s: {what}. Take it out of service and end this process", within.as_secs()
    )]
    Hung {
        /// The device.
        device: String,
        /// The call, or the one behind an earlier one that hangs.
        what: &'static str,
        /// The deadline.
        within: Duration,
    },
    /// The device has refused a call that ends an access.
    #[error(
        "RDMA device {device} may still access memory that is no longer served: {source}. Take it out of service and end this process"
    )]
    Refused {
        /// The device.
        device: String,
        /// The call and its error.
        #[source]
        source: Arc<verbs::Error>,
    },
    /// A call failed.
    #[error("RDMA device {device}: {source}{}", remedy(.source))]
    Verbs {
        /// The device.
        device: String,
        /// The call and its error.
        #[source]
        source: Arc<verbs::Error>,
    },
    /// The region exceeds a limit of the device.
    #[error(
        "RDMA device {device} registers at most {most} bytes at once, and the region has {length}"
    )]
    TooLarge {
        /// The device.
        device: String,
        /// Bytes of the region.
        length: u64,
        /// `max_mr_size`.
        most: u64,
    },
    /// The region is registered at that wire base.
    #[error("the region is registered with RDMA device {device} at that wire base already")]
    Registered {
        /// The device.
        device: String,
    },
    /// The control thread cannot be started.
    #[error("cannot start the control thread of RDMA device {device}: {source}")]
    Thread {
        /// The device.
        device: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Returns what to do after a registration that has failed, as the end of a message.
fn remedy(error: &verbs::Error) -> &'static str {
    if error.call != verbs::Call::Register {
        return "";
    }
    match error.errno().map(Errno::from_raw_os_error) {
        Some(Errno::AGAIN) => {
            ". It has no memory keys left: move the pods off the node, then reload its driver or reboot the node"
        }
        Some(Errno::NOMEM) => {
            ". Memory of the node or of the device does not suffice, or the limit of locked memory: free memory of the node, and check that the agent is privileged"
        }
        Some(Errno::FAULT) => ". Pages of the memory are missing: delete the pool pod",
        Some(Errno::IO | Errno::NODEV) => {
            ". The device has failed, or was reset or removed: read the kernel log of the node"
        }
        _ => "",
    }
}

impl CardError {
    pub(super) fn verbs(device: &str) -> impl FnOnce(verbs::Error) -> Self {
        let device = device.to_owned();
        move |source| Self::Verbs {
            device,
            source: Arc::new(source),
        }
    }
}

impl Running {
    fn due(&self) -> Instant {
        self.since + self.within
    }

    fn hung(&self, device: &str) -> CardError {
        CardError::Hung {
            device: device.to_owned(),
            what: self.what,
            within: self.within,
        }
    }
}

/// Makes the calls of a control thread.
fn run(queue: Receiver<Job>, running: &watch::Sender<Option<Running>>) {
    for (number, job) in (0..).zip(queue) {
        running.send_replace(Some(Running {
            number,
            what: job.what,
            within: job.within,
            since: Instant::now(),
        }));
        (job.run)();
        running.send_replace(None);
    }
}

/// Waits for a call that is past its deadline and has not ended; `None` when the thread has ended.
async fn overdue(running: &mut watch::Receiver<Option<Running>>) -> Option<Running> {
    loop {
        let now = *running.borrow_and_update();
        let changed = running.changed();
        match now {
            Some(one) => match tokio::time::timeout_at(one.due(), changed).await {
                Ok(changed) => changed.ok()?,
                Err(_) => return Some(one),
            },
            None => changed.await.ok()?,
        }
    }
}

impl Worker {
    /// `role` begins the name of the thread.
    pub(super) fn start(role: &str, device: &str) -> Result<Self, CardError> {
        let (jobs, queue) = channel();
        let (running, now) = watch::channel(None);
        thread::Builder::new()
            .name(format!("{role}-{device}"))
            .spawn(move || run(queue, &running))
            .map_err(|source| CardError::Thread {
                device: device.to_owned(),
                source,
            })?;
        Ok(Self {
            device: device.to_owned(),
            jobs,
            running: now,
        })
    }

    /// Starts a call without waiting for its result.
    pub(super) fn start_call(&self, what: &'static str, job: impl FnOnce() + Send + 'static) {
        self.start_call_within(what, CALL, job);
    }

    /// As [`Self::start_call`], for a call of which a healthy device makes more than milliseconds.
    pub(super) fn start_call_within(
        &self,
        what: &'static str,
        within: Duration,
        job: impl FnOnce() + Send + 'static,
    ) {
        let run = Box::new(job);
        // The thread ends with its last handle, or by a panic, which the log has.
        if self.jobs.send(Job { what, within, run }).is_err() {
            tracing::error!(device = self.device, what, "the control thread has ended");
        }
    }

    /// Fails while a call is past its deadline. What waits behind it cannot be in time.
    pub(super) fn check(&self) -> Result<(), CardError> {
        match &*self.running.borrow() {
            Some(one) if one.due() <= Instant::now() => Err(one.hung(&self.device)),
            _ => Ok(()),
        }
    }

    /// Resolves when a call is past its deadline.
    pub(super) async fn hung(&self) -> CardError {
        match overdue(&mut self.running.clone()).await {
            Some(one) => one.hung(&self.device),
            // By a panic, which the log has.
            None => std::future::pending().await,
        }
    }

    /// Logs each call that is past its deadline, and its late end. Ends with the thread.
    pub(super) fn watch(&self) -> impl Future<Output = ()> + Send + 'static {
        let (device, mut running) = (self.device.clone(), self.running.clone());
        async move {
            while let Some(one) = overdue(&mut running).await {
                tracing::error!("{}", one.hung(&device));
                let others = |now: &Option<Running>| now.is_none_or(|now| now.number != one.number);
                if running.wait_for(others).await.is_err() {
                    return;
                }
                let seconds = one.since.elapsed().as_secs();
                tracing::warn!(device, call = one.what, seconds, "a late call has ended");
            }
        }
    }

    /// Makes a call and waits for its result, for `within` or the usual deadline. It is not made if nothing waits for it
    /// any more when it is next, and a late result is dropped on the control thread.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        within: Option<Duration>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CardError> {
        self.check()?;
        let within = within.unwrap_or(CALL);
        let (done, answer) = oneshot::channel();
        self.start_call_within(what, within, move || {
            if !done.is_closed() {
                drop(done.send(job()));
            }
        });
        match tokio::time::timeout(within, answer).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) | Err(_) => Err(self.late(what, within)),
        }
    }

    /// As [`Self::call`], outside of tokio.
    pub(super) fn call_blocking<T: Send + 'static>(
        &self,
        what: &'static str,
        within: Option<Duration>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CardError> {
        self.check()?;
        let within = within.unwrap_or(CALL);
        let (done, answer): (_, Receiver<T>) = channel();
        self.start_call_within(what, within, move || drop(done.send(job())));
        answer
            .recv_timeout(within)
            // Without a sender the thread has ended.
            .map_err(|_| self.late(what, within))
    }

    /// The error of a call without a result in time, which names the one that is past its deadline, if any.
    fn late(&self, what: &'static str, within: Duration) -> CardError {
        let other = self.check().err();
        other.unwrap_or_else(|| CardError::Hung {
            device: self.device.clone(),
            what,
            within,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(100);
    const PATIENCE: Duration = Duration::from_secs(30);

    fn named(error: &CardError) -> &'static str {
        match error {
            CardError::Hung { device, what, .. } if device == "d" => what,
            other => panic!("{other}"),
        }
    }

    #[tokio::test]
    async fn a_call_that_nothing_waits_for_is_noticed_past_its_deadline_until_it_ends() {
        let worker = Worker::start("test", "d").unwrap();
        worker.check().unwrap();
        worker.call("first", None, || ()).await.unwrap();
        let (end, ended) = channel::<()>();
        let hanging = move || assert!(ended.recv().is_err());
        worker.start_call_within("a release", SOON, hanging);
        let (second, behind) = channel();
        worker.start_call("behind", move || second.send(()).unwrap());
        let hung = tokio::time::timeout(PATIENCE, worker.hung()).await;
        assert_eq!(named(&hung.unwrap()), "a release");
        // Others fail at once.
        assert_eq!(named(&worker.check().unwrap_err()), "a release");
        let begin = Instant::now();
        let call = worker.call("next", Some(PATIENCE), || ()).await;
        assert_eq!(named(&call.unwrap_err()), "a release");
        let call = worker.call_blocking("next", Some(PATIENCE), || ());
        assert_eq!(named(&call.unwrap_err()), "a release");
        assert!(begin.elapsed() < PATIENCE / 2);
        drop(end);
        behind.recv_timeout(PATIENCE).unwrap();
        worker.call("last", None, || ()).await.unwrap();
        worker.check().unwrap();
    }

    #[tokio::test]
    async fn a_call_is_not_made_if_nothing_waits_for_it_any_more() {
        let worker = Worker::start("test", "d").unwrap();
        let (end, ended) = channel::<()>();
        worker.start_call("first", move || assert!(ended.recv().is_err()));
        let late = worker.call("given up", Some(SOON), || panic!("made"));
        assert_eq!(named(&late.await.unwrap_err()), "given up");
        drop(end);
        worker.call("last", None, || ()).await.unwrap();
    }
}
