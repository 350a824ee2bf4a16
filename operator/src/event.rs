//! Events: one for each transition of a condition, none for a repetition.

use crds::condition::shorten;
use crds::{ConditionType, Reason, State};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};

use crate::apply::{self, FIELD_MANAGER, Writer};

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

    /// Tells what changed between two lists of conditions. An Event that cannot be written is logged:
    /// the condition itself stands.
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

    /// Tells of something that was done and that a person should know.
    pub async fn warn(
        &self,
        writer: &Writer,
        about: ObjectReference,
        reason: Reason,
        action: &str,
        note: String,
    ) {
        self.tell(writer, about, EventType::Warning, (reason, action), note)
            .await;
    }

    /// Tells of something that was done as somebody asked.
    pub async fn note(
        &self,
        writer: &Writer,
        about: ObjectReference,
        reason: Reason,
        action: &str,
        note: String,
    ) {
        self.tell(writer, about, EventType::Normal, (reason, action), note)
            .await;
    }

    async fn tell(
        &self,
        writer: &Writer,
        about: ObjectReference,
        type_: EventType,
        (reason, action): (Reason, &str),
        note: String,
    ) {
        let event = Event {
            type_,
            reason: reason.as_str().to_owned(),
            note: Some(note),
            action: action.to_owned(),
            secondary: None,
        };
        self.publish(writer, &about, &event).await;
    }

    async fn publish(&self, writer: &Writer, about: &ObjectReference, event: &Event) {
        let written = self.recorder.publish(event, about);
        match writer.bounded("event", &event.reason, written).await {
            // Nobody misses it: what it is about goes too.
            Ok(()) | Err(apply::Error::NamespaceTerminating { .. }) => {}
            Err(error) => tracing::warn!(%error, object = about.name, "event not written"),
        }
    }
}

/// One Event for each condition whose state or reason is another now. What merely starts, what is as
/// expected from the first (a first install would tell it of each of thousands of nodes), and the two
/// that repeat the others for tools, are no news.
fn news(old: &[Condition], new: &[Condition]) -> Vec<Event> {
    let repeats = [ConditionType::Reconciling, ConditionType::Stalled].map(ConditionType::as_str);
    new.iter()
        .filter(|condition| !repeats.contains(&condition.type_.as_str()))
        .filter(|condition| {
            let before = old.iter().find(|before| before.type_ == condition.type_);
            match before {
                Some(before) => {
                    (&before.status, &before.reason) != (&condition.status, &condition.reason)
                }
                None => {
                    condition.status != State::Unknown.as_str()
                        && condition.reason != Reason::AsExpected.as_str()
                }
            }
        })
        .filter(|condition| condition.reason != Reason::Progressing.as_str())
        .map(|condition| Event {
            type_: if condition.status == State::True.as_str() {
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
    use crds::Finding;
    use crds::condition::merge;
    use jiff::Timestamp;

    use super::*;

    fn ready(state: State, reason: Reason, message: &str) -> Vec<Condition> {
        let finding = Finding::new(ConditionType::Ready, state, reason, message);
        merge(&[], &[finding], Some(1), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_transition_is_told_once_and_other_words_are_no_transition() {
        let not = ready(State::False, Reason::MasterNotReady, "no master");
        let told = news(&[], &not);
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].reason, "MasterNotReady");
        assert!(matches!(told[0].type_, EventType::Warning));
        let words = ready(State::False, Reason::MasterNotReady, "pulling its image");
        assert!(news(&not, &words).is_empty());
        let serves = ready(State::True, Reason::AsExpected, "2 of 2 nodes serve");
        assert!(matches!(news(&words, &serves)[0].type_, EventType::Normal));
    }

    /// The API server refuses a note of more than 1024 characters.
    #[test]
    fn the_longest_message_fits_a_note() {
        let long = ready(State::False, Reason::PoolPodPending, &"n1 ".repeat(999));
        let note = news(&[], &long)[0].note.clone();
        assert!(note.unwrap().len() <= 1024);
    }

    #[test]
    fn what_merely_starts_is_no_news() {
        assert!(news(&[], &ready(State::Unknown, Reason::ApiFailed, "")).is_empty());
        assert!(news(&[], &ready(State::False, Reason::Progressing, "")).is_empty());
        assert!(news(&[], &ready(State::True, Reason::AsExpected, "")).is_empty());
    }
}
