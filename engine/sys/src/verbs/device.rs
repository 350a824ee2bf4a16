//! Devices by name, and one that was opened.

use std::ffi::CStr;
use std::fmt;
use std::net::Ipv6Addr;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;

use super::ffi;
use super::library::{Library, library};
use super::{Call, Error, Why, done};

/// The list that libibverbs gave, which its entries live in.
struct List {
    library: &'static Library,
    first: NonNull<*mut ffi::ibv_device>,
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it is the library's own list, given back once: every device of it holds this.
        unsafe { (self.library.free_device_list)(self.first.as_ptr()) }
    }
}

/// A device that libibverbs has a driver for; not opened.
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

/// All devices that libibverbs has a driver for.
///
/// # Errors
/// [`Call::Load`] where there is no libibverbs; [`Call::Find`] with the kernel's word.
pub fn devices() -> Result<Vec<Device>, Error> {
    let library = library()?;
    let mut count = 0;
    // SAFETY: the count lives across the call.
    let first = unsafe { (library.get_device_list)(&raw mut count) };
    let first = NonNull::new(first).ok_or_else(|| Error::last(Call::Find))?;
    let list = Rc::new(List { library, first });
    let mut devices = Vec::new();
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the list has `count` entries.
        let entry = unsafe { first.add(at) };
        // SAFETY: the entry lies in the list, which is held, and nobody writes to it.
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
    // SAFETY: not null, and then a C string that lives as long as the device.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_string_lossy().into_owned()
}

impl Device {
    /// Its name, e.g. `mlx5_0`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True where connections are made by a connection manager only (iWARP).
    #[must_use]
    pub fn needs_a_manager(&self) -> bool {
        // SAFETY: the list is held, and its entries do not change.
        let transport = unsafe { (*self.raw.as_ptr()).transport_type };
        transport == ffi::TRANSPORT_IWARP
    }

    /// Opens it. A sick device may hold the caller for ever.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn open(&self) -> Result<Context, Error> {
        let library = self.list.library;
        // SAFETY: the device is an entry of a list that is held.
        let raw = unsafe { (library.open_device)(self.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::Open))?;
        Ok(Context(Arc::new(Opened { library, raw })))
    }
}

/// What all that is made of an opened device holds.
pub(super) struct Opened {
    pub(super) library: &'static Library,
    pub(super) raw: NonNull<ffi::ibv_context>,
}

// SAFETY: libibverbs may be called from any thread, and `Opened` is the only owner of the context.
unsafe impl Send for Opened {}
// SAFETY: libibverbs locks what its calls share, so that they may come from several threads at once.
unsafe impl Sync for Opened {}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: whatever was made of the device holds this, so nothing of it is left; a failure leaves
        // a descriptor open, which is harmless.
        let _ = unsafe { (self.library.close_device)(self.raw.as_ptr()) };
    }
}

/// A device that was opened.
#[derive(Clone)]
pub struct Context(pub(super) Arc<Opened>);

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

/// The most that a device takes, in its own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one registration.
    pub max_mr_size: u64,
    /// Registrations.
    pub max_mr: i32,
    /// Queue pairs.
    pub max_qp: i32,
    /// Entries of one completion queue.
    pub max_cqe: i32,
}

/// What carries a port's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// Peers are found by their LID.
    InfiniBand,
    /// Peers are found by their GID.
    Ethernet,
}

/// What a path over a port needs of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortFacts {
    pub active: bool,
    pub link_layer: LinkLayer,
    pub lid: u16,
    /// The largest packet now, in the device's number for it.
    pub mtu: i32,
}

impl Context {
    /// The most that the device takes.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn limits(&self) -> Result<Limits, Error> {
        // SAFETY: all-zero is a value of it: numbers only.
        let mut found: ffi::ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the device is open, and the value lives across the call.
        let answer = unsafe { (self.0.library.query_device)(self.0.raw.as_ptr(), &raw mut found) };
        done(Call::QueryDevice, answer)?;
        Ok(Limits {
            max_mr_size: found.max_mr_size,
            max_mr: found.max_mr,
            max_qp: found.max_qp,
            max_cqe: found.max_cqe,
        })
    }

    /// How a port is now.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn port(&self, number: u8) -> Result<PortFacts, Error> {
        // SAFETY: all-zero is a value of it: numbers only.
        let mut found: ffi::ibv_port_attr = unsafe { std::mem::zeroed() };
        let ask = self.0.library.query_port;
        // SAFETY: the device is open, and the value lives across the call, which fills at most all of it.
        let answer = unsafe { ask(self.0.raw.as_ptr(), number, &raw mut found) };
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

    /// An entry of a port's GID table.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn gid(&self, port: u8, index: u8) -> Result<Ipv6Addr, Error> {
        let mut gid = ffi::ibv_gid([0; 16]);
        let ask = self.0.library.query_gid;
        // SAFETY: the device is open, and the value lives across the call.
        let answer = unsafe { ask(self.0.raw.as_ptr(), port, index.into(), &raw mut gid) };
        done(Call::QueryGid, answer)?;
        let gid = Ipv6Addr::from(gid.0);
        if gid.is_unspecified() {
            return Err(Error::of(Call::QueryGid, Why::Empty));
        }
        Ok(gid)
    }
}
