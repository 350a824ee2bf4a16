//! `QpHeadroom`: the queue pair that a device has no room for is the one that a new connection needs; stock
//! engines make one for each peer and give few back. Counted by the kernel, over all processes.

use crds::{CheckId, Reason};
use verbs::Answer;

use super::steady::Patience;
use super::{Check, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::QpHeadroom,
    reasons: &[Reason::QueuePairsLow],
    patience: Patience::LONG,
    look,
};

/// Tenths of its queue pairs beyond which a device is nearly used up.
const NEARLY: u64 = 9;

fn look(world: &World<'_>) -> Vec<Said> {
    let said = world.facts.hcas.iter().filter_map(|hca| {
        let answer = hca.verbs.as_ref()?;
        say(&hca.name, answer)
    });
    said.collect()
}

fn say(name: &str, answer: &Answer) -> Option<Said> {
    let most = u64::from(answer.limits?.max_qp);
    let taken = answer.taken.as_ref()?;
    if taken.queue_pairs * 10 <= most * NEARLY {
        return Some(Said::pass(name));
    }
    // Named where it holds more than all others: who holds a little more changes with every look.
    let holder = taken
        .holders
        .first()
        .filter(|holder| holder.queue_pairs * 2 > taken.queue_pairs);
    let whose = holder.map_or_else(String::new, |holder| {
        format!(", most of them by {}", holder.process)
    });
    let words = format!("more than {NEARLY} tenths of its {most} queue pairs are taken{whose}");
    Some(Said::warn(name, Reason::QueuePairsLow, words))
}
