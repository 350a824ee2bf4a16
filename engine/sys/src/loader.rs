//! Loads shared libraries at run time, and resolves their functions into a table. Libraries are never
//! unloaded.

use std::ffi::{CStr, c_void};

/// Declares the function table of a library. Functions in brackets are optional, all others required.
macro_rules! functions {
    ($($name:ident: $symbol:literal, fn($($argument:ty),*) $(-> $answer:ty)?;)+
     $([$($maybe:ident: $wanted:literal, fn($($given:ty),*) $(-> $result:ty)?;)+])?) => {
        /// The functions of the library.
        #[allow(dead_code, reason = "the only user of a function may be a feature that is off")]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)+
            $($(pub(super) $maybe: Option<unsafe extern "C" fn($($given),*) $(-> $result)?>,)+)?
        }

        impl Library {
            fn of(handle: *mut std::ffi::c_void) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let symbol = crate::loader::symbol(handle, $symbol)?;
                        // SAFETY: the library's function of this name has this type, as its headers
                        // declare it; the address is not null, and the library stays loaded.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $answer)?,
                            >(symbol)
                        }
                    },)+
                    $($($maybe: crate::loader::symbol(handle, $wanted).ok().map(|symbol| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($given),*) $(-> $result)?,
                            >(symbol)
                        }
                    }),)+)?
                })
            }
        }
    };
}
pub(crate) use functions;

/// Implements `Debug` with the name of the type only.
#[cfg(any(feature = "verbs", feature = "cuda"))]
macro_rules! opaque_debug {
    ($name:ident) => {
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    };
}
#[cfg(any(feature = "verbs", feature = "cuda"))]
pub(crate) use opaque_debug;

/// Loads a library. Its initialisers run, so callers pass only libraries that the system trusts.
pub(crate) fn load(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the name is a C string, and callers pass libraries that are made to be loaded this way.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(last_error());
    }
    Ok(handle)
}

/// Returns the address of a library's function.
pub(crate) fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the handle is of a loaded library, the name a C string.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if symbol.is_null() {
        return Err(last_error());
    }
    Ok(symbol)
}

fn last_error() -> String {
    // SAFETY: it returns the calling thread's last error, or null.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader reports no error".to_owned();
    }
    // SAFETY: not null, so a C string that is valid until the thread's next call of the loader.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}
