//! Recorded machines: what is read of each, that a recording tells the same as the machine, and that
//! nothing that a file may hold makes a reader stumble or tell what is not so.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

#[path = "machines/beside.rs"]
mod beside;
#[path = "machines/containers.rs"]
mod containers;
#[path = "machines/fixes.rs"]
mod fixes;
#[path = "machines/golden.rs"]
mod golden;
#[path = "machines/gpus.rs"]
mod gpus;
#[path = "machines/hostile.rs"]
mod hostile;
#[path = "machines/live.rs"]
mod live;
#[path = "machines/recorded.rs"]
mod recorded;
#[path = "machines/rows.rs"]
mod rows;
#[path = "machines/tried.rs"]
mod tried;
#[path = "machines/verdicts.rs"]
mod verdicts;
