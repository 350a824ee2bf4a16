//! Counts calls and connections.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::connection::Ended;

/// Items of one call, and those that failed. A call that is no batch has one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) items: usize,
    pub(super) failed: usize,
}

impl Tally {
    pub(super) fn one(succeeded: bool) -> Self {
        Self {
            items: 1,
            failed: usize::from(!succeeded),
        }
    }

    /// Counts the results of a batch.
    pub(super) fn of<T, E>(results: &[Result<T, E>]) -> Self {
        Self {
            items: results.len(),
            failed: results.iter().filter(|result| result.is_err()).count(),
        }
    }
}

/// Calls of one function.
#[derive(Debug, Default)]
pub struct FunctionTraffic {
    pub requests: AtomicU64,
    /// Calls of which no item succeeded.
    pub failures: AtomicU64,
    /// Calls of which some items succeeded.
    pub partial: AtomicU64,
    pub items: AtomicU64,
    pub failed_items: AtomicU64,
}

/// Everything that the server has counted.
#[derive(Debug)]
pub struct Traffic {
    functions: Vec<(&'static str, FunctionTraffic)>,
    /// Requests of functions that do not exist.
    pub unknown: AtomicU64,
    /// Requests whose arguments could not be decoded.
    pub undecodable: AtomicU64,
    /// Connections that were closed because of their peer's bytes or silence.
    pub faulty_connections: AtomicU64,
    pub refused_connections: AtomicU64,
}

impl Traffic {
    pub(super) fn new(names: impl Iterator<Item = &'static str>) -> Self {
        Self {
            functions: names
                .map(|name| (name, FunctionTraffic::default()))
                .collect(),
            unknown: AtomicU64::new(0),
            undecodable: AtomicU64::new(0),
            faulty_connections: AtomicU64::new(0),
            refused_connections: AtomicU64::new(0),
        }
    }

    /// Returns the functions with the names of their C++ methods.
    pub fn functions(&self) -> impl Iterator<Item = (&'static str, &FunctionTraffic)> {
        self.functions.iter().map(|(name, counts)| (*name, counts))
    }

    pub(super) fn called(&self, function: usize, tally: Tally) {
        let Some((_, counts)) = self.functions.get(function) else {
            return;
        };
        counts.requests.fetch_add(1, Relaxed);
        counts.items.fetch_add(tally.items as u64, Relaxed);
        if tally.failed > 0 {
            counts.failed_items.fetch_add(tally.failed as u64, Relaxed);
            let outcome = if tally.failed == tally.items {
                &counts.failures
            } else {
                &counts.partial
            };
            outcome.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn connection_refused(&self) {
        self.refused_connections.fetch_add(1, Relaxed);
    }

    pub(super) fn connection_ended(&self, ended: &Ended) {
        let is_fault = !matches!(
            ended,
            Ended::ByPeer | Ended::Idle | Ended::Io(_) | Ended::Unacknowledged(_)
        );
        if is_fault {
            self.faulty_connections.fetch_add(1, Relaxed);
        }
    }
}
