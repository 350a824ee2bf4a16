//! HTTP servers of the operator and the agents: addresses of both families, HTTPS with a certificate that is replaced in
//! memory and bounded connections, and who may read metrics.
#![forbid(unsafe_code)]

mod certificate;
mod listener;
mod readers;
mod serve;

pub use certificate::{Resolver, TlsError, server_config};
pub use listener::listen;
pub use readers::Readers;
pub use serve::serve;
