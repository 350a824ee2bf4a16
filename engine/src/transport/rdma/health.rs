//! Whether an opened device still works. One that was reset or removed does not come back to this process, also if a device
//! of its name does.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use parking_lot::Mutex;
use sys::verbs::{self, Context, DeviceEvent, DeviceEvents};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// What is known of an opened device, shared with what watches it.
#[derive(Debug)]
pub(super) struct Health {
    device: String,
    port: u8,
    lost: Mutex<Option<String>>,
}

impl Health {
    pub(super) fn new(device: &str, port: u8) -> Self {
        Self {
            device: device.to_owned(),
            port,
            lost: Mutex::default(),
        }
    }

    /// Returns why the device no longer works, if so.
    pub(super) fn lost(&self) -> Option<String> {
        self.lost.lock().clone()
    }

    fn lose(&self, cause: String) {
        let mut lost = self.lost.lock();
        if lost.is_none() {
            tracing::error!(
                device = self.device,
                "an RDMA device does not work any more in this process, which is to be replaced: {cause}"
            );
            *lost = Some(cause);
        }
    }

    /// Queries the port, which fails if the device does not work any more. For a control thread, after a failure that may be of another cause.
    pub(super) fn probe(&self, context: &Context) {
        if let Err(error) = context.port(self.port)
            && error.may_be_gone()
        {
            self.lose(error.to_string());
        }
    }

    /// Reads the events of the device until it is lost, or as long as libibverbs reads them.
    pub(super) async fn watch(self: Arc<Self>, context: Context) {
        if let Err(error) = self.read(&context).await {
            if error.may_be_gone() {
                self.lose(error.to_string());
            } else {
                let device = &self.device;
                tracing::warn!(device, %error, "a reset of this RDMA device may not be noticed");
            }
        }
    }

    async fn read(&self, context: &Context) -> Result<(), verbs::Error> {
        let failed = |source| verbs::Error {
            call: verbs::Call::Events,
            why: verbs::Why::Errno(source),
        };
        let events = DeviceEvents::new(context)?;
        let watched = events.as_fd().try_clone_to_owned().map_err(failed)?;
        // A stream by type alone: the runtime only watches it.
        let watched = UnixStream::from_std(watched.into()).map_err(failed)?;
        let next = || match events.next() {
            Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
            next => Ok(next),
        };
        loop {
            let next = watched.async_io(Interest::READABLE, next).await;
            match next.map_err(failed)?? {
                Some(DeviceEvent::Fatal) => {
                    self.lose(
                        "its driver has reported that it failed, was reset or removed".to_owned(),
                    );
                    return Ok(());
                }
                None | Some(DeviceEvent::Other) => {}
                // The agent reads ports itself, and replaces this process where that is of use.
                Some(event) => tracing::warn!(device = self.device, ?event, "RDMA device"),
            }
        }
    }
}
