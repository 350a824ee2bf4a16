//! HTTP servers of the operator and the agents: addresses of both families, bounded connections and requests, HTTPS with a
//! certificate that is replaced in memory, and who may read metrics.

mod certificate;
mod connections;
mod listener;
mod readers;
mod request;
mod serve;

pub use certificate::{Resolver, TlsError, server_config};
pub use listener::listen;
pub use readers::Readers;
pub use serve::{Limits, serve};
