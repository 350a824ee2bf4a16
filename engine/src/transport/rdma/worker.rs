//! The control thread of a device, which makes all calls that may block in the kernel. A data thread never waits for
//! it, and every other caller has a deadline.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use sys::verbs;
use tokio::sync::oneshot;

/// A call of a healthy device takes milliseconds, also behind hundreds of others.
const CALL: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The handle to a control thread, which ends after the jobs of the last handle.
#[derive(Debug)]
pub(super) struct Worker {
    device: String,
    jobs: Sender<Job>,
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
    /// A call failed.
    #[error("RDMA device {device}: {source}")]
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

impl CardError {
    pub(super) fn verbs(device: &str) -> impl FnOnce(verbs::Error) -> Self {
        let device = device.to_owned();
        move |source| Self::Verbs {
            device,
            source: Arc::new(source),
        }
    }
}

impl Worker {
    pub(super) fn start(device: &str) -> Result<Self, CardError> {
        let (jobs, queue) = channel::<Job>();
        let run = move || queue.into_iter().for_each(|job| job());
        thread::Builder::new()
            .name(format!("card-{device}"))
            .spawn(run)
            .map_err(|source| CardError::Thread {
                device: device.to_owned(),
                source,
            })?;
        Ok(Self {
            device: device.to_owned(),
            jobs,
        })
    }

    /// Starts a call without waiting for its result.
    pub(super) fn start_call(&self, what: &'static str, job: impl FnOnce() + Send + 'static) {
        // The thread ends with its last handle, or by a panic, which the log has.
        if self.jobs.send(Box::new(job)).is_err() {
            tracing::error!(device = self.device, what, "the control thread has ended");
        }
    }

    /// Makes a call and waits for its result, for `within` or the usual deadline. A late result is dropped on the control
    /// thread.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        within: Option<Duration>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CardError> {
        let within = within.unwrap_or(CALL);
        let (done, answer) = oneshot::channel();
        self.start_call(what, move || drop(done.send(job())));
        match tokio::time::timeout(within, answer).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) | Err(_) => Err(self.hung(what, within)),
        }
    }

    /// As [`Self::call`], outside of tokio.
    pub(super) fn call_blocking<T: Send + 'static>(
        &self,
        what: &'static str,
        within: Option<Duration>,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CardError> {
        let within = within.unwrap_or(CALL);
        let (done, answer): (_, Receiver<T>) = channel();
        self.start_call(what, move || drop(done.send(job())));
        answer
            .recv_timeout(within)
            // Without a sender the thread has ended.
            .map_err(|_| self.hung(what, within))
    }

    fn hung(&self, what: &'static str, within: Duration) -> CardError {
        CardError::Hung {
            device: self.device.clone(),
            what,
            within,
        }
    }
}
