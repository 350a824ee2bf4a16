//! What the agent publishes: the status of its MooncakeNode, its MooncakeInventory, and metrics over HTTP.

pub(crate) mod certificate;
mod declared_fields;
pub(crate) mod http;
pub(crate) mod inventory;
pub(crate) mod metrics;
pub(crate) mod report;
pub(crate) mod status;
pub(crate) mod totals;
