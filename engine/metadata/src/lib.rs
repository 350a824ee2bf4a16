//! Client of the metadata services of stock engines, HTTP and etcd. It reads the segment descriptors of peers, and publishes that of
//! an engine until it ends.
//!
//! Only an etcd with a Secret has authentication: otherwise whoever reaches a service can read, replace and remove each
//! key. What it returns is as trustworthy as that, so the addresses in a descriptor are checked before they are used.

mod connect;
mod entry;
mod error;
mod etcd;
mod http;
mod service;

pub use connect::{Addresses, Lookup, system_lookup};
pub use entry::{Entry, Published};
pub use error::{Error, Problem};
pub use etcd::credentials::Credentials;
pub use service::Service;
