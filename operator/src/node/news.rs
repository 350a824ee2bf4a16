//! What agents said last of their nodes' health and of what they set right there, so that a change of it
//! is told once.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use crds::condition::find;
use crds::{ConditionType, FixId, FixReport, Reason, State};
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

/// The last reason of each fix, by node, as far as this process has seen.
#[derive(Debug, Default)]
pub struct LastFixes(Mutex<HashMap<String, BTreeMap<FixId, FixReport>>>);

impl LastFixes {
    /// What is news: a fix of another reason than before, or one that is no more. What stands when this
    /// process first looks was told by its predecessor.
    pub fn note(&self, node: &str, said: &[FixReport], nodes: usize) -> Vec<(Reason, String)> {
        let now: BTreeMap<FixId, FixReport> =
            said.iter().map(|fix| (fix.id, fix.clone())).collect();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() > nodes.saturating_mul(2).max(64) {
            // Most of them are nodes that are no more.
            known.clear();
        }
        let Some(before) = known.insert(node.to_owned(), now.clone()) else {
            return Vec::new();
        };
        let other = |fix: &&FixReport| {
            let before = before.get(&fix.id);
            before.is_none_or(|before| before.reason != fix.reason)
        };
        let changed = now.values().filter(other).map(|fix| {
            let note = format!(
                "{}: from {} to {}: {}",
                fix.id, fix.before, fix.after, fix.message
            );
            (fix.reason, note)
        });
        let gone = before.keys().filter(|id| !now.contains_key(id));
        let gone = gone.map(|id| (Reason::FixEnded, format!("{id}: {}", id.target())));
        changed.chain(gone).collect()
    }
}

#[cfg(test)]
mod tests {
    use crds::Finding;
    use crds::condition::merge;
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
    fn a_fix_is_told_when_its_reason_changes_and_when_it_is_no_more() {
        let fix = |reason, message: &str| FixReport {
            id: FixId::MaxMapCount,
            reason,
            before: "1000".to_owned(),
            after: "65530".to_owned(),
            message: message.to_owned(),
        };
        let words = LastFixes::default();
        let note = |said: &[FixReport]| {
            let told = words.note("n1", said, 1).into_iter();
            told.map(|(reason, note)| format!("{reason} {note}"))
                .collect::<Vec<_>>()
        };
        let nothing: [String; 0] = [];
        let refused = fix(Reason::FixRefused, "EROFS");
        assert_eq!(
            note(&[fix(Reason::FixProposed, "x")]),
            nothing,
            "stood when it began"
        );
        assert_eq!(
            note(std::slice::from_ref(&refused)),
            ["FixRefused MaxMapCount: from 1000 to 65530: EROFS"]
        );
        assert_eq!(note(&[refused]), nothing);
        assert_eq!(note(&[fix(Reason::FixRefused, "other words")]), nothing);
        assert_eq!(note(&[]), ["FixEnded MaxMapCount: vm.max_map_count"]);
        assert_eq!(note(&[]), nothing);
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
