//! The pure parts of the engine: wire formats and the scheduler. No sockets, clocks or threads; time and
//! bytes are arguments.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod address;
pub mod coro_rpc;
pub mod descriptor;
pub mod extent;
pub mod frame;
pub mod handshake;
pub mod metadata;
pub mod rdma;
pub mod scheduler;
pub mod store;
pub mod struct_pack;
