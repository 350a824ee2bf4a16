//! The master of the store: an index of keys, and a server that speaks the protocol of stock clients 0.3.13.
//!
//! [`index`] decides and has no socket, clock or thread; [`server`] and [`http`] serve it.

pub mod admission;
pub mod args;
pub mod http;
pub mod index;
pub mod leadership;
mod memory;
mod run;
pub mod server;
pub mod tenants;
mod watched;

pub use run::run;
