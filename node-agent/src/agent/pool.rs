//! One pool pod as the agent sees it: facts are gathered, one pure step decides what to do next,
//! and a task does it.

pub(crate) mod driver;
mod effects;
mod epoch;
mod failure;
mod link;
mod mover;
mod record;
mod step;

pub(crate) use driver::{Context, Wish, run};
pub(crate) use link::{Peeked, peek};
