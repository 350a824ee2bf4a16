//! Memory that a device may reach: a protection domain, and registrations of regions in it.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::{Context, Opened};
use super::ffi;
use super::{Call, Error, Why, done};
use crate::mem::Region;

/// Who is held by all that is made in a domain.
pub(super) struct Domain {
    pub(super) raw: NonNull<ffi::ibv_pd>,
    pub(super) device: Arc<Opened>,
}

// SAFETY: libibverbs may be called from any thread, and `Domain` is the only owner of the domain.
unsafe impl Send for Domain {}
// SAFETY: libibverbs locks what its calls share, so that they may come from several threads at once.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: whatever was made in the domain holds this, so nothing of it is left. Where something
        // could not be given back the kernel refuses this too, and the device's end ends all of it.
        let _ = unsafe { (self.device.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// What belongs together on a device: queue pairs reach only the memory of their own domain.
#[derive(Clone)]
pub struct ProtectionDomain(pub(super) Arc<Domain>);

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").finish_non_exhaustive()
    }
}

impl ProtectionDomain {
    /// A new domain of the device.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let device = Arc::clone(&context.0);
        // SAFETY: the device is open.
        let raw = unsafe { (device.library.alloc_pd)(device.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::MakeDomain))?;
        Ok(Self(Arc::new(Domain { raw, device })))
    }
}

/// A region that a device may read and write, itself and for a peer that knows the key.
///
/// The device writes whenever a peer has it do so: regions are memory of which no reference is ever made
/// (see [`Region`]).
pub struct MemoryRegion {
    raw: NonNull<ffi::ibv_mr>,
    pub(super) domain: Arc<Domain>,
    /// Given up only where the device may still reach it.
    region: Option<Arc<Region>>,
}

// SAFETY: libibverbs may be called from any thread, and this is the only owner of the registration.
unsafe impl Send for MemoryRegion {}
// SAFETY: after it is made, only numbers are read of it, which do not change.
unsafe impl Sync for MemoryRegion {}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").finish_non_exhaustive()
    }
}

/// A range of registered memory.
#[derive(Debug, Clone, Copy)]
pub struct Piece<'a> {
    pub memory: &'a MemoryRegion,
    pub offset: u64,
    pub length: u32,
}

impl MemoryRegion {
    /// Registers a whole region. Its pages are pinned, and must be there: touch them first.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn register(domain: &ProtectionDomain, region: Arc<Region>) -> Result<Self, Error> {
        let domain = Arc::clone(&domain.0);
        let (start, length) = region.extent();
        let access = ffi::ACCESS_LOCAL_WRITE | ffi::ACCESS_REMOTE_WRITE | ffi::ACCESS_REMOTE_READ;
        let register = domain.device.library.reg_mr;
        // SAFETY: the range is exactly the region's mapping, which this registration holds until it is
        // given back; no reference to its bytes exists, so the device may write at any moment.
        let raw = unsafe { register(domain.raw.as_ptr(), start.as_ptr().cast(), length, access) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::Register))?;
        Ok(Self {
            raw,
            domain,
            region: Some(region),
        })
    }

    /// Gives the registration back, and tells how that ended. Where it fails the memory stays mapped
    /// for as long as the process lives, as the device may still reach it.
    ///
    /// # Errors
    /// The kernel's word.
    pub fn deregister(mut self) -> Result<(), Error> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), Error> {
        let Some(region) = self.region.take() else {
            return Ok(());
        };
        // SAFETY: the registration is ours and is given back once: `region` was still there.
        let answer = unsafe { (self.domain.device.library.dereg_mr)(self.raw.as_ptr()) };
        let done = done(Call::Deregister, answer);
        if done.is_err() {
            std::mem::forget(region);
        }
        done
    }

    /// The address of a piece for the device, if it lies in here.
    pub(super) fn at(&self, offset: u64, length: u32) -> Result<u64, Error> {
        let out = || Error::of(Call::Post, Why::OutOfRange);
        let region = self.region.as_ref().ok_or_else(out)?;
        let end = offset.checked_add(length.into()).ok_or_else(out)?;
        if end > region.length() {
            return Err(out());
        }
        let (start, _) = region.extent();
        Ok(start.as_ptr().expose_provenance() as u64 + offset)
    }

    pub(super) fn keys(&self) -> (u32, u32) {
        // SAFETY: the registration lives as long as this, and its keys do not change.
        let lkey = unsafe { (*self.raw.as_ptr()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*self.raw.as_ptr()).rkey };
        (lkey, rkey)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let _ = self.give_back();
    }
}
