//! The state of the gate, which `hold` records in the pod's directory for `probe` and for its next start.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crds::Reason;
use serde::{Deserialize, Serialize};

use super::atomic_file;

/// Name of the file in the gate's directory.
const FILE: &str = "state.json";

/// Whether the pod may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub(crate) enum GateState {
    /// Not yet.
    Waiting {
        /// Why.
        reason: Reason,
        /// Details.
        message: String,
    },
    /// The pool responds.
    Open {
        /// Pool pods of other nodes that do not respond.
        warnings: Vec<String>,
    },
    /// The deadline passed, and the pod starts without the pool.
    TimedOut {
        /// What was missing.
        message: String,
    },
}

/// The state cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StateError {
    #[error("the gate has no state yet: {path} does not exist")]
    Absent { path: PathBuf },
    #[error("{path}: {cause}")]
    Io { path: PathBuf, cause: io::Error },
    #[error("{path} is not a gate state: {cause}")]
    Json {
        path: PathBuf,
        cause: serde_json::Error,
    },
}

impl GateState {
    pub(super) fn waiting(reason: Reason, message: impl Into<String>) -> Self {
        Self::Waiting {
            reason,
            message: message.into(),
        }
    }

    /// Whether the pod may start.
    pub(crate) fn allows_start(&self) -> bool {
        !matches!(self, Self::Waiting { .. })
    }

    /// One line for users and the operator; the first word is the Reason.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Waiting { reason, message } => {
                format!("{}: {reason}: {message}", Reason::GateWaiting)
            }
            Self::Open { warnings } if warnings.is_empty() => {
                format!("{}: the pool responds", Reason::AsExpected)
            }
            Self::Open { warnings } => {
                let warnings = warnings.join("; ");
                format!(
                    "{}: the pool responds, except {warnings}",
                    Reason::AsExpected
                )
            }
            Self::TimedOut { message } => format!("{}: {message}", Reason::GateTimedOut),
        }
    }

    /// Reads the state of this pod.
    ///
    /// # Errors
    /// The file does not exist, cannot be read or is malformed.
    pub(crate) fn load(directory: &Path) -> Result<Self, StateError> {
        let path = directory.join(FILE);
        match fs::read(&path) {
            Ok(text) => {
                serde_json::from_slice(&text).map_err(|cause| StateError::Json { path, cause })
            }
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                Err(StateError::Absent { path })
            }
            Err(cause) => Err(StateError::Io { path, cause }),
        }
    }

    pub(super) fn save(&self, directory: &Path) -> Result<(), StateError> {
        let path = directory.join(FILE);
        let text = match serde_json::to_vec(self) {
            Ok(text) => text,
            Err(cause) => return Err(StateError::Json { path, cause }),
        };
        atomic_file::replace(&path, |draft| fs::write(draft, &text))
            .map_err(|cause| StateError::Io { path, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_state_is_loaded_again() {
        let directory = tempfile::tempdir().unwrap();
        let absent = GateState::load(directory.path());
        assert!(matches!(absent, Err(StateError::Absent { .. })));
        for state in [
            GateState::waiting(Reason::MasterUnreachable, "refused"),
            GateState::Open { warnings: vec![] },
            GateState::TimedOut {
                message: "after 1 s".to_owned(),
            },
        ] {
            state.save(directory.path()).unwrap();
            assert_eq!(GateState::load(directory.path()).unwrap(), state);
        }
    }

    #[test]
    fn a_message_starts_with_the_reason() {
        let words = |state: &GateState| state.message();
        let waiting = GateState::waiting(Reason::PeerUnreachable, "node-1");
        assert_eq!(words(&waiting), "GateWaiting: PeerUnreachable: node-1");
        assert!(!waiting.allows_start());
        let timed_out = GateState::TimedOut {
            message: "x".to_owned(),
        };
        assert_eq!(words(&timed_out), "GateTimedOut: x");
        assert!(timed_out.allows_start());
    }
}
