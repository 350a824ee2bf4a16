//! Shared libraries that are loaded at run time, once and for good, and the table of functions that is
//! taken of one.

use std::ffi::{CStr, c_void};

/// Makes a table of a library's functions: all of them must be there, but for those in brackets.
macro_rules! functions {
    ($($name:ident: $symbol:literal, fn($($argument:ty),*) $(-> $answer:ty)?;)+
     $([$($maybe:ident: $wanted:literal, fn($($given:ty),*) $(-> $told:ty)?;)+])?) => {
        /// What is called of it.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?,)+
            $($(pub(super) $maybe: Option<unsafe extern "C" fn($($given),*) $(-> $told)?>,)+)?
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
                                unsafe extern "C" fn($($given),*) $(-> $told)?,
                            >(symbol)
                        }
                    }),)+)?
                })
            }
        }
    };
}
pub(crate) use functions;

/// Loads a library, which is never unloaded. What runs as it is loaded is code of whoever made it: callers
/// name libraries that the system trusts, and no others.
pub(crate) fn load(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the name is a C string. What runs as it is loaded is the system's own library, which is made
    // to be loaded so.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(last_words());
    }
    Ok(handle)
}

/// The address of a library's function.
pub(crate) fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the handle is of a loaded library, the name a C string.
    let symbol = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if symbol.is_null() {
        return Err(last_words());
    }
    Ok(symbol)
}

fn last_words() -> String {
    // SAFETY: it answers the calling thread's last error, or null.
    let words = unsafe { libc::dlerror() };
    if words.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: not null, and then a C string that lasts until the thread's next call of the loader.
    let words = unsafe { CStr::from_ptr(words) };
    words.to_string_lossy().into_owned()
}
