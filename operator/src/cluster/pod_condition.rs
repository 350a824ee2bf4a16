//! A condition that the operator writes to a pod. Pure.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::pod::condition;

/// A condition to write, before comparison with the current one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredCondition {
    pub kind: &'static str,
    pub holds: bool,
    pub reason: String,
    pub message: String,
}

impl DesiredCondition {
    /// Whether the pod has the condition already.
    pub fn is_current(&self, pod: &Pod) -> bool {
        condition(pod, self.kind).is_some_and(|current| {
            (current.status == "True") == self.holds
                && current.reason.as_ref() == Some(&self.reason)
                && current.message.as_ref() == Some(&self.message)
        })
    }

    /// The condition as the API has it. The transition time changes only with the status.
    pub fn at(&self, pod: &Pod, now: Timestamp) -> PodCondition {
        let since = condition(pod, self.kind)
            .filter(|current| (current.status == "True") == self.holds)
            .and_then(|current| current.last_transition_time.clone());
        PodCondition {
            type_: self.kind.to_owned(),
            status: if self.holds { "True" } else { "False" }.to_owned(),
            reason: Some(self.reason.clone()),
            message: Some(self.message.clone()),
            last_transition_time: Some(since.unwrap_or(Time(now))),
            ..PodCondition::default()
        }
    }
}
