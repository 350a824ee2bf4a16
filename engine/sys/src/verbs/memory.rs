//! Protection domains, and registrations of regions and of GPU memory in them.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::device::{Context, Opened};
use super::ffi;
use super::{Call, Error, Why, done};
use crate::loader::opaque_debug;
use crate::mem::Region;
#[cfg(feature = "cuda")]
use crate::nvidia::cuda::Memory;

/// A protection domain, held by every object that was created in it.
pub(super) struct Domain {
    pub(super) raw: NonNull<ffi::ibv_pd>,
    pub(super) device: Arc<Opened>,
}

// SAFETY: libibverbs may be called from any thread, and `Domain` is the only owner of the domain.
unsafe impl Send for Domain {}
// SAFETY: libibverbs locks what its calls share, so several threads may call it concurrently.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: every object in the domain holds this, so none is left. After a failed deregistration
        // the kernel refuses this too, and frees both when the device is closed.
        let _ = unsafe { (self.device.library.dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// A protection domain. Queue pairs access only the memory of their own domain.
#[derive(Clone)]
pub struct ProtectionDomain(pub(super) Arc<Domain>);

opaque_debug!(ProtectionDomain);

impl ProtectionDomain {
    /// Creates a domain on a device.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn new(context: &Context) -> Result<Self, Error> {
        let device = Arc::clone(&context.0);
        // SAFETY: the device is open.
        let raw = unsafe { (device.library.alloc_pd)(device.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(Call::MakeDomain))?;
        Ok(Self(Arc::new(Domain { raw, device })))
    }
}

/// Memory that a device may read and write, for itself and for peers that know the key.
///
/// A peer may cause a write at any time, so no reference to this memory is ever created (see [`Region`]).
pub struct MemoryRegion {
    raw: NonNull<ffi::ibv_mr>,
    pub(super) domain: Arc<Domain>,
    /// The device's address of the first byte, and the length in bytes.
    start: u64,
    length: u64,
    /// The owner of the memory; leaked if the device may still access it.
    memory: Option<Arc<dyn Send + Sync>>,
}

/// Read and write access, for the device and for peers.
const ACCESS: i32 = ffi::ACCESS_LOCAL_WRITE | ffi::ACCESS_REMOTE_WRITE | ffi::ACCESS_REMOTE_READ;

/// Whether a registration was refused for what it requests, and not for the memory or the resources.
fn is_refusal(errno: i32) -> bool {
    matches!(errno, libc::EINVAL | libc::EOPNOTSUPP)
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

/// The key of memory that a device serves, of this process or of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub u32);

/// A range of registered memory.
#[derive(Debug, Clone, Copy)]
pub struct MemoryRange<'a> {
    pub memory: &'a MemoryRegion,
    pub offset: u64,
    pub length: u32,
}

impl MemoryRegion {
    /// Registers a whole region, which pins its pages. Populate them first.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn register(domain: &ProtectionDomain, region: Arc<Region>) -> Result<Self, Error> {
        let domain = Arc::clone(&domain.0);
        let (start, length) = region.extent();
        let register = domain.device.library.reg_mr;
        // SAFETY: the range is the region's mapping, which this registration holds until it is
        // deregistered; no reference to its bytes exists, so the device may write at any time.
        let raw = unsafe { register(domain.raw.as_ptr(), start.as_ptr().cast(), length, ACCESS) };
        let start = start.as_ptr().expose_provenance() as u64;
        Self::of(domain, raw, (start, length), region)
    }

    /// Registers a whole region so that device and peers address its first byte as `base`, not as its address in this
    /// process. Base and mapping must have the same offset in a page of the device. The bytes of a write may arrive in any
    /// order, as far as the device supports that: it is faster on many hosts, and what is read is complete when the writer
    /// has its completion.
    ///
    /// # Errors
    /// The errno of the call; [`Why::Unsupported`] with a libibverbs before 25.
    pub fn register_at(
        domain: &ProtectionDomain,
        region: Arc<Region>,
        base: u64,
    ) -> Result<Self, Error> {
        let domain = Arc::clone(&domain.0);
        let (start, length) = region.extent();
        let (domain_raw, start) = (domain.raw.as_ptr(), start.as_ptr().cast());
        if let Some(register) = domain.device.library.reg_mr_iova2 {
            let access = ACCESS.unsigned_abs() | ffi::ACCESS_RELAXED_ORDERING;
            // SAFETY: as below.
            let raw = unsafe { register(domain_raw, start, length, base, access) };
            let made = Self::of(Arc::clone(&domain), raw, (base, length), region.clone());
            match made {
                Err(error) if error.errno().is_some_and(is_refusal) => {}
                made => return made,
            }
        }
        let register = domain.device.library.reg_mr_iova;
        let register = register.ok_or_else(|| Error::of(Call::Register, Why::Unsupported))?;
        // SAFETY: the range is the region's mapping, which this registration holds until it is
        // deregistered; no reference to its bytes exists, so the device may write at any time.
        let raw = unsafe { register(domain_raw, start, length, base, ACCESS) };
        Self::of(domain, raw, (base, length), region)
    }

    /// Returns the key with which a peer may access this memory until it is deregistered.
    #[must_use]
    pub fn remote_key(&self) -> RemoteKey {
        RemoteKey(self.keys().1)
    }

    /// Registers GPU memory by its address. Requires the kernel module `nvidia_peermem`.
    ///
    /// # Errors
    /// The errno of the call.
    #[cfg(feature = "cuda")]
    pub fn register_peer(domain: &ProtectionDomain, memory: Arc<Memory>) -> Result<Self, Error> {
        let domain = Arc::clone(&domain.0);
        let (start, length) = memory.extent();
        let address =
            usize::try_from(start).map_err(|_| Error::of(Call::Register, Why::OutOfRange))?;
        let address = std::ptr::without_provenance_mut(address);
        let register = domain.device.library.reg_mr;
        // SAFETY: the range is the GPU's memory, which this registration holds until it is deregistered;
        // the address is not memory of this process and is not dereferenced.
        let raw = unsafe { register(domain.raw.as_ptr(), address, length, ACCESS) };
        Self::of(domain, raw, (start, length), memory)
    }

    /// Registers the whole of a GPU's memory that was exported as dma-buf ([`Memory::dma_buf`]).
    ///
    /// # Errors
    /// The errno of the call; [`Why::Unsupported`] with a libibverbs before 34.
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
        // SAFETY: the descriptor is open during the call, and the kernel then holds its dma-buf, beyond
        // which the device cannot access. The GPU's memory is held until it is deregistered.
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

    /// Deregisters the memory. If that fails the memory is leaked, because the device may still access
    /// it.
    ///
    /// # Errors
    /// The errno of the call.
    pub fn deregister(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        let Some(memory) = self.memory.take() else {
            return Ok(());
        };
        // SAFETY: the registration is owned and ended once: its memory was still held.
        let answer = unsafe { (self.domain.device.library.dereg_mr)(self.raw.as_ptr()) };
        let done = done(Call::Deregister, answer);
        if done.is_err() {
            std::mem::forget(memory);
        }
        done
    }

    /// Returns the device's address of a range, if it is inside this memory.
    pub(super) fn at(&self, offset: u64, length: u32) -> Result<u64, Error> {
        let out = || Error::of(Call::Post, Why::OutOfRange);
        let end = offset.checked_add(length.into()).ok_or_else(out)?;
        if self.memory.is_none() || end > self.length {
            return Err(out());
        }
        Ok(self.start + offset)
    }

    pub(super) fn keys(&self) -> (u32, u32) {
        // SAFETY: the registration is valid as long as this, and its keys do not change.
        let lkey = unsafe { (*self.raw.as_ptr()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*self.raw.as_ptr()).rkey };
        (lkey, rkey)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
