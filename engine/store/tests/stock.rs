//! Tests with real stock masters, each in its own network namespace. Requires root. Installs the stock wheels
//! on first use.
#![allow(clippy::unwrap_used, reason = "a failed set-up ends the test")]

#[path = "stock/epoch.rs"]
mod epoch;
#[path = "stock/master.rs"]
mod master;
#[path = "stock/node.rs"]
mod node;
#[path = "stock/release.rs"]
mod release;
#[path = "stock/tasks.rs"]
mod tasks;
#[path = "stock/unmount.rs"]
mod unmount;
