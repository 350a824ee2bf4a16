//! The function table of libibverbs, loaded once.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::ffi;
use super::{Call, Error, Why};
use crate::loader::{self, functions};

/// The name under which the loader finds it.
const NAME: &CStr = c"libibverbs.so.1";

functions! {
    get_device_list: c"ibv_get_device_list", fn(*mut c_int) -> *mut *mut ffi::ibv_device;
    free_device_list: c"ibv_free_device_list", fn(*mut *mut ffi::ibv_device);
    get_device_name: c"ibv_get_device_name", fn(*mut ffi::ibv_device) -> *const c_char;
    open_device: c"ibv_open_device", fn(*mut ffi::ibv_device) -> *mut ffi::ibv_context;
    close_device: c"ibv_close_device", fn(*mut ffi::ibv_context) -> c_int;
    query_device: c"ibv_query_device", fn(*mut ffi::ibv_context, *mut ffi::ibv_device_attr) -> c_int;
    query_port: c"ibv_query_port", fn(*mut ffi::ibv_context, u8, *mut ffi::ibv_port_attr) -> c_int;
    query_gid: c"ibv_query_gid", fn(*mut ffi::ibv_context, u8, c_int, *mut ffi::ibv_gid) -> c_int;
    alloc_pd: c"ibv_alloc_pd", fn(*mut ffi::ibv_context) -> *mut ffi::ibv_pd;
    dealloc_pd: c"ibv_dealloc_pd", fn(*mut ffi::ibv_pd) -> c_int;
    reg_mr: c"ibv_reg_mr", fn(*mut ffi::ibv_pd, *mut c_void, usize, c_int) -> *mut ffi::ibv_mr;
    dereg_mr: c"ibv_dereg_mr", fn(*mut ffi::ibv_mr) -> c_int;
    create_cq: c"ibv_create_cq",
        fn(*mut ffi::ibv_context, c_int, *mut c_void, *mut c_void, c_int) -> *mut ffi::ibv_cq;
    destroy_cq: c"ibv_destroy_cq", fn(*mut ffi::ibv_cq) -> c_int;
    create_qp: c"ibv_create_qp",
        fn(*mut ffi::ibv_pd, *mut ffi::ibv_qp_init_attr) -> *mut ffi::ibv_qp;
    modify_qp: c"ibv_modify_qp", fn(*mut ffi::ibv_qp, *mut ffi::ibv_qp_attr, c_int) -> c_int;
    destroy_qp: c"ibv_destroy_qp", fn(*mut ffi::ibv_qp) -> c_int;
    [
        // For requests of the engine; probes work without.
        create_comp_channel: c"ibv_create_comp_channel",
            fn(*mut ffi::ibv_context) -> *mut ffi::ibv_comp_channel;
        destroy_comp_channel: c"ibv_destroy_comp_channel", fn(*mut ffi::ibv_comp_channel) -> c_int;
        get_cq_event: c"ibv_get_cq_event",
            fn(*mut ffi::ibv_comp_channel, *mut *mut ffi::ibv_cq, *mut *mut c_void) -> c_int;
        ack_cq_events: c"ibv_ack_cq_events", fn(*mut ffi::ibv_cq, c_uint);
        get_async_event: c"ibv_get_async_event",
            fn(*mut ffi::ibv_context, *mut ffi::ibv_async_event) -> c_int;
        ack_async_event: c"ibv_ack_async_event", fn(*mut ffi::ibv_async_event);
        // Since rdma-core 25.
        reg_mr_iova: c"ibv_reg_mr_iova",
            fn(*mut ffi::ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ffi::ibv_mr;
        // Since rdma-core 28; the former one has no optional access.
        reg_mr_iova2: c"ibv_reg_mr_iova2",
            fn(*mut ffi::ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ffi::ibv_mr;
        // Since rdma-core 34.
        reg_dmabuf_mr: c"ibv_reg_dmabuf_mr",
            fn(*mut ffi::ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ffi::ibv_mr;
    ]
}

/// Returns the library; loads it at the first call.
pub(super) fn library() -> Result<&'static Library, Error> {
    static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
    let loaded = LOADED.get_or_init(|| loader::load(NAME).and_then(Library::of));
    loaded
        .as_ref()
        .map_err(|error| Error::of(Call::Load, Why::Library(error.clone())))
}
