//! What a session shows of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Instant;

use proto::store::Uuid;

use crate::generation::Skew;
use crate::master::Error;

/// Where a session stands. Level, not edge: reading the latest one is enough.
#[derive(Debug, Clone)]
pub enum State {
    /// Not yet heard of the master.
    Connecting,
    /// The master is there and of our generation; nothing is to be mounted, or the mount is on its
    /// way.
    Ready,
    /// The master knows us and pings go on.
    Mounted {
        mounted: BTreeSet<Uuid>,
        /// Segments in addition that the master refused; tried again from time to time.
        refused: BTreeMap<Uuid, Error>,
    },
    /// The master has none of our segments. Old wire addresses must be refused from now on; it
    /// stays so until [`super::Session::begin_epoch`] is called with this number.
    EpochLost { epoch: u64, reason: EpochEnd },
    /// The master is of another generation; nothing is mounted there. Tried again from time to
    /// time. (A client that the master knows already is pinged on, so that no key is lost.)
    Skew(Arc<Skew>),
    /// No answer since then; what was mounted is kept, and the session connects again and again.
    Unreachable { since: Instant, error: Error },
}

/// Why an epoch ended.
#[derive(Debug, Clone)]
pub enum EpochEnd {
    /// The master does not know us (any more): it started anew, or gave us up.
    Forgotten,
    /// The master refused the mount of all segments; the next one waits a while.
    Refused(Error),
}

impl State {
    /// Whether a watcher would learn nothing from the other one.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
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
                    Some((id, error)) => write!(f, ", {} refused: {id}: {error}", refused.len()),
                }
            }
            Self::EpochLost {
                epoch,
                reason: EpochEnd::Forgotten,
            } => {
                write!(f, "epoch {epoch} lost: the master does not know us")
            }
            Self::EpochLost {
                epoch,
                reason: EpochEnd::Refused(error),
            } => {
                write!(f, "epoch {epoch} lost: {error}")
            }
            Self::Skew(skew) => skew.fmt(f),
            Self::Unreachable { error, .. } => write!(f, "unreachable: {error}"),
        }
    }
}
