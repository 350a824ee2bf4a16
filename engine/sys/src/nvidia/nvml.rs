//! What NVML tells of a GPU (`nvml.h`, whose functions and structs are versioned and do not change).

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use super::{Error, driver, words};
use crate::loader::functions;

const NAME: &str = "libnvidia-ml.so.1";

const SUCCESS: c_int = 0;
const NOT_SUPPORTED: c_int = 3;
const INSUFFICIENT_SIZE: c_int = 7;
const FUNCTION_NOT_FOUND: c_int = 13;

/// The number by which NVML says that a GPU has fallen off the bus.
pub const GPU_IS_LOST: u32 = 15;

/// Longer than any word that NVML gives.
const WORD: usize = 128;

/// One GPU, only ever handled by address.
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

/// `nvmlGpuFabricInfo_v2`: its size, and in the highest byte its version.
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
        // All three of each differ in what they say of a process, not in how many there are.
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

/// NVML, which was begun. It is never ended: the process that asks ends.
#[derive(Clone, Copy)]
pub struct Nvml(&'static Library);

/// One GPU.
#[derive(Clone, Copy)]
pub struct Gpu {
    library: &'static Library,
    raw: NonNull<Raw>,
}

/// What GPUs of several nodes share memory through, as one GPU sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fabric {
    /// How far the GPU has come: 1 not started, 2 in progress, 3 completed.
    pub state: u8,
    /// Why it is completed and of no use, where not 0.
    pub status: u32,
    pub cluster: [u8; 16],
    pub clique: u32,
}

/// Loads NVML of the node with this root folder, of the first folder that is asked for, and begins it. It
/// wakes no GPU yet.
///
/// # Errors
/// [`Error::Absent`] where the node has none; what loader and NVML say.
pub fn open(root: &Path) -> Result<Nvml, Error> {
    static LOADED: OnceLock<Library> = OnceLock::new();
    let library = match LOADED.get() {
        Some(library) => library,
        None => {
            let library = Library::of(driver::load(root, NAME)?).map_err(Error::Library)?;
            LOADED.get_or_init(|| library)
        }
    };
    // SAFETY: it takes nothing, and may be called again and again.
    let answer = unsafe { (library.init)() };
    done(library, answer)?;
    Ok(Nvml(library))
}

fn done(library: &Library, answer: c_int) -> Result<(), Error> {
    if answer == SUCCESS {
        return Ok(());
    }
    // SAFETY: it takes any number, and answers a constant.
    let at = unsafe { (library.error_string)(answer) };
    Err(Error::Refused {
        number: answer.unsigned_abs(),
        // SAFETY: NVML's constants are C strings.
        words: unsafe { words(at) },
    })
}

/// What NVML writes into room for a word of so many bytes.
fn word(
    library: &Library,
    ask: impl FnOnce(*mut c_char, c_uint) -> c_int,
) -> Result<String, Error> {
    let mut room = [0_u8; WORD];
    done(library, ask(room.as_mut_ptr().cast(), 96))?;
    // The last byte stays 0 whatever is written into the first 96.
    let end = room.iter().position(|byte| *byte == 0).unwrap_or(0);
    Ok(String::from_utf8_lossy(&room[..end]).into_owned())
}

impl Nvml {
    /// Version of the driver.
    ///
    /// # Errors
    /// What NVML says.
    pub fn driver_version(&self) -> Result<String, Error> {
        // SAFETY: there is room for as many bytes as it is told of.
        word(self.0, |at, most| unsafe {
            (self.0.driver_version)(at, most)
        })
    }

    /// The GPU at a PCI address, which wakes it.
    ///
    /// # Errors
    /// What NVML says; [`GPU_IS_LOST`] of one that has fallen off the bus.
    pub fn gpu(&self, address: &str) -> Result<Gpu, Error> {
        let pci = CString::new(address).map_err(|_| Error::NoAddress(address.to_owned()))?;
        let mut raw = null_mut();
        // SAFETY: the address is a C string, and both live across the call.
        let answer = unsafe { (self.0.by_pci)(pci.as_ptr(), &raw mut raw) };
        done(self.0, answer)?;
        let raw = NonNull::new(raw).ok_or_else(|| Error::NoAddress(address.to_owned()))?;
        Ok(Gpu {
            library: self.0,
            raw,
        })
    }
}

impl Gpu {
    /// # Errors
    /// What NVML says.
    pub fn uuid(&self) -> Result<String, Error> {
        // SAFETY: the GPU is of this NVML, and there is room for as many bytes as it is told of.
        word(self.library, |at, most| unsafe {
            (self.library.uuid)(self.raw.as_ptr(), at, most)
        })
    }

    /// # Errors
    /// What NVML says.
    pub fn name(&self) -> Result<String, Error> {
        // SAFETY: the GPU is of this NVML, and there is room for as many bytes as it is told of.
        word(self.library, |at, most| unsafe {
            (self.library.name)(self.raw.as_ptr(), at, most)
        })
    }

    /// None where the GPU is made for no fabric, or the driver knows of none.
    ///
    /// # Errors
    /// What NVML says.
    pub fn fabric(&self) -> Result<Option<Fabric>, Error> {
        let Some(ask) = self.library.fabric else {
            return Ok(None);
        };
        let mut found = FabricInfo {
            version: FABRIC_VERSION,
            ..FabricInfo::default()
        };
        // SAFETY: the GPU is of this NVML; the struct is of the version that it names, and lives across
        // the call.
        let answer = unsafe { ask(self.raw.as_ptr(), &raw mut found) };
        if [NOT_SUPPORTED, FUNCTION_NOT_FOUND].contains(&answer) {
            return Ok(None);
        }
        done(self.library, answer)?;
        // State 0 is NVML's word for a GPU that is made for none.
        Ok((found.state != 0).then_some(Fabric {
            state: found.state,
            status: found.status.unsigned_abs(),
            cluster: found.cluster,
            clique: found.clique,
        }))
    }

    /// True where it is cut into instances (MIG).
    ///
    /// # Errors
    /// What NVML says.
    pub fn is_divided(&self) -> Result<bool, Error> {
        let Some(ask) = self.library.mig_mode else {
            return Ok(false);
        };
        let (mut now, mut later) = (0, 0);
        // SAFETY: the GPU is of this NVML, and both numbers live across the call.
        let answer = unsafe { ask(self.raw.as_ptr(), &raw mut now, &raw mut later) };
        if [NOT_SUPPORTED, FUNCTION_NOT_FOUND].contains(&answer) {
            return Ok(false);
        }
        done(self.library, answer)?;
        Ok(now != 0)
    }

    /// How many processes hold it, whatever for.
    ///
    /// # Errors
    /// What NVML says.
    pub fn processes(&self) -> Result<u32, Error> {
        let library = self.library;
        let kinds = [
            (library.compute_3.or(library.compute), true),
            (library.graphics_3.or(library.graphics), false),
            (library.shared_3.or(library.shared), false),
        ];
        let mut sum = 0_u32;
        for (ask, needed) in kinds {
            match ask {
                Some(ask) => sum = sum.saturating_add(self.count(ask)?),
                None if needed => {
                    return Err(Error::Unsupported("nvmlDeviceGetComputeRunningProcesses"));
                }
                None => {}
            }
        }
        Ok(sum)
    }

    /// It tells how many there are where there is room for none.
    fn count(&self, ask: Count) -> Result<u32, Error> {
        let mut count = 0;
        // SAFETY: the GPU is of this NVML; the number lives across the call, and says that there is no room
        // to write to.
        let answer = unsafe { ask(self.raw.as_ptr(), &raw mut count, null_mut()) };
        match answer {
            SUCCESS | INSUFFICIENT_SIZE => Ok(count),
            NOT_SUPPORTED | FUNCTION_NOT_FOUND => Ok(0),
            answer => done(self.library, answer).map(|()| 0),
        }
    }
}
