//! The used part of libibverbs' interface, as declared in `verbs.h` of rdma-core 44. This interface has not
//! changed since 2009; sizes and offsets are checked below. Enums are integers, because a device may return
//! unknown values.

#![allow(non_camel_case_types, reason = "the names that the headers have")]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// Opaque.
#[repr(C)]
pub(super) struct ibv_pd {
    _held: [u8; 0],
}

#[repr(C)]
pub(super) struct ibv_device {
    _ops: [*mut c_void; 2],
    _node_type: c_int,
    pub(super) transport_type: c_int,
    // Names and paths follow.
}

/// Its first fields.
#[repr(C)]
pub(super) struct ibv_context {
    _device: *mut ibv_device,
    _before_poll: [*mut c_void; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
    _between: [*mut c_void; 12],
    pub(super) post_send:
        Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
    _after_post: [*mut c_void; 6],
    _cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

#[repr(C)]
pub(super) struct ibv_async_event {
    /// A pointer to an object, or the number of a port.
    pub(super) element: u64,
    pub(super) event_type: c_int,
}

#[repr(C)]
pub(super) struct ibv_device_attr {
    _firmware: [c_char; 64],
    _guids: [u64; 2],
    pub(super) max_mr_size: u64,
    _page_sizes: u64,
    _vendor: [u32; 3],
    pub(super) max_qp: c_int,
    _max_qp_wr: c_int,
    _flags: c_uint,
    _sges: [c_int; 2],
    _max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    _more: [c_int; 21],
    _max_pkeys: u16,
    _ack_delay: u8,
    _ports: u8,
}

#[repr(C)]
pub(super) struct ibv_port_attr {
    pub(super) state: c_int,
    _max_mtu: c_int,
    pub(super) active_mtu: c_int,
    _gids: c_int,
    _counts: [u32; 4],
    _pkeys: u16,
    pub(super) lid: u16,
    _sm_lid: u16,
    _bytes: [u8; 8],
    pub(super) link_layer: u8,
    _flags: u8,
    _more_flags: u16,
}

#[repr(C)]
pub(super) struct ibv_mr {
    _context: *mut ibv_context,
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// Its first fields.
#[repr(C)]
pub(super) struct ibv_comp_channel {
    _context: *mut ibv_context,
    pub(super) fd: c_int,
}

/// Its first fields.
#[repr(C)]
pub(super) struct ibv_cq {
    pub(super) context: *mut ibv_context,
}

/// Its first fields.
#[repr(C)]
pub(super) struct ibv_qp {
    pub(super) context: *mut ibv_context,
    _own: *mut c_void,
    _pd: *mut ibv_pd,
    _queues: [*mut ibv_cq; 2],
    _srq: *mut c_void,
    _handle: u32,
    pub(super) qp_num: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ibv_qp_cap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
pub(super) struct ibv_qp_init_attr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut c_void,
    pub(super) cap: ibv_qp_cap,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct ibv_gid(pub(super) [u8; 16]);

#[repr(C)]
pub(super) struct ibv_global_route {
    pub(super) dgid: ibv_gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

#[repr(C)]
pub(super) struct ibv_ah_attr {
    pub(super) grh: ibv_global_route,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

#[repr(C)]
pub(super) struct ibv_qp_attr {
    pub(super) qp_state: c_int,
    pub(super) cur_qp_state: c_int,
    pub(super) path_mtu: c_int,
    pub(super) path_mig_state: c_int,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: ibv_qp_cap,
    pub(super) ah_attr: ibv_ah_attr,
    pub(super) alt_ah_attr: ibv_ah_attr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

#[repr(C)]
pub(super) struct ibv_sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// With the fields of an RDMA write; those of other work requests are bytes.
#[repr(C)]
pub(super) struct ibv_send_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: c_uint,
    pub(super) immediate: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    _others: [u64; 9],
}

#[repr(C)]
pub(super) struct ibv_wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    _opcode: c_int,
    pub(super) vendor_err: u32,
    _rest: [u32; 7],
}

pub(super) const TRANSPORT_IWARP: c_int = 1;
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;
pub(super) const PORT_ACTIVE: c_int = 4;
pub(super) const EVENT_DEVICE_FATAL: c_int = 8;
pub(super) const EVENT_PORT_ACTIVE: c_int = 9;
pub(super) const EVENT_PORT_ERR: c_int = 10;
pub(super) const EVENT_LID_CHANGE: c_int = 11;
pub(super) const EVENT_GID_CHANGE: c_int = 18;
pub(super) const QPT_RC: c_int = 2;
pub(super) const QPS_INIT: c_int = 1;
pub(super) const QPS_RTR: c_int = 2;
pub(super) const QPS_RTS: c_int = 3;
pub(super) const QPS_ERR: c_int = 6;
pub(super) const WR_RDMA_WRITE: c_int = 0;
pub(super) const WR_RDMA_READ: c_int = 4;
pub(super) const WC_WR_FLUSH_ERR: c_uint = 5;
pub(super) const WC_REM_ACCESS_ERR: c_uint = 10;
pub(super) const SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 1 << 1;
pub(super) const ACCESS_REMOTE_READ: c_int = 1 << 2;
/// Optional: libibverbs leaves it out where the kernel does not know it.
pub(super) const ACCESS_RELAXED_ORDERING: c_uint = 1 << 20;

pub(super) const QP_STATE: c_int = 1 << 0;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;

/// Sizes and offsets from a C compiler, with Debian's `libibverbs-dev` 44.0 on a 64-bit machine.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::{offset_of, size_of};
    assert!(offset_of!(ibv_device, transport_type) == 20);
    assert!(offset_of!(ibv_context, poll_cq) == 96);
    assert!(offset_of!(ibv_context, req_notify_cq) == 104);
    assert!(offset_of!(ibv_context, post_send) == 208);
    assert!(offset_of!(ibv_context, async_fd) == 268);
    assert!(size_of::<ibv_async_event>() == 16);
    assert!(offset_of!(ibv_comp_channel, fd) == 8);
    assert!(size_of::<ibv_device_attr>() == 232);
    assert!(offset_of!(ibv_device_attr, max_mr_size) == 80);
    assert!(offset_of!(ibv_device_attr, max_qp) == 108);
    assert!(offset_of!(ibv_device_attr, max_cqe) == 132);
    assert!(offset_of!(ibv_device_attr, max_mr) == 136);
    assert!(size_of::<ibv_port_attr>() == 52);
    assert!(offset_of!(ibv_port_attr, active_mtu) == 8);
    assert!(offset_of!(ibv_port_attr, lid) == 34);
    assert!(offset_of!(ibv_port_attr, link_layer) == 46);
    assert!(size_of::<ibv_mr>() == 48);
    assert!(offset_of!(ibv_mr, lkey) == 36);
    assert!(offset_of!(ibv_mr, rkey) == 40);
    assert!(offset_of!(ibv_qp, qp_num) == 52);
    assert!(size_of::<ibv_qp_init_attr>() == 64);
    assert!(offset_of!(ibv_qp_init_attr, qp_type) == 52);
    assert!(size_of::<ibv_ah_attr>() == 32);
    assert!(offset_of!(ibv_ah_attr, is_global) == 29);
    assert!(size_of::<ibv_qp_attr>() == 144);
    assert!(offset_of!(ibv_qp_attr, qp_access_flags) == 32);
    assert!(offset_of!(ibv_qp_attr, ah_attr) == 56);
    assert!(offset_of!(ibv_qp_attr, pkey_index) == 120);
    assert!(offset_of!(ibv_qp_attr, port_num) == 129);
    assert!(size_of::<ibv_sge>() == 16);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(offset_of!(ibv_send_wr, opcode) == 28);
    assert!(offset_of!(ibv_send_wr, remote_addr) == 40);
    assert!(size_of::<ibv_wc>() == 48);
    assert!(offset_of!(ibv_wc, status) == 8);
    assert!(offset_of!(ibv_wc, vendor_err) == 16);
};
