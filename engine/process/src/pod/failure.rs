//! A failed action: its Reason and message for the status, and when the action is retried.

use std::time::{Duration, Instant};

use crds::node::PoolState;
use crds::reason::Reason;
use engine::CardError;
use rustix::io::Errno;
use sys::{mem, verbs};

use crate::pod::record::RecordError;
use pool::handover;
use pool::handover::message::RefusalKind;

const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Longest text in bytes. Masters and pool processes choose the texts of their errors; two of this length fit a packet,
/// escaped as JSON, beside the rest of a report.
const TEXT_LIMIT: usize = 2 << 10;

/// Cuts a text that would not fit a packet.
pub(crate) fn bounded(mut text: String) -> String {
    if text.len() > TEXT_LIMIT {
        text.truncate(text.floor_char_boundary(TEXT_LIMIT));
        text.shrink_to_fit();
        text.push('…');
    }
    text
}

/// Why an action failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) reason: Reason,
    pub(crate) message: String,
    /// Nothing but the end of this process ends an access of a device, or makes the served addresses those of the record.
    pub(crate) ends_process: bool,
}

impl Failure {
    pub(crate) fn new(reason: Reason, message: impl ToString) -> Self {
        Self {
            reason,
            message: bounded(message.to_string()),
            ends_process: false,
        }
    }

    /// A failure after which a device may use an address of a former epoch, or peers get others than the record has. This
    /// process ends; its successor serves all of the recorded epoch.
    pub(crate) fn unfenced(what: &str, error: &engine::Error) -> Self {
        Self {
            ends_process: true,
            ..Self::new(
                of_engine(error),
                format!(
                    "{what}: {error}. The engine process ends, so that no device uses a former address, and its successor serves the recorded data epoch"
                ),
            )
        }
    }

    /// Whether the pod is rejected because of what it is or did. Other failures are temporary.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self.reason,
            Reason::ForeignProcess
                | Reason::DescriptorNotSealed
                | Reason::DescriptorWrongSize
                | Reason::RecordForged
                | Reason::HandoverFailed
                | Reason::PageSizeMismatch
                | Reason::AddressNotOwn
                | Reason::PoolNotResponding
        )
    }

    /// State of the pod while the failure lasts.
    pub(crate) fn state(&self, otherwise: PoolState) -> PoolState {
        if self.is_refusal() {
            PoolState::Refused
        } else {
            otherwise
        }
    }
}

impl From<handover::Error> for Failure {
    fn from(error: handover::Error) -> Self {
        let reason = match &error {
            handover::Error::TimedOut { .. } => Reason::PoolNotResponding,
            handover::Error::Refused {
                kind: RefusalKind::NoMemory,
                ..
            } => Reason::MemoryUnavailable,
            handover::Error::Socket { .. } | handover::Error::Closed { .. } => {
                Reason::PoolPodNotReady
            }
            handover::Error::Refused { .. }
            | handover::Error::InvalidMessage { .. }
            | handover::Error::WrongAnswer { .. } => Reason::HandoverFailed,
        };
        Self::new(reason, error)
    }
}

impl From<engine::Error> for Failure {
    fn from(error: engine::Error) -> Self {
        Self::new(of_engine(&error), error)
    }
}

fn of_engine(error: &engine::Error) -> Reason {
    match error {
        engine::Error::Card(error) => of_card(error),
        _ => Reason::PoolPodNotReady,
    }
}

/// The Reason of a device that does not register memory. The message has what to do for each errno.
fn of_card(error: &CardError) -> Reason {
    match error {
        CardError::Hung { .. } => Reason::DeviceHung,
        CardError::TooLarge { .. } => Reason::MrLimitLow,
        CardError::Refused { .. } => Reason::DeviceFault,
        CardError::Verbs { source, .. } if source.call == verbs::Call::Register => {
            match source.errno().map(Errno::from_raw_os_error) {
                Some(Errno::AGAIN) => Reason::MkeyExhausted,
                Some(Errno::IO | Errno::NODEV) => Reason::DeviceFault,
                _ => Reason::RegistrationFailed,
            }
        }
        _ => Reason::PoolPodNotReady,
    }
}

impl From<mem::Error> for Failure {
    fn from(error: mem::Error) -> Self {
        let reason = match &error {
            mem::Error::NotSealed => Reason::DescriptorNotSealed,
            mem::Error::WrongLength { .. } | mem::Error::BadLength { .. } => {
                Reason::DescriptorWrongSize
            }
            mem::Error::WrongPageSize { .. } => Reason::PageSizeMismatch,
            mem::Error::Call { .. }
            | mem::Error::OutOfRange { .. }
            | mem::Error::NoPages { .. }
            | mem::Error::BadNode { .. } => Reason::MemoryUnavailable,
        };
        Self::new(reason, error)
    }
}

impl From<RecordError> for Failure {
    fn from(error: RecordError) -> Self {
        let reason = match error {
            RecordError::Forged => Reason::RecordForged,
            RecordError::Unreadable(_) => Reason::HandoverFailed,
        };
        Self::new(reason, format!("the record in the pool pod: {error}"))
    }
}

/// Exponential backoff of a failed action.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    wait: Duration,
    until: Option<Instant>,
}

impl Backoff {
    pub(crate) fn fail(&mut self, now: Instant) {
        self.wait = (self.wait * 2).clamp(FIRST_WAIT, LONGEST_WAIT);
        self.until = Some(now + self.wait);
    }

    /// Returns the remaining wait.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        let left = self.until?.checked_duration_since(now)?;
        (!left.is_zero()).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_memory_and_records_of_a_pool_are_rejected_with_their_reason() {
        for (error, reason) in [
            (mem::Error::NotSealed, Reason::DescriptorNotSealed),
            (
                mem::Error::WrongLength {
                    declared: 2,
                    found: 1,
                },
                Reason::DescriptorWrongSize,
            ),
            (
                mem::Error::WrongPageSize {
                    declared: 2,
                    found: 1,
                },
                Reason::PageSizeMismatch,
            ),
        ] {
            let failure = Failure::from(error);
            assert_eq!(failure.reason, reason);
            assert_eq!(failure.state(PoolState::Preparing), PoolState::Refused);
        }
        assert_eq!(
            Failure::from(RecordError::Forged).reason,
            Reason::RecordForged
        );
    }

    #[test]
    fn a_registration_that_fails_has_the_reason_and_the_remedy_of_its_errno() {
        for (errno, reason, remedy) in [
            (Errno::AGAIN, Reason::MkeyExhausted, "reload its driver"),
            (
                Errno::NOMEM,
                Reason::RegistrationFailed,
                "free memory of the node",
            ),
            (
                Errno::FAULT,
                Reason::RegistrationFailed,
                "delete the pool pod",
            ),
            (Errno::IO, Reason::DeviceFault, "read the kernel log"),
            (Errno::INVAL, Reason::RegistrationFailed, "Invalid argument"),
        ] {
            let error = |call| {
                let why = verbs::Why::Errno(errno.into());
                engine::Error::Card(CardError::Verbs {
                    device: "mlx5_3".to_owned(),
                    source: std::sync::Arc::new(verbs::Error { call, why }),
                })
            };
            let failure = Failure::from(error(verbs::Call::Register));
            assert_eq!(failure.reason, reason, "{errno}");
            let message = &failure.message;
            assert!(
                message.starts_with("RDMA device mlx5_3: registering memory: ")
                    && message.contains(remedy),
                "{message}"
            );
            let other = Failure::from(error(verbs::Call::MakeQueue));
            assert_eq!(other.reason, Reason::PoolPodNotReady);
            assert!(errno == Errno::INVAL || !other.message.contains(remedy));
        }
        let hung = CardError::Hung {
            device: "mlx5_3".to_owned(),
            what: "registering memory",
            within: Duration::from_secs(300),
        };
        let hung = engine::Error::Card(hung);
        let unfenced = Failure::unfenced("serving extent 1 of 2", &hung);
        assert_eq!(unfenced.reason, Reason::DeviceHung);
        assert!(unfenced.ends_process);
        let hung = Failure::from(hung);
        assert!(!hung.ends_process);
        assert_eq!(hung.reason, Reason::DeviceHung);
        assert_eq!(hung.state(PoolState::Preparing), PoolState::Preparing);
    }

    #[test]
    fn waits_grow_to_a_limit_and_reset_after_success() {
        let mut backoff = Backoff::default();
        let now = Instant::now();
        assert_eq!(backoff.left(now), None);
        for _ in 0..20 {
            backoff.fail(now);
        }
        assert_eq!(backoff.left(now), Some(LONGEST_WAIT));
        backoff = Backoff::default();
        backoff.fail(now);
        assert_eq!(backoff.left(now), Some(FIRST_WAIT));
    }
}
