//! What the end-to-end tests, the demo and the measurements share: the product as users install it, and the
//! parts that scenarios are made of. The local Kubernetes is the crate `mooncake-local-cluster`.

pub mod clusters;
pub mod http;
pub mod product;
pub mod scenario;
pub mod settings;
