//! The unmodified other side of tests and figures: wheels of pinned releases, fetched once into the
//! cache outside the tree, and network namespaces in which their programs run without touching
//! anybody's ports. Nothing of it is in the product.

mod space;
mod wheel;

pub use space::Space;
pub use wheel::{LMCACHE, MOONCAKE, MOONCAKE_BEFORE, SGLANG, VLLM, Wheel};
