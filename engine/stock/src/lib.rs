//! Stock peers for tests and benchmarks: wheels of pinned releases, installed once into a cache, and network
//! namespaces in which their programs run without port conflicts. Not part of the product.

mod authority;
mod etcd;
mod space;
mod wheel;

pub use authority::{Authority, Signed};
pub use etcd::{Etcd, ServerTls};
pub use space::Space;
pub use wheel::{AIOHTTP, LMCACHE, MOONCAKE, MOONCAKE_BEFORE, SGLANG, VLLM, Wheel};
