//! Events: one for each transition of a condition, none for a repetition.

use crds::condition::shorten;
use crds::{ConditionStatus, ConditionType, Reason};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
pub use kube::runtime::events::EventType;
use kube::runtime::events::{Event, Recorder, Reporter};

use crate::apply::{self, FIELD_MANAGER, Writer};

/// An Event that reports something else than a condition.
#[derive(Clone, Debug)]
pub struct Note {
    pub severity: EventType,
    pub reason: Reason,
    /// What the operator or the agent did, in one word.
    pub action: &'static str,
    pub text: String,
}

/// Writes Events.
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// `identity` is this pod's name.
    pub fn new(client: Client, identity: String) -> Self {
        let reporter = Reporter {
            controller: FIELD_MANAGER.to_owned(),
            instance: Some(identity),
        };
        Self {
            recorder: Recorder::new(client, reporter),
        }
    }

    /// Publishes an Event for each transition between two lists of conditions. An Event that cannot be written is
    /// only logged, because the condition itself has been written.
    pub async fn transitions(
        &self,
        writer: &Writer,
        about: ObjectReference,
        old: &[Condition],
        new: &[Condition],
    ) {
        for event in news(old, new) {
            self.publish(writer, &about, &event).await;
        }
    }

    /// Publishes one Event. Errors are only logged, as in [`Events::transitions`].
    pub async fn emit(&self, writer: &Writer, about: ObjectReference, note: Note) {
        let event = Event {
            type_: note.severity,
            reason: note.reason.as_str().to_owned(),
            note: Some(note.text),
            action: note.action.to_owned(),
            secondary: None,
        };
        self.publish(writer, &about, &event).await;
    }

    async fn publish(&self, writer: &Writer, about: &ObjectReference, event: &Event) {
        let written = self.recorder.publish(event, about);
        match writer.bounded("event", &event.reason, written).await {
            // Not needed: the object of the Event is being deleted too.
            Ok(()) | Err(apply::Error::NamespaceTerminating { .. }) => {}
            Err(error) => tracing::warn!(%error, object = about.name, "event not written"),
        }
    }
}

/// One Event for each condition whose state or reason is another now. What merely starts, what is as
/// expected from the first (a first install would report it for each of thousands of nodes), and what
/// repeats other conditions for tools, is no news.
fn news(old: &[Condition], new: &[Condition]) -> Vec<Event> {
    let is = |condition: &Condition, kinds: &[ConditionType]| {
        let mut kinds = kinds.iter();
        kinds.any(|kind| kind.as_str() == condition.type_)
    };
    let abnormal = [ConditionType::Stalled];
    new.iter()
        .filter(|condition| {
            // No other condition has this reason: the cluster may be Ready meanwhile.
            let stopped = condition.reason == Reason::RolloutStopped.as_str();
            !is(
                condition,
                &[ConditionType::Reconciling, ConditionType::Degraded],
            ) && (stopped || !is(condition, &[ConditionType::Stalled]))
        })
        .filter(|condition| {
            let before = old.iter().find(|before| before.type_ == condition.type_);
            match before {
                Some(before) => {
                    (&before.status, &before.reason) != (&condition.status, &condition.reason)
                }
                None => {
                    condition.status != ConditionStatus::Unknown.as_str()
                        && condition.reason != Reason::AsExpected.as_str()
                }
            }
        })
        .filter(|condition| condition.reason != Reason::Progressing.as_str())
        .map(|condition| Event {
            // The beginning of a drain is no fault.
            type_: if (is(condition, &[ConditionType::Drained])
                && condition.reason == Reason::Draining.as_str())
                || (condition.status == ConditionStatus::True.as_str()) != is(condition, &abnormal)
            {
                EventType::Normal
            } else {
                EventType::Warning
            },
            reason: condition.reason.clone(),
            note: Some(shorten(&format!(
                "{}: {}",
                condition.type_, condition.message
            ))),
            action: format!("{}{}", condition.type_, condition.status),
            secondary: None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use crds::NewCondition;
    use crds::condition::merge;
    use jiff::Timestamp;

    use super::*;

    fn ready(state: ConditionStatus, reason: Reason, message: &str) -> Vec<Condition> {
        let finding = NewCondition::new(ConditionType::Ready, state, reason, message);
        merge(&[], &[finding], Some(1), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_transition_is_published_once_and_another_message_is_none() {
        let not = ready(ConditionStatus::False, Reason::MasterNotReady, "no master");
        let events = news(&[], &not);
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].reason, "MasterNotReady");
        assert!(matches!(events[0].type_, EventType::Warning));
        let words = ready(
            ConditionStatus::False,
            Reason::MasterNotReady,
            "pulling its image",
        );
        assert!(news(&not, &words).is_empty());
        let serves = ready(
            ConditionStatus::True,
            Reason::AsExpected,
            "2 of 2 nodes serve",
        );
        assert!(matches!(news(&words, &serves)[0].type_, EventType::Normal));
    }

    #[test]
    fn a_metadata_service_that_fails_and_works_again_is_one_event_each() {
        let kind = ConditionType::MetadataReady;
        let with = |old: &[Condition], state: bool, reason, message: &str| {
            let finding = NewCondition::new(kind, state, reason, message);
            merge(old, &[finding], Some(1), Timestamp::UNIX_EPOCH)
        };
        let works = with(&[], true, Reason::AsExpected, "2 pool pods use it");
        assert!(news(&[], &works).is_empty());
        let failed = Reason::MetadataUnreachable;
        let fails = with(&works, false, failed, "1 of 2 pool pods: n1: refused");
        let [event] = &news(&works, &fails)[..] else {
            panic!("{fails:?}");
        };
        assert_eq!(event.reason, "MetadataUnreachable");
        assert_eq!(event.action, "MetadataReadyFalse");
        assert!(matches!(event.type_, EventType::Warning));
        let note = event.note.clone().unwrap();
        assert_eq!(note, "MetadataReady: 1 of 2 pool pods: n1: refused");
        let more = with(&fails, false, failed, "2 of 2 pool pods: n1: refused");
        assert!(news(&fails, &more).is_empty());
        let again = with(&more, true, Reason::AsExpected, "2 pool pods use it");
        let [event] = &news(&more, &again)[..] else {
            panic!("{again:?}");
        };
        assert!(matches!(event.type_, EventType::Normal));
    }

    #[test]
    fn a_stopped_rollout_is_one_warning_and_other_stalls_repeat_their_cause() {
        let stalled = |reason| {
            let kind = ConditionType::Stalled;
            let finding = NewCondition::new(kind, true, reason, "n1");
            merge(&[], &[finding], Some(1), Timestamp::UNIX_EPOCH)
        };
        let stopped = stalled(Reason::RolloutStopped);
        let events = news(&[], &stopped);
        assert_eq!(events.len(), 1);
        assert!(matches!(events[0].type_, EventType::Warning));
        assert!(news(&stopped, &stopped).is_empty());
        assert!(news(&[], &stalled(Reason::NoNodeMatches)).is_empty());
    }

    /// The API server refuses a note of more than 1024 characters.
    #[test]
    fn the_longest_message_fits_a_note() {
        let long = ready(
            ConditionStatus::False,
            Reason::PoolPodPending,
            &"n1 ".repeat(999),
        );
        let note = news(&[], &long)[0].note.clone();
        assert!(note.unwrap().len() <= 1024);
    }

    #[test]
    fn what_merely_starts_is_no_news() {
        assert!(news(&[], &ready(ConditionStatus::Unknown, Reason::ApiFailed, "")).is_empty());
        assert!(news(&[], &ready(ConditionStatus::False, Reason::Progressing, "")).is_empty());
        assert!(news(&[], &ready(ConditionStatus::True, Reason::AsExpected, "")).is_empty());
    }
}
