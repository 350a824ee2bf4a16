//! What agents said of their nodes' health last, so that a change of it is told once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crds::condition::find;
use crds::{ConditionType, State};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// The last word of each node's agent, as far as this process has seen.
#[derive(Debug, Default)]
pub struct LastWords(Mutex<HashMap<String, Vec<Condition>>>);

impl LastWords {
    /// What was said before and what is said now, where both are known. What stands when this process
    /// first looks was told by its predecessor, so that it is no news;
    /// doubt is not the agent's word.
    pub fn note(
        &self,
        node: &str,
        stands: &[Condition],
        nodes: usize,
    ) -> Option<(Vec<Condition>, Vec<Condition>)> {
        let said = find(stands, ConditionType::NodeHealthy);
        if said.is_some_and(|said| said.status == State::Unknown.as_str()) {
            return None;
        }
        let now: Vec<Condition> = said.cloned().into_iter().collect();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() > nodes.saturating_mul(2).max(64) {
            // Most of them are nodes that are no more.
            known.clear();
        }
        let before = known.insert(node.to_owned(), now.clone())?;
        Some((before, now))
    }
}

#[cfg(test)]
mod tests {
    use crds::condition::merge;
    use crds::{Finding, Reason};
    use jiff::Timestamp;

    use super::*;

    fn said(state: State, reason: Reason) -> Vec<Condition> {
        let finding = Finding::new(ConditionType::NodeHealthy, state, reason, "words");
        merge(&[], &[finding], None, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn what_stood_when_the_operator_began_is_no_news_and_doubt_is_not_the_agents_word() {
        let words = LastWords::default();
        let good = said(State::True, Reason::AsExpected);
        let bad = said(State::False, Reason::PortNotActive);
        let doubt = said(State::Unknown, Reason::AgentMissing);
        assert_eq!(words.note("n1", &good, 1), None);
        assert_eq!(words.note("n1", &bad, 1), Some((good.clone(), bad.clone())));
        assert_eq!(words.note("n1", &doubt, 1), None);
        assert_eq!(words.note("n1", &bad, 1), Some((bad.clone(), bad.clone())));
        assert_eq!(words.note("n2", &[], 2), None);
        assert_eq!(words.note("n2", &bad, 2), Some((Vec::new(), bad)));
    }

    #[test]
    fn nodes_that_are_no_more_are_forgotten() {
        let words = LastWords::default();
        for node in 0..1000 {
            words.note(&format!("n{node}"), &[], 3);
        }
        assert!(words.0.lock().unwrap().len() <= 65);
    }
}
