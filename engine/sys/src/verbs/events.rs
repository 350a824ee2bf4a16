//! What an opened device reports of itself and its ports, without a request.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::device::{Context, Opened};
use super::ffi;
use super::{Call, Error, Why};
use crate::loader::opaque_debug;

/// The events of an opened device. Its descriptor is readable while there is one.
pub struct DeviceEvents(Arc<Opened>);

opaque_debug!(DeviceEvents);

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The device has failed, or was reset or removed: nothing works on this opened one any more.
    Fatal,
    /// A port is active.
    PortActive(u8),
    /// A port is not active any more.
    PortDown(u8),
    /// A port has another LID.
    LidChanged(u8),
    /// A port has another table of GIDs.
    GidsChanged(u8),
    /// Of one object, or of no interest.
    Other,
}

impl DeviceEvents {
    /// Reads the events of a device, without blocking. A device has one reader.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let events = Self(Arc::clone(&context.0));
        rustix::io::ioctl_fionbio(events.as_fd(), true)
            .map_err(|errno| Error::of(Call::Events, Why::Errno(errno.into())))?;
        Ok(events)
    }

    /// Returns the next event; `None` if there is none yet.
    ///
    /// # Errors
    /// The errno of the read; [`Why::Unsupported`] by libibverbs.
    pub fn next(&self) -> Result<Option<DeviceEvent>, Error> {
        let library = self.0.library;
        let (Some(get), Some(acknowledge)) = (library.get_async_event, library.ack_async_event)
        else {
            return Err(Error::of(Call::Events, Why::Unsupported));
        };
        // SAFETY: all-zero is a valid value: it holds numbers only.
        let mut event: ffi::ibv_async_event = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open, and the value is valid during the call, which does not block.
        if unsafe { get(self.0.raw.as_ptr(), &raw mut event) } != 0 {
            let error = Error::last(Call::Events);
            return match error.errno() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(None),
                _ => Err(error),
            };
        }
        let read = DeviceEvent::of(&event);
        // SAFETY: the event was returned by the call above and is acknowledged once. The end of its object waits for this.
        unsafe { acknowledge(&raw mut event) };
        Ok(Some(read))
    }
}

impl DeviceEvent {
    fn of(event: &ffi::ibv_async_event) -> Self {
        // In the union a port is an `int`.
        let [a, b, c, d, ..] = event.element.to_ne_bytes();
        let port = u8::try_from(i32::from_ne_bytes([a, b, c, d])).unwrap_or(0);
        match event.event_type {
            ffi::EVENT_DEVICE_FATAL => Self::Fatal,
            ffi::EVENT_PORT_ACTIVE => Self::PortActive(port),
            ffi::EVENT_PORT_ERR => Self::PortDown(port),
            ffi::EVENT_LID_CHANGE => Self::LidChanged(port),
            ffi::EVENT_GID_CHANGE => Self::GidsChanged(port),
            _ => Self::Other,
        }
    }
}

impl AsFd for DeviceEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the device is open, and its descriptor does not change.
        let descriptor = unsafe { (*self.0.raw.as_ptr()).async_fd };
        // SAFETY: the descriptor is open as long as the device, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(descriptor) }
    }
}
