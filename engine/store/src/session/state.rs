//! The state that a session publishes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Instant;

use proto::store::Uuid;

use crate::master::Error;
use crate::release::Skew;

/// The state of a session. Level-triggered: reading the latest one is sufficient.
#[derive(Debug, Clone)]
pub enum State {
    /// Connecting for the first time.
    Connecting,
    /// The master has the supported release. There is nothing to mount, or the mount is in progress.
    Ready,
    /// The master knows the client.
    Mounted {
        mounted: BTreeSet<Uuid>,
        /// Additional segments that the master rejected; retried.
        refused: BTreeMap<Uuid, Error>,
    },
    /// The master has none of the segments. Old wire addresses must be rejected. Ends when
    /// [`super::Session::begin_epoch`] is called with this number.
    EpochLost {
        epoch: u64,
        reason: EpochEnd,
        /// Segments of this and of earlier epochs that the master may still have.
        stale: Vec<Uuid>,
    },
    /// The master has an unsupported release; nothing is mounted. Retried. If the master already knows the
    /// client, pings continue, so that no key is lost.
    Skew(Arc<Skew>),
    /// The master has not answered since then. Segments are kept, and the session keeps reconnecting.
    Unreachable { since: Instant, error: Error },
}

/// Why an epoch ended.
#[derive(Debug, Clone)]
pub enum EpochEnd {
    /// The master does not know the client: it restarted, or the client's TTL ended.
    Forgotten,
    /// The master rejected the mount of all segments. The next mount is delayed.
    Refused(Error),
}

impl State {
    /// Returns whether both states report the same, apart from times and error details.
    pub(super) fn is_same_report(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Mounted { mounted, refused },
                Self::Mounted {
                    mounted: others,
                    refused: other_refused,
                },
            ) => mounted == others && refused.keys().eq(other_refused.keys()),
            _ => discriminant(self) == discriminant(other) && self.to_string() == other.to_string(),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connecting => f.write_str("connecting"),
            Self::Ready => f.write_str("ready"),
            Self::Mounted { mounted, refused } => {
                write!(f, "mounted {} segments", mounted.len())?;
                match refused.first_key_value() {
                    None => Ok(()),
                    Some((id, error)) => write!(f, ", {} rejected: {id}: {error}", refused.len()),
                }
            }
            Self::EpochLost {
                epoch,
                reason: EpochEnd::Forgotten,
                ..
            } => {
                write!(
                    f,
                    "epoch {epoch} lost: the master does not know this client"
                )
            }
            Self::EpochLost {
                epoch,
                reason: EpochEnd::Refused(error),
                ..
            } => {
                write!(f, "epoch {epoch} lost: {error}")
            }
            Self::Skew(skew) => skew.fmt(f),
            Self::Unreachable { error, .. } => write!(f, "unreachable: {error}"),
        }
    }
}
