//! Recorded machines: the facts of each, that a recording gives the facts of its machine, and that no file content
//! breaks the reader or leads to wrong facts.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

#[path = "machines/agent_inputs.rs"]
mod agent_inputs;
#[path = "machines/containers.rs"]
mod containers;
#[path = "machines/findings.rs"]
mod findings;
#[path = "machines/golden.rs"]
mod golden;
#[path = "machines/gpu_probes.rs"]
mod gpu_probes;
#[path = "machines/hostile.rs"]
mod hostile;
#[path = "machines/live.rs"]
mod live;
#[path = "machines/recorded.rs"]
mod recorded;
#[path = "machines/troubleshooting_guide.rs"]
mod troubleshooting_guide;
#[path = "machines/verbs_probes.rs"]
mod verbs_probes;
