//! Why a pod was not injected.

use std::fmt;

use crds::Reason;

use super::request::InvalidRequest;

/// Why a labelled pod was not injected, or not completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub reason: Reason,
    pub message: String,
}

impl Skipped {
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason, self.message)
    }
}

impl From<InvalidRequest> for Skipped {
    fn from(error: InvalidRequest) -> Self {
        Self::new(Reason::NotInjected, error.to_string())
    }
}
