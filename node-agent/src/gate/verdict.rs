//! What `hold` has found, as it stands in the pod's directory for `probe` and for a successor.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crds::Reason;
use serde::{Deserialize, Serialize};

/// Name of the file in the gate's directory.
const FILE: &str = "verdict.json";

/// Whether the pod may start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "camelCase")]
pub enum Verdict {
    /// Not yet.
    Waiting {
        /// Why.
        reason: Reason,
        /// The same in words.
        message: String,
    },
    /// The pool answered.
    Open {
        /// Third parties that did not.
        warnings: Vec<String>,
    },
    /// The deadline passed, and the pod starts all the same.
    LetGo {
        /// What was missing.
        message: String,
    },
}

/// The verdict cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum VerdictError {
    #[error("the gate has found nothing yet: {path} is not there")]
    Absent { path: PathBuf },
    #[error("{path}: {cause}")]
    Io { path: PathBuf, cause: io::Error },
    #[error("{path} holds no verdict: {cause}")]
    Json {
        path: PathBuf,
        cause: serde_json::Error,
    },
}

impl Verdict {
    pub(super) fn waiting(reason: Reason, message: impl Into<String>) -> Self {
        Self::Waiting {
            reason,
            message: message.into(),
        }
    }

    /// Whether the pod may start.
    pub fn lets_start(&self) -> bool {
        match self {
            Self::Waiting { .. } => false,
            Self::Open { .. } | Self::LetGo { .. } => true,
        }
    }

    /// One line for people and for the operator; its first word is the reason.
    pub fn words(&self) -> String {
        match self {
            Self::Waiting { reason, message } => {
                format!("{}: {reason}: {message}", Reason::GateWaiting)
            }
            Self::Open { warnings } if warnings.is_empty() => {
                format!("{}: the pool answers", Reason::AsExpected)
            }
            Self::Open { warnings } => {
                let warnings = warnings.join("; ");
                format!(
                    "{}: the pool answers, but not {warnings}",
                    Reason::AsExpected
                )
            }
            Self::LetGo { message } => format!("{}: {message}", Reason::GateTimedOut),
        }
    }

    /// Reads the verdict of this pod.
    ///
    /// # Errors
    /// When there is none, or none that can be read.
    pub fn load(directory: &Path) -> Result<Self, VerdictError> {
        let path = directory.join(FILE);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                return Err(VerdictError::Absent { path });
            }
            Err(cause) => return Err(VerdictError::Io { path, cause }),
        };
        serde_json::from_slice(&text).map_err(|cause| VerdictError::Json { path, cause })
    }

    pub(super) fn save(&self, directory: &Path) -> Result<(), VerdictError> {
        let path = directory.join(FILE);
        let text = match serde_json::to_vec(self) {
            Ok(text) => text,
            Err(cause) => return Err(VerdictError::Json { path, cause }),
        };
        write_whole(&path, &text).map_err(|cause| VerdictError::Io { path, cause })
    }
}

/// Writes a file that readers see whole or not at all.
pub(super) fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut draft = path.as_os_str().to_owned();
    draft.push(".new");
    fs::write(&draft, content)?;
    fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_found_again_by_probe_and_successor() {
        let directory = tempfile::tempdir().unwrap();
        let absent = Verdict::load(directory.path());
        assert!(matches!(absent, Err(VerdictError::Absent { .. })));
        for verdict in [
            Verdict::waiting(Reason::MasterUnreachable, "refused"),
            Verdict::Open { warnings: vec![] },
            Verdict::LetGo {
                message: "after 1 s".to_owned(),
            },
        ] {
            verdict.save(directory.path()).unwrap();
            assert_eq!(Verdict::load(directory.path()).unwrap(), verdict);
        }
    }

    #[test]
    fn the_first_word_is_the_reason() {
        let words = |verdict: &Verdict| verdict.words();
        let waiting = Verdict::waiting(Reason::PeerUnreachable, "node-1");
        assert_eq!(words(&waiting), "GateWaiting: PeerUnreachable: node-1");
        assert!(!waiting.lets_start());
        let let_go = Verdict::LetGo {
            message: "x".to_owned(),
        };
        assert_eq!(words(&let_go), "GateTimedOut: x");
        assert!(let_go.lets_start());
    }
}
