//! The crate against real stock masters, each in a network namespace of its own. Needs root, and
//! the stock wheels, which are installed on first use.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

#[path = "stock/epoch.rs"]
mod epoch;
#[path = "stock/generation.rs"]
mod generation;
#[path = "stock/master.rs"]
mod master;
#[path = "stock/node.rs"]
mod node;
#[path = "stock/tasks.rs"]
mod tasks;
#[path = "stock/unmount.rs"]
mod unmount;
