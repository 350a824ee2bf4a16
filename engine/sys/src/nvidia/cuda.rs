//! GPUs through CUDA's driver API (`cuda.h`; versioned functions keep their behaviour): attributes, and a
//! small amount of memory.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::{NonNull, null};
use std::sync::{Arc, OnceLock};

use super::{Error, driver, text_at};
use crate::loader::{functions, opaque_debug};

const NAME: &str = "libcuda.so.1";

const SUCCESS: c_uint = 0;
const HANDLE_DMA_BUF: c_int = 1;
const SYNC_MEMOPS: c_int = 6;

/// Alignment of memory for registration: the largest page, of GPUs and of some arm64 kernels.
const PAGE: usize = 64 << 10;

/// An opaque context.
#[repr(C)]
pub(super) struct Raw {
    _held: [u8; 0],
}

functions! {
    init: c"cuInit", fn(c_uint) -> c_uint;
    error_string: c"cuGetErrorString", fn(c_uint, *mut *const c_char) -> c_uint;
    by_pci: c"cuDeviceGetByPCIBusId", fn(*mut c_int, *const c_char) -> c_uint;
    attribute: c"cuDeviceGetAttribute", fn(*mut c_int, c_int, c_int) -> c_uint;
    create: c"cuCtxCreate_v2", fn(*mut *mut Raw, c_uint, c_int) -> c_uint;
    destroy: c"cuCtxDestroy_v2", fn(*mut Raw) -> c_uint;
    set_current: c"cuCtxSetCurrent", fn(*mut Raw) -> c_uint;
    synchronize: c"cuCtxSynchronize", fn() -> c_uint;
    allocate: c"cuMemAlloc_v2", fn(*mut u64, usize) -> c_uint;
    free: c"cuMemFree_v2", fn(u64) -> c_uint;
    set: c"cuMemsetD8_v2", fn(u64, u8, usize) -> c_uint;
    copy_in: c"cuMemcpyHtoD_v2", fn(u64, *const c_void, usize) -> c_uint;
    copy_out: c"cuMemcpyDtoH_v2", fn(*mut c_void, u64, usize) -> c_uint;
    set_attribute: c"cuPointerSetAttribute", fn(*const c_void, c_int, u64) -> c_uint;
    [
        // Since CUDA 11.7.
        handle: c"cuMemGetHandleForAddressRange",
            fn(*mut c_void, u64, usize, c_int, c_ulonglong) -> c_uint;
    ]
}

/// A capability of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// RDMA devices can access its memory through a kernel module of the driver.
    GpuDirectRdma,
    /// Its memory can be exported as dma-buf.
    DmaBuf,
}

impl Attribute {
    fn number(self) -> c_int {
        match self {
            Self::GpuDirectRdma => 116,
            Self::DmaBuf => 124,
        }
    }
}

/// The initialised CUDA library.
#[derive(Clone, Copy)]
pub struct Cuda(&'static Library);

/// One GPU.
#[derive(Clone, Copy)]
pub struct Device {
    library: &'static Library,
    number: c_int,
}

/// Loads CUDA from the node's driver and initialises it, which opens all GPUs of `CUDA_VISIBLE_DEVICES`.
/// Later calls return the library that the first call loaded.
///
/// # Errors
/// [`Error::Absent`] without a driver; [`Error::Library`] and [`Error::Failed`] from loader and CUDA.
pub fn open(root: &Path) -> Result<Cuda, Error> {
    static LOADED: OnceLock<Library> = OnceLock::new();
    let library = driver::load_once(&LOADED, root, NAME, Library::of)?;
    // SAFETY: it takes no flags, and may be called repeatedly.
    let answer = unsafe { (library.init)(0) };
    done(library, answer)?;
    Ok(Cuda(library))
}

fn done(library: &Library, answer: c_uint) -> Result<(), Error> {
    if answer == SUCCESS {
        return Ok(());
    }
    let mut at = null();
    // SAFETY: it takes any number, and the address is valid during the call. For an unknown number it
    // writes null or nothing.
    let _ = unsafe { (library.error_string)(answer, &raw mut at) };
    Err(Error::Failed {
        number: answer,
        // SAFETY: CUDA's constants are C strings.
        text: unsafe { text_at(at) },
    })
}

impl Cuda {
    /// Returns the GPU at a PCI address.
    ///
    /// # Errors
    /// [`Error::Failed`] with CUDA's error.
    pub fn device(&self, address: &str) -> Result<Device, Error> {
        let pci = CString::new(address).map_err(|_| Error::BadAddress(address.to_owned()))?;
        let mut number = 0;
        // SAFETY: the address is a C string, and both are valid during the call.
        let answer = unsafe { (self.0.by_pci)(&raw mut number, pci.as_ptr()) };
        done(self.0, answer)?;
        Ok(Device {
            library: self.0,
            number,
        })
    }
}

impl Device {
    /// Returns whether the GPU has a capability; false if the driver does not know it.
    ///
    /// # Errors
    /// [`Error::Failed`] with CUDA's error.
    pub fn supports(&self, attribute: Attribute) -> Result<bool, Error> {
        const INVALID_VALUE: c_uint = 1;
        let mut value = 0;
        // SAFETY: the device is of this CUDA, and the number is valid during the call.
        let answer =
            unsafe { (self.library.attribute)(&raw mut value, attribute.number(), self.number) };
        if answer == INVALID_VALUE {
            return Ok(false);
        }
        done(self.library, answer)?;
        Ok(value != 0)
    }

    /// Creates a context, which uses memory of the GPU while it exists.
    ///
    /// # Errors
    /// [`Error::Failed`] with CUDA's error.
    pub fn context(&self) -> Result<Context, Error> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device is of this CUDA, and the address is valid during the call.
        let answer = unsafe { (self.library.create)(&raw mut raw, 0, self.number) };
        done(self.library, answer)?;
        let raw = NonNull::new(raw).ok_or(Error::Unsupported("context"))?;
        Ok(Context(Arc::new(Handle {
            library: self.library,
            raw,
        })))
    }
}

/// A CUDA context, held by every object that was created in it.
struct Handle {
    library: &'static Library,
    raw: NonNull<Raw>,
}

// SAFETY: CUDA's driver API may be called from any thread; each call here first makes the context current.
// `Handle` is the only owner of the context.
unsafe impl Send for Handle {}
// SAFETY: CUDA locks what its calls share, so several threads may call it concurrently.
unsafe impl Sync for Handle {}

impl Handle {
    fn enter(&self) -> Result<(), Error> {
        // SAFETY: the context is valid as long as this.
        let answer = unsafe { (self.library.set_current)(self.raw.as_ptr()) };
        done(self.library, answer)
    }

    /// Waits for the work that was submitted in the context.
    fn synchronize(&self) -> Result<(), Error> {
        // SAFETY: it takes nothing; callers have made the context current.
        let answer = unsafe { (self.library.synchronize)() };
        done(self.library, answer)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: every object in the context holds this, so none is left; a failure leaves the context
        // until the process ends.
        let _ = unsafe { (self.library.destroy)(self.raw.as_ptr()) };
    }
}

/// A context on a GPU.
#[derive(Clone)]
pub struct Context(Arc<Handle>);

opaque_debug!(Context);

impl Context {
    /// Allocates pages of 64 KiB of the GPU's memory, aligned to 64 KiB.
    ///
    /// # Errors
    /// [`Error::Failed`] with CUDA's error.
    pub fn memory(&self, pages: u16) -> Result<Memory, Error> {
        let length = usize::from(pages.max(1)) * PAGE;
        let context = Arc::clone(&self.0);
        context.enter()?;
        let mut base = 0;
        // SAFETY: the number is valid during the call. One additional page makes the alignment possible.
        let answer = unsafe { (context.library.allocate)(&raw mut base, length + PAGE) };
        done(context.library, answer)?;
        let memory = Memory {
            start: base.next_multiple_of(PAGE as u64),
            base,
            length,
            context,
        };
        let enabled: c_uint = 1;
        // Orders the writes of devices with copies of this process.
        // SAFETY: the memory is of this context, and the value is valid during the call.
        let answer = unsafe {
            (memory.context.library.set_attribute)(
                (&raw const enabled).cast(),
                SYNC_MEMOPS,
                memory.base,
            )
        };
        done(memory.context.library, answer)?;
        Ok(memory)
    }
}

/// GPU memory. No reference to it is ever created, because devices may write to it at any time.
pub struct Memory {
    context: Arc<Handle>,
    /// Address of the allocation; `start` is the first aligned address in it.
    base: u64,
    start: u64,
    length: usize,
}

opaque_debug!(Memory);

impl Drop for Memory {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: it was allocated in this context and is freed once.
            let _ = unsafe { (self.context.library.free)(self.base) };
        }
    }
}

impl Memory {
    /// Returns the number of bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the address for the GPU and for devices, and the length.
    #[cfg(feature = "verbs")]
    pub(crate) fn extent(&self) -> (u64, usize) {
        (self.start, self.length)
    }

    /// Sets each byte to a value.
    ///
    /// # Errors
    /// [`Error::Failed`] with CUDA's error.
    pub fn fill(&self, value: u8) -> Result<(), Error> {
        self.context.enter()?;
        // SAFETY: the range is this memory.
        let answer = unsafe { (self.context.library.set)(self.start, value, self.length) };
        done(self.context.library, answer)?;
        self.context.synchronize()
    }

    /// Copies bytes to the start of the memory.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Failed`] with CUDA's error.
    pub fn copy_in(&self, bytes: &[u8]) -> Result<(), Error> {
        self.within(bytes.len())?;
        self.context.enter()?;
        let from = bytes.as_ptr().cast();
        // SAFETY: both ranges have this length and are valid during the call, which only reads the bytes.
        let answer = unsafe { (self.context.library.copy_in)(self.start, from, bytes.len()) };
        done(self.context.library, answer)?;
        self.context.synchronize()
    }

    /// Copies bytes from the start of the memory.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Failed`] with CUDA's error.
    pub fn copy_out(&self, bytes: &mut [u8]) -> Result<(), Error> {
        self.within(bytes.len())?;
        self.context.enter()?;
        self.context.synchronize()?;
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: both ranges have this length and are valid during the call; the bytes are borrowed
        // exclusively.
        let answer = unsafe { (self.context.library.copy_out)(to, self.start, bytes.len()) };
        done(self.context.library, answer)
    }

    fn within(&self, length: usize) -> Result<(), Error> {
        if length > self.length {
            return Err(Error::OutOfRange);
        }
        Ok(())
    }

    /// Exports the whole memory as dma-buf.
    ///
    /// # Errors
    /// [`Error::Failed`] with CUDA's error; [`Error::Unsupported`] with a driver before CUDA 11.7.
    pub fn dma_buf(&self) -> Result<OwnedFd, Error> {
        const EXPORT: &str = "cuMemGetHandleForAddressRange";
        let export = self
            .context
            .library
            .handle
            .ok_or(Error::Unsupported(EXPORT))?;
        self.context.enter()?;
        let mut descriptor: c_int = -1;
        let room = (&raw mut descriptor).cast();
        // SAFETY: the range is this memory; there is space for one handle of this kind, a descriptor,
        // during the call.
        let answer = unsafe { export(room, self.start, self.length, HANDLE_DMA_BUF, 0) };
        done(self.context.library, answer)?;
        if descriptor < 0 {
            return Err(Error::BadDescriptor);
        }
        // SAFETY: CUDA has just created it for the caller, who owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}
