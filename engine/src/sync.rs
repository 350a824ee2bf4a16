//! Primitives that threads share. `tests/interleavings.rs` compiles their users with those of a model checker instead.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

pub(crate) use futures::task::AtomicWaker;
pub(crate) use parking_lot::Mutex;
