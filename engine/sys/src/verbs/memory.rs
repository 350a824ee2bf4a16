//! Memory that a device may reach: a protection domain, and registrations of regions in it, and of a GPU's
//! memory.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::{Context, Opened};
use super::ffi;
use super::{Call, Error, Why, done};
use crate::mem::Region;
#[cfg(feature = "cuda")]
use crate::nvidia::cuda::Memory;

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

/// Memory that a device may read and write, itself and for a peer that knows the key.
///
/// The device writes whenever a peer has it do so: it is memory of which no reference is ever made (see
/// [`Region`]).
pub struct MemoryRegion {
    raw: NonNull<ffi::ibv_mr>,
    pub(super) domain: Arc<Domain>,
    /// Where it begins for the device, and its length.
    start: u64,
    length: u64,
    /// Who owns the memory; given up only where the device may still reach it.
    memory: Option<Arc<dyn Send + Sync>>,
}

/// Devices read and write it, themselves and for their peers.
const ACCESS: i32 = ffi::ACCESS_LOCAL_WRITE | ffi::ACCESS_REMOTE_WRITE | ffi::ACCESS_REMOTE_READ;

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
        let register = domain.device.library.reg_mr;
        // SAFETY: the range is exactly the region's mapping, which this registration holds until it is
        // given back; no reference to its bytes exists, so the device may write at any moment.
        let raw = unsafe { register(domain.raw.as_ptr(), start.as_ptr().cast(), length, ACCESS) };
        let start = start.as_ptr().expose_provenance() as u64;
        Self::of(domain, raw, (start, length), region)
    }

    /// Registers a GPU's memory by its address, which takes a module of the GPU's driver that lends it to
    /// other drivers (`nvidia_peermem`).
    ///
    /// # Errors
    /// The kernel's word.
    #[cfg(feature = "cuda")]
    pub fn register_peer(domain: &ProtectionDomain, memory: Arc<Memory>) -> Result<Self, Error> {
        let domain = Arc::clone(&domain.0);
        let (start, length) = memory.extent();
        let address =
            usize::try_from(start).map_err(|_| Error::of(Call::Register, Why::OutOfRange))?;
        let address = std::ptr::without_provenance_mut(address);
        let register = domain.device.library.reg_mr;
        // SAFETY: the range is exactly the GPU's memory, which this registration holds until it is given
        // back; nobody reads or writes through the address itself, which is no memory of this process.
        let raw = unsafe { register(domain.raw.as_ptr(), address, length, ACCESS) };
        Self::of(domain, raw, (start, length), memory)
    }

    /// Registers a GPU's memory that was exported as dma-buf ([`Memory::dma_buf`]), the whole of it.
    ///
    /// # Errors
    /// The kernel's word; [`Why::Unsupported`] by a libibverbs before 34.
    #[cfg(feature = "cuda")]
    pub fn register_dma_buf(
        domain: &ProtectionDomain,
        memory: Arc<Memory>,
        exported: std::os::fd::BorrowedFd<'_>,
    ) -> Result<Self, Error> {
        use std::os::fd::AsRawFd;
        let domain = Arc::clone(&domain.0);
        let (start, length) = memory.extent();
        let register = domain.device.library.reg_dmabuf_mr;
        let register = register.ok_or_else(|| Error::of(Call::Register, Why::Unsupported))?;
        let descriptor = exported.as_raw_fd();
        // SAFETY: the descriptor is open across the call, and the kernel holds what it stands for; whatever
        // that is, the device reaches nothing beyond it. The GPU's memory is held until the registration is
        // given back.
        let raw = unsafe { register(domain.raw.as_ptr(), 0, length, start, descriptor, ACCESS) };
        Self::of(domain, raw, (start, length), memory)
    }

    fn of(
        domain: Arc<Domain>,
        raw: *mut ffi::ibv_mr,
        (start, length): (u64, usize),
        memory: Arc<dyn Send + Sync>,
    ) -> Result<Self, Error> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::Register))?;
        Ok(Self {
            raw,
            domain,
            start,
            length: length as u64,
            memory: Some(memory),
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
        let Some(memory) = self.memory.take() else {
            return Ok(());
        };
        // SAFETY: the registration is ours and is given back once: its memory was still there.
        let answer = unsafe { (self.domain.device.library.dereg_mr)(self.raw.as_ptr()) };
        let done = done(Call::Deregister, answer);
        if done.is_err() {
            std::mem::forget(memory);
        }
        done
    }

    /// The address of a piece for the device, if it lies in here.
    pub(super) fn at(&self, offset: u64, length: u32) -> Result<u64, Error> {
        let out = || Error::of(Call::Post, Why::OutOfRange);
        let end = offset.checked_add(length.into()).ok_or_else(out)?;
        if self.memory.is_none() || end > self.length {
            return Err(out());
        }
        Ok(self.start + offset)
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
