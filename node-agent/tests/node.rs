//! Agent and pool processes without Kubernetes, against a stock master and a stock client. Requires root for
//! network namespaces, and the stock wheel, which is installed on first use.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

#[path = "node/efa.rs"]
mod efa;
#[path = "node/engine_process.rs"]
mod engine_process;
#[path = "node/evacuation.rs"]
mod evacuation;
#[path = "node/hostile.rs"]
mod hostile;
#[path = "node/hostile_master.rs"]
mod hostile_master;
#[path = "node/hostile_peers.rs"]
mod hostile_peers;
#[path = "node/hostile_pools.rs"]
mod hostile_pools;
#[path = "node/hugepages.rs"]
mod hugepages;
#[path = "node/ledger.rs"]
mod ledger;
#[path = "node/matrix.rs"]
mod matrix;
#[path = "node/metadata.rs"]
mod metadata;
#[path = "node/peers.rs"]
mod peers;
#[path = "node/serving.rs"]
mod serving;
#[path = "node/stage.rs"]
mod stage;
