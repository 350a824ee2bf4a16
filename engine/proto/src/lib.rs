//! The pure parts of the engine: what the wire says and what follows from it. No sockets, clocks
//! or threads; time and bytes come in, decisions and bytes go out.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod address;
pub mod arena;
pub mod coro_rpc;
pub mod descriptor;
pub mod extent;
pub mod frame;
pub mod handshake;
pub mod scheduler;
pub mod store;
pub mod struct_pack;
