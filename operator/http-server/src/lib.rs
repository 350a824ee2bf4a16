//! HTTP servers of the operator and the agents: addresses of both families, and HTTPS with a certificate that is replaced in
//! memory and bounded connections.
#![forbid(unsafe_code)]

mod certificate;
mod listener;
mod serve;

pub use certificate::{Resolver, TlsError, server_config};
pub use listener::listen;
pub use serve::serve;
