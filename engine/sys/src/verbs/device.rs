//! RDMA devices: listing, opening and querying.

use std::ffi::CStr;
use std::fmt;
use std::net::Ipv6Addr;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::ffi;
use super::library::{Library, library};
use super::{Call, Error, Why, done};
use crate::loader::opaque_debug;

/// The device list of libibverbs, which owns its entries.
struct List {
    library: &'static Library,
    first: NonNull<*mut ffi::ibv_device>,
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it is the library's list, freed once: every device of it holds this.
        unsafe { (self.library.free_device_list)(self.first.as_ptr()) }
    }
}

/// A device that libibverbs has a driver for, not opened.
pub struct Device {
    list: Rc<List>,
    raw: NonNull<ffi::ibv_device>,
    name: String,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.name).finish()
    }
}

/// Lists all devices that libibverbs has a driver for.
///
/// # Errors
/// [`Call::Load`] without libibverbs; [`Call::Find`] with an errno.
pub fn devices() -> Result<Vec<Device>, Error> {
    let library = library()?;
    let mut count = 0;
    // SAFETY: the count is valid during the call.
    let first = unsafe { (library.get_device_list)(&raw mut count) };
    let first = NonNull::new(first).ok_or_else(|| Error::last(Call::Find))?;
    let list = Rc::new(List { library, first });
    let mut devices = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let entry = unsafe { first.add(at) };
        // SAFETY: the entry is inside the list, which is held and not written to.
        let raw = unsafe { entry.read() };
        let Some(raw) = NonNull::new(raw) else {
            break;
        };
        devices.push(Device {
            name: name(library, raw),
            list: Rc::clone(&list),
            raw,
        });
    }
    Ok(devices)
}

fn name(library: &Library, device: NonNull<ffi::ibv_device>) -> String {
    // SAFETY: the device is an entry of a list that is held.
    let name = unsafe { (library.get_device_name)(device.as_ptr()) };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: not null, so a C string that is valid as long as the device.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_string_lossy().into_owned()
}

impl Device {
    /// Returns the name, for example `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true for iWARP, where only a connection manager can create connections.
    #[must_use]
    pub fn needs_connection_manager(&self) -> bool {
        // SAFETY: the list is held, and its entries do not change.
        let transport = unsafe { (*self.raw.as_ptr()).transport_type };
        transport == ffi::TRANSPORT_IWARP
    }

    /// Opens the device. An unhealthy device may block the caller for ever.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn open(&self) -> Result<Context, Error> {
        let library = self.list.library;
        // SAFETY: the device is an entry of a list that is held.
        let raw = unsafe { (library.open_device)(self.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::Open))?;
        Ok(Context(Arc::new(Opened { library, raw })))
    }
}

/// An opened device, held by every object that was created on it.
pub(super) struct Opened {
    pub(super) library: &'static Library,
    pub(super) raw: NonNull<ffi::ibv_context>,
}

// SAFETY: libibverbs may be called from any thread, and `Opened` is the only owner of the context.
unsafe impl Send for Opened {}
// SAFETY: libibverbs locks what its calls share, so several threads may call it concurrently.
unsafe impl Sync for Opened {}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: every object on the device holds this, so none is left; a failure leaves a descriptor
        // open, which is harmless.
        let _ = unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

/// An opened device.
#[derive(Clone)]
pub struct Context(pub(super) Arc<Opened>);

opaque_debug!(Context);

/// The limits that a device reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of one registration.
    pub max_mr_size: u64,
    /// Most registrations.
    pub max_mr: i32,
    /// Most queue pairs.
    pub max_qp: i32,
    /// Most entries of one completion queue.
    pub max_cqe: i32,
}

/// The link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// Peers are addressed by LID.
    InfiniBand,
    /// Peers are addressed by GID.
    Ethernet,
}

/// The attributes of a port that a path needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortFacts {
    pub active: bool,
    pub link_layer: LinkLayer,
    pub lid: u16,
    /// The active MTU, as `enum ibv_mtu`.
    pub mtu: i32,
}

impl Context {
    /// Queries the limits of the device.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn limits(&self) -> Result<Limits, Error> {
        // SAFETY: all-zero is a valid value: it holds numbers only.
        let mut found: ffi::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open, and the value is valid during the call.
        let answer = unsafe { (self.0.library.query_device)(self.0.raw.as_ptr(), &raw mut found) };
        done(Call::QueryDevice, answer)?;
        Ok(Limits {
            max_mr_size: found.max_mr_size,
            max_mr: found.max_mr,
            max_qp: found.max_qp,
            max_cqe: found.max_cqe,
        })
    }

    /// Queries the state of a port.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn port(&self, number: u8) -> Result<PortFacts, Error> {
        // SAFETY: all-zero is a valid value: it holds numbers only.
        let mut found: ffi::ibv_port_attr = unsafe { std::mem::zeroed() };
        let query = self.0.library.query_port;
        // SAFETY: the device is open, and the value is valid during the call, which writes at most its size.
        let answer = unsafe { query(self.0.raw.as_ptr(), number, &raw mut found) };
        done(Call::QueryPort, answer)?;
        Ok(PortFacts {
            active: found.state == ffi::PORT_ACTIVE,
            link_layer: if found.link_layer == ffi::LINK_LAYER_ETHERNET {
                LinkLayer::Ethernet
            } else {
                LinkLayer::InfiniBand
            },
            lid: found.lid,
            mtu: found.active_mtu,
        })
    }

    /// Queries an entry of a port's GID table.
    ///
    /// # Errors
    /// [`Why::Empty`]; the errno of the call.
    pub fn gid(&self, port: u8, index: u8) -> Result<Ipv6Addr, Error> {
        let mut gid = ffi::ibv_gid([0; 16]);
        let query = self.0.library.query_gid;
        // SAFETY: the device is open, and the value is valid during the call.
        let answer = unsafe { query(self.0.raw.as_ptr(), port, index.into(), &raw mut gid) };
        done(Call::QueryGid, answer)?;
        let gid = Ipv6Addr::from(gid.0);
        if gid.is_unspecified() {
            return Err(Error::of(Call::QueryGid, Why::Empty));
        }
        Ok(gid)
    }
}
