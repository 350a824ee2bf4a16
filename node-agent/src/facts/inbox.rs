//! The channels of snapshots: into the gatherer, and out of it to whoever judges or reports the node.

use std::sync::Arc;

use host::Snapshot;
use tokio::sync::watch;

use crate::assignments::Assignments;

/// Where sources deliver what they observe. The gatherer takes the latest values.
pub(crate) type Inbox = watch::Sender<Snapshot>;

/// Where the gatherer publishes; `None` before the first reading of the hardware.
pub(crate) type Publish = watch::Sender<Option<Arc<Snapshot>>>;

/// The latest snapshot.
pub(crate) type Snapshots = watch::Receiver<Option<Arc<Snapshot>>>;

/// What is known of the node, and what the operator has assigned to it.
pub(crate) type Inputs = (Snapshots, watch::Receiver<Assignments>);
