//! Processes of the agent: the supervisor, its worker's hold on the node, and children that may hang.

pub(crate) mod child;
pub(crate) mod node_lock;
pub(crate) mod supervisor;
