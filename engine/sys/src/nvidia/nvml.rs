//! GPUs through NVML (`nvml.h`; functions and structs are versioned and do not change).

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use super::{Error, driver, text_at};
use crate::loader::functions;

const NAME: &str = "libnvidia-ml.so.1";

const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 3;
const INSUFFICIENT_SIZE: c_int = 7;
const FUNCTION_NOT_FOUND: c_int = 13;

/// NVML's error number for a GPU that is no longer on the PCI bus.
pub const GPU_IS_LOST: u32 = 15;

/// Buffer size for a string; longer than any string of NVML.
const TEXT: usize = 128;

/// An opaque GPU handle.
#[repr(C)]
pub(super) struct Raw {
    _held: [u8; 0],
}

/// `nvmlGpuFabricInfo_v2_t`.
#[repr(C)]
#[derive(Default)]
pub(super) struct FabricInfo {
    version: c_uint,
    cluster: [u8; 16],
    status: c_int,
    clique: c_uint,
    state: u8,
    health: c_uint,
}

/// Version of `nvmlGpuFabricInfo_v2`: its size, and 2 in the highest byte.
const FABRIC_VERSION: c_uint = 36 | 2 << 24;

const _: () = {
    assert!(size_of::<FabricInfo>() == 36);
    assert!(std::mem::offset_of!(FabricInfo, state) == 28);
};

type Count = unsafe extern "C" fn(*mut Raw, *mut c_uint, *mut c_void) -> c_int;

functions! {
    init: c"nvmlInit_v2", fn() -> c_int;
    error_string: c"nvmlErrorString", fn(c_int) -> *const c_char;
    driver_version: c"nvmlSystemGetDriverVersion", fn(*mut c_char, c_uint) -> c_int;
    by_pci: c"nvmlDeviceGetHandleByPciBusId_v2", fn(*const c_char, *mut *mut Raw) -> c_int;
    uuid: c"nvmlDeviceGetUUID", fn(*mut Raw, *mut c_char, c_uint) -> c_int;
    name: c"nvmlDeviceGetName", fn(*mut Raw, *mut c_char, c_uint) -> c_int;
    [
        fabric: c"nvmlDeviceGetGpuFabricInfoV", fn(*mut Raw, *mut FabricInfo) -> c_int;
        mig_mode: c"nvmlDeviceGetMigMode", fn(*mut Raw, *mut c_uint, *mut c_uint) -> c_int;
        // The versions differ in the data per process, not in the count.
        compute_3: c"nvmlDeviceGetComputeRunningProcesses_v3",
            fn(*mut Raw, *mut c_uint, *mut c_void) -> c_int;
        compute: c"nvmlDeviceGetComputeRunningProcesses",
            fn(*mut Raw, *mut c_uint, *mut c_void) -> c_int;
        graphics_3: c"nvmlDeviceGetGraphicsRunningProcesses_v3",
            fn(*mut Raw, *mut c_uint, *mut c_void) -> c_int;
        graphics: c"nvmlDeviceGetGraphicsRunningProcesses",
            fn(*mut Raw, *mut c_uint, *mut c_void) -> c_int;
        shared_3: c"nvmlDeviceGetMPSComputeRunningProcesses_v3",
            fn(*mut Raw, *mut c_uint, *mut c_void) -> c_int;
        shared: c"nvmlDeviceGetMPSComputeRunningProcesses",
            fn(*mut Raw, *mut c_uint, *mut c_void) -> c_int;
    ]
}

/// The initialised NVML library. It is never shut down: the calling process is short-lived.
#[derive(Clone, Copy)]
pub struct Nvml(&'static Library);

/// One GPU.
#[derive(Clone, Copy)]
pub struct Gpu {
    library: &'static Library,
    raw: NonNull<Raw>,
}

/// The NVLink fabric of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fabric {
    /// Registration state: 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// Error of a completed registration; 0 if it succeeded.
    pub status: u32,
    pub cluster: [u8; 16],
    pub clique: u32,
}

/// Loads NVML from the node's driver and initialises it, which opens no GPU. Later calls return the library
/// that the first call loaded.
///
/// # Errors
/// [`Error::Absent`] without a driver; [`Error::Library`] and [`Error::Failed`] from loader and NVML.
pub fn open(root: &Path) -> Result<Nvml, Error> {
    static LOADED: OnceLock<Library> = OnceLock::new();
    let library = driver::load_once(&LOADED, root, NAME, Library::of)?;
    // SAFETY: it takes nothing, and may be called repeatedly.
    let answer = unsafe { (library.init)() };
    done(library, answer)?;
    Ok(Nvml(library))
}

fn done(library: &Library, answer: c_int) -> Result<(), Error> {
    if answer == SUCCESS {
        return Ok(());
    }
    // SAFETY: it takes any number, and returns a constant.
    let at = unsafe { (library.error_string)(answer) };
    Err(Error::Failed {
        number: answer.unsigned_abs(),
        // SAFETY: NVML's constants are C strings.
        text: unsafe { text_at(at) },
    })
}

/// Returns a string that NVML writes into a buffer of the given size.
fn text(
    library: &Library,
    fill: impl FnOnce(*mut c_char, c_uint) -> c_int,
) -> Result<String, Error> {
    let mut buffer = [0_u8; TEXT];
    done(library, fill(buffer.as_mut_ptr().cast(), 96))?;
    // The bytes after the first 96 stay 0.
    let end = buffer.iter().position(|byte| *byte == 0).unwrap_or(0);
    Ok(String::from_utf8_lossy(&buffer[..end]).into_owned())
}

impl Nvml {
    /// Returns the version of the driver.
    ///
    /// # Errors
    /// [`Error::Failed`] with NVML's error.
    pub fn driver_version(&self) -> Result<String, Error> {
        // SAFETY: the buffer has as many bytes as stated.
        text(self.0, |at, most| unsafe {
            (self.0.driver_version)(at, most)
        })
    }

    /// Opens the GPU at a PCI address.
    ///
    /// # Errors
    /// [`Error::Failed`] with NVML's error; [`GPU_IS_LOST`] if it is no longer on the bus.
    pub fn gpu(&self, address: &str) -> Result<Gpu, Error> {
        let pci = CString::new(address).map_err(|_| Error::BadAddress(address.to_owned()))?;
        let mut raw = null_mut();
        // SAFETY: the address is a C string, and both are valid during the call.
        let answer = unsafe { (self.0.by_pci)(pci.as_ptr(), &raw mut raw) };
        done(self.0, answer)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::BadAddress(address.to_owned()))?;
        Ok(Gpu {
            library: self.0,
            raw,
        })
    }
}

impl Gpu {
    /// Returns the UUID.
    ///
    /// # Errors
    /// [`Error::Failed`] with NVML's error.
    pub fn uuid(&self) -> Result<String, Error> {
        // SAFETY: the GPU is of this NVML, and the buffer has as many bytes as stated.
        text(self.library, |at, most| unsafe {
            (self.library.uuid)(self.raw.as_ptr(), at, most)
        })
    }

    /// Returns the product name.
    ///
    /// # Errors
    /// [`Error::Failed`] with NVML's error.
    pub fn name(&self) -> Result<String, Error> {
        // SAFETY: the GPU is of this NVML, and the buffer has as many bytes as stated.
        text(self.library, |at, most| unsafe {
            (self.library.name)(self.raw.as_ptr(), at, most)
        })
    }

    /// Returns the fabric; `None` if the GPU or the driver supports none.
    ///
    /// # Errors
    /// [`Error::Failed`] with NVML's error.
    pub fn fabric(&self) -> Result<Option<Fabric>, Error> {
        let Some(query) = self.library.fabric else {
            return Ok(None);
        };
        let mut found = FabricInfo {
            version: FABRIC_VERSION,
            ..FabricInfo::default()
        };
        // SAFETY: the GPU is of this NVML; the struct has the version that it states, and is valid during
        // the call.
        let answer = unsafe { query(self.raw.as_ptr(), &raw mut found) };
        if [NOT_SUPPORTED, FUNCTION_NOT_FOUND].contains(&answer) {
            return Ok(None);
        }
        done(self.library, answer)?;
        // State 0: the GPU supports no fabric.
        Ok((found.state != 0).then_some(Fabric {
            state: found.state,
            status: found.status.unsigned_abs(),
            cluster: found.cluster,
            clique: found.clique,
        }))
    }

    /// Returns whether the GPU is partitioned into MIG instances.
    ///
    /// # Errors
    /// [`Error::Failed`] with NVML's error.
    pub fn is_mig_enabled(&self) -> Result<bool, Error> {
        let Some(query) = self.library.mig_mode else {
            return Ok(false);
        };
        let (mut now, mut later) = (0, 0);
        // SAFETY: the GPU is of this NVML, and both numbers are valid during the call.
        let answer = unsafe { query(self.raw.as_ptr(), &raw mut now, &raw mut later) };
        if [NOT_SUPPORTED, FUNCTION_NOT_FOUND].contains(&answer) {
            return Ok(false);
        }
        done(self.library, answer)?;
        Ok(now != 0)
    }

    /// Returns the number of processes that use the GPU.
    ///
    /// # Errors
    /// [`Error::Failed`] with NVML's error.
    pub fn processes(&self) -> Result<u32, Error> {
        let library = self.library;
        let kinds = [
            (library.compute_3.or(library.compute), true),
            (library.graphics_3.or(library.graphics), false),
            (library.shared_3.or(library.shared), false),
        ];
        let mut sum = 0_u32;
        for (query, needed) in kinds {
            match query {
                Some(query) => sum = sum.saturating_add(self.count(query)?),
                None if needed => {
                    return Err(Error::Unsupported("nvmlDeviceGetComputeRunningProcesses"));
                }
                None => {}
            }
        }
        Ok(sum)
    }

    /// Returns a count, which NVML reports for a buffer of size 0.
    fn count(&self, query: Count) -> Result<u32, Error> {
        let mut count = 0;
        // SAFETY: the GPU is of this NVML; the number is valid during the call, and states a buffer of
        // size 0.
        let answer = unsafe { query(self.raw.as_ptr(), &raw mut count, null_mut()) };
        match answer {
            SUCCESS | INSUFFICIENT_SIZE => Ok(count),
            NOT_SUPPORTED | FUNCTION_NOT_FOUND => Ok(0),
            answer => done(self.library, answer).map(|()| 0),
        }
    }
}
