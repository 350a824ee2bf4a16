//! A GPU by CUDA's driver interface (`cuda.h`, whose functions keep what they do under their versioned
//! names): what it can do, and a small piece of its memory.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::{NonNull, null};
use std::sync::{Arc, OnceLock};

use super::{Error, driver, words};
use crate::loader::functions;

const NAME: &str = "libcuda.so.1";

const SUCCESS: c_uint = 0;
const HANDLE_DMA_BUF: c_int = 1;
const SYNC_MEMOPS: c_int = 6;

/// What is registered with a device begins on a page, of which 64 KiB are the largest here: pages of the
/// GPU, and of some arm64 kernels.
const PAGE: usize = 64 << 10;

/// A context, only ever handled by address.
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

/// What a GPU can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// RDMA devices can reach its memory through a module of its driver's.
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

/// CUDA, which was begun.
#[derive(Clone, Copy)]
pub struct Cuda(&'static Library);

/// One GPU.
#[derive(Clone, Copy)]
pub struct Device {
    library: &'static Library,
    number: c_int,
}

/// Loads CUDA's driver library of the node with this root folder, of the first folder that is asked for, and
/// begins it: it opens all GPUs that `CUDA_VISIBLE_DEVICES` leaves.
///
/// # Errors
/// [`Error::Absent`] where the node has none; what loader and CUDA say.
pub fn open(root: &Path) -> Result<Cuda, Error> {
    static LOADED: OnceLock<Library> = OnceLock::new();
    let library = match LOADED.get() {
        Some(library) => library,
        None => {
            let library = Library::of(driver::load(root, NAME)?).map_err(Error::Library)?;
            LOADED.get_or_init(|| library)
        }
    };
    // SAFETY: it takes no flags, and may be called again and again.
    let answer = unsafe { (library.init)(0) };
    done(library, answer)?;
    Ok(Cuda(library))
}

fn done(library: &Library, answer: c_uint) -> Result<(), Error> {
    if answer == SUCCESS {
        return Ok(());
    }
    let mut at = null();
    // SAFETY: it takes any number, and the address lives across the call. Where it knows no word it leaves
    // or writes null.
    let _ = unsafe { (library.error_string)(answer, &raw mut at) };
    Err(Error::Refused {
        number: answer,
        // SAFETY: CUDA's constants are C strings.
        words: unsafe { words(at) },
    })
}

impl Cuda {
    /// The GPU at a PCI address.
    ///
    /// # Errors
    /// What CUDA says.
    pub fn device(&self, address: &str) -> Result<Device, Error> {
        let pci = CString::new(address).map_err(|_| Error::NoAddress(address.to_owned()))?;
        let mut number = 0;
        // SAFETY: the address is a C string, and both live across the call.
        let answer = unsafe { (self.0.by_pci)(&raw mut number, pci.as_ptr()) };
        done(self.0, answer)?;
        Ok(Device {
            library: self.0,
            number,
        })
    }
}

impl Device {
    /// Whether it can do that, for which no context is made. One that an older driver does not know it
    /// cannot.
    ///
    /// # Errors
    /// What CUDA says.
    pub fn can(&self, attribute: Attribute) -> Result<bool, Error> {
        const INVALID_VALUE: c_uint = 1;
        let mut value = 0;
        // SAFETY: the device is of this CUDA, and the number lives across the call.
        let answer =
            unsafe { (self.library.attribute)(&raw mut value, attribute.number(), self.number) };
        if answer == INVALID_VALUE {
            return Ok(false);
        }
        done(self.library, answer)?;
        Ok(value != 0)
    }

    /// A context of its own, which takes memory of the GPU for as long as it is there.
    ///
    /// # Errors
    /// What CUDA says.
    pub fn context(&self) -> Result<Context, Error> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device is of this CUDA, and the address lives across the call.
        let answer = unsafe { (self.library.create)(&raw mut raw, 0, self.number) };
        done(self.library, answer)?;
        let raw = NonNull::new(raw).ok_or(Error::Unsupported("context"))?;
        Ok(Context(Arc::new(Made {
            library: self.library,
            raw,
        })))
    }
}

/// What all that is made in a context holds.
struct Made {
    library: &'static Library,
    raw: NonNull<Raw>,
}

// SAFETY: CUDA's driver interface may be called from any thread; each call here makes the context that of
// its thread first. `Made` is the only owner of the context.
unsafe impl Send for Made {}
// SAFETY: CUDA locks what its calls share, so that they may come from several threads at once.
unsafe impl Sync for Made {}

impl Made {
    fn enter(&self) -> Result<(), Error> {
        // SAFETY: the context is there for as long as this.
        let answer = unsafe { (self.library.set_current)(self.raw.as_ptr()) };
        done(self.library, answer)
    }

    /// Waits for what was begun in it.
    fn settle(&self) -> Result<(), Error> {
        // SAFETY: it takes nothing; the context is the thread's, as callers have entered it.
        let answer = unsafe { (self.library.synchronize)() };
        done(self.library, answer)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // SAFETY: whatever was made in it holds this, so nothing of it is left; a failure leaves it to the
        // end of the process.
        let _ = unsafe { (self.library.destroy)(self.raw.as_ptr()) };
    }
}

/// A context on a GPU.
#[derive(Clone)]
pub struct Context(Arc<Made>);

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").finish_non_exhaustive()
    }
}

impl Context {
    /// So many bytes of the GPU's memory, which begin and end on pages.
    ///
    /// # Errors
    /// What CUDA says.
    pub fn memory(&self, pages: u16) -> Result<Memory, Error> {
        let length = usize::from(pages.max(1)) * PAGE;
        let made = Arc::clone(&self.0);
        made.enter()?;
        let mut base = 0;
        // SAFETY: the number lives across the call. A page more than asked for, so that a part of it begins
        // on one.
        let answer = unsafe { (made.library.allocate)(&raw mut base, length + PAGE) };
        done(made.library, answer)?;
        let memory = Memory {
            start: base.next_multiple_of(PAGE as u64),
            base,
            length,
            made,
        };
        let always: c_uint = 1;
        // What a device writes there must be ordered with copies of ours.
        // SAFETY: the memory is this context's, and the value lives across the call.
        let answer = unsafe {
            (memory.made.library.set_attribute)(
                (&raw const always).cast(),
                SYNC_MEMOPS,
                memory.base,
            )
        };
        done(memory.made.library, answer)?;
        Ok(memory)
    }
}

/// A piece of a GPU's memory, of which no reference is ever made: devices may write to it at any moment.
pub struct Memory {
    made: Arc<Made>,
    /// What was allocated, and what is used of it.
    base: u64,
    start: u64,
    length: usize,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.made.enter().is_ok() {
            // SAFETY: it was allocated in this context, is ours, and is given back once.
            let _ = unsafe { (self.made.library.free)(self.base) };
        }
    }
}

impl Memory {
    /// How many bytes it has.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Its address on the GPU and for devices, and its length.
    #[cfg(feature = "verbs")]
    pub(crate) fn extent(&self) -> (u64, usize) {
        (self.start, self.length)
    }

    /// Gives each byte this value.
    ///
    /// # Errors
    /// What CUDA says.
    pub fn fill(&self, value: u8) -> Result<(), Error> {
        self.made.enter()?;
        // SAFETY: the range is the memory's own.
        let answer = unsafe { (self.made.library.set)(self.start, value, self.length) };
        done(self.made.library, answer)?;
        self.made.settle()
    }

    /// Copies bytes to its beginning.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; what CUDA says.
    pub fn copy_in(&self, bytes: &[u8]) -> Result<(), Error> {
        self.within(bytes.len())?;
        self.made.enter()?;
        let from = bytes.as_ptr().cast();
        // SAFETY: both ranges are of this length and stay for the call, which only reads the bytes.
        let answer = unsafe { (self.made.library.copy_in)(self.start, from, bytes.len()) };
        done(self.made.library, answer)?;
        self.made.settle()
    }

    /// Copies bytes from its beginning.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; what CUDA says.
    pub fn copy_out(&self, bytes: &mut [u8]) -> Result<(), Error> {
        self.within(bytes.len())?;
        self.made.enter()?;
        self.made.settle()?;
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: both ranges are of this length and stay for the call, and the bytes are ours alone.
        let answer = unsafe { (self.made.library.copy_out)(to, self.start, bytes.len()) };
        done(self.made.library, answer)
    }

    fn within(&self, length: usize) -> Result<(), Error> {
        if length > self.length {
            return Err(Error::OutOfRange);
        }
        Ok(())
    }

    /// The whole of it as dma-buf, which other drivers take.
    ///
    /// # Errors
    /// What CUDA says; [`Error::Unsupported`] by a driver before CUDA 11.7.
    pub fn dma_buf(&self) -> Result<OwnedFd, Error> {
        const ASK: &str = "cuMemGetHandleForAddressRange";
        let ask = self.made.library.handle.ok_or(Error::Unsupported(ASK))?;
        self.made.enter()?;
        let mut descriptor: c_int = -1;
        let room = (&raw mut descriptor).cast();
        // SAFETY: the range is the memory's own; of this kind of handle there is room for one, a
        // descriptor, which lives across the call.
        let answer = unsafe { ask(room, self.start, self.length, HANDLE_DMA_BUF, 0) };
        done(self.made.library, answer)?;
        if descriptor < 0 {
            let why = io::Error::from_raw_os_error(libc::EBADF);
            return Err(Error::NoDescriptor(why));
        }
        // SAFETY: CUDA has just made it for its caller, who closes it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}
