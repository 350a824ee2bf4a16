//! Why a claim is not prepared; the kubelet shows the text on the pod.

use std::fmt;

use crds::reason::Reason;

/// A Reason with details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    words: String,
}

impl Refusal {
    pub(crate) fn new(reason: Reason, words: impl Into<String>) -> Self {
        Self {
            reason,
            words: words.into(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, words } = self;
        write!(f, "{reason}: {words}. {}", reason.remedy())
    }
}

impl std::error::Error for Refusal {}
