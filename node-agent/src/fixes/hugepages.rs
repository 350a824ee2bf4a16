//! What is to become of hugepages, of which a policy names amounts. Pure. They are taken from memory that
//! no pod has asked for: all that is asked for, or nothing.
//!
//! ```text
//! amounts, pages that stand ── wanted ── room of the node, of each NUMA node ── Do, Propose or why not
//! what was done             ── undone, as far as pages are free
//! done, and the kubelet counts fewer ── KubeletRestartRequired
//! ```

use crds::{ByteSize, FixId, FixMode, Reason};

use super::pages::{Pages, Place, name};
use super::plan::{Asked, Change, Step};
use crate::host::Facts;
use crate::host::memory::{Hugepages, NumaNode};

/// What stays for pods that come while pages are set aside.
const SPARE: u64 = 512 << 20;

/// What a NUMA node keeps, beside a part of its memory; what is told of it is rounded down to this, or
/// each look at a busy node would be news.
const NUMA_SPARE: u64 = 256 << 20;
const NUMA_PART: u64 = 64;

const ID: FixId = FixId::Hugepages;

/// What is to be done, or why nothing is; none where nothing is asked for, or where it cannot be read
/// what stands there.
pub(super) fn step(facts: &Facts, asked: &Asked<'_>, done: Option<&Change>) -> Option<Step> {
    let mode = asked.mode(ID).filter(|_| asked.wants_hugepages());
    match (mode, done) {
        (Some(FixMode::Apply), done) => raise(facts, asked, done, Step::Do),
        (Some(FixMode::DryRun), None) => raise(facts, asked, None, Step::Propose),
        (None | Some(FixMode::DryRun), Some(done)) => undo(facts, done),
        (None, None) => None,
    }
}

/// What was done, read back: it is in order when the kubelet has counted it.
pub(super) fn standing(change: Change, asked: &Asked<'_>) -> Step {
    let pages: Pages = change.after.parse().unwrap_or_default();
    match uncounted(&pages, asked) {
        Some(words) => say(change, Reason::KubeletRestartRequired, words),
        None => Step::Stands(change),
    }
}

/// What is to be kept of a change: what stood there before the first one that was ours.
pub(super) fn kept(done: Option<&Change>, change: &Change) -> Option<Change> {
    let (mut before, mut after) = words(change)?;
    if let Some((first, last)) = done.and_then(words) {
        for (place, last) in last.iter() {
            let Some(first) = first.get(place) else {
                continue;
            };
            match before.get(place) {
                // An attempt that was cut off leaves something in between.
                Some(now) if (first..=last).contains(&now) => before.set(place, first),
                Some(_) => {}
                // No longer asked for, and still ours.
                None => {
                    before.set(place, first);
                    after.set(place, last);
                }
            }
        }
    }
    Some(change_of(&before, &after))
}

/// What of `done` is still to be undone after `undone`.
pub(super) fn rest(done: &Change, undone: &Change) -> Option<Change> {
    let ((first, _), (_, now)) = (words(done)?, words(undone)?);
    let (mut before, mut after) = (Pages::default(), Pages::default());
    for (place, now) in now.iter() {
        if let Some(first) = first.get(place).filter(|first| *first < now) {
            before.set(place, first);
            after.set(place, now);
        }
    }
    (!after.0.is_empty()).then(|| change_of(&before, &after))
}

/// What was done stays for now.
pub(super) fn in_use(rest: &Change) -> Step {
    let back = Change {
        id: ID,
        before: rest.after.clone(),
        after: rest.before.clone(),
    };
    let words = "no policy asks for them, and those that are left are in use";
    say(back, Reason::HugepagesInUse, words.to_owned())
}

fn raise(
    facts: &Facts,
    asked: &Asked<'_>,
    done: Option<&Change>,
    doing: fn(Change) -> Step,
) -> Option<Step> {
    let (mut present, mut wanted) = (Pages::default(), Pages::default());
    let mut lacking = None;
    for rule in asked.policy.iter().flat_map(|policy| &policy.hugepages) {
        for node in nodes(facts)? {
            let place = Place::new(rule.page_size, node);
            let total = match find(facts, place) {
                Some(pages) => pages.total?,
                None => {
                    lacking = Some(place);
                    0
                }
            };
            present.set(place, total);
            wanted.set(place, total.max(rule.pages()));
        }
    }
    let change = change_of(&present, &wanted);
    if let Some(place) = lacking {
        let size = ByteSize(place.size);
        let place = name(place.node);
        let words =
            format!("{place} has no hugepages of {size}: its kernel or processor lacks them");
        return Some(say(change, Reason::FixRefused, words));
    }
    if present != wanted {
        return Some(match fits(facts, asked, &present, &wanted)? {
            Ok(()) => doing(change),
            Err((reason, words)) => say(change, reason, words),
        });
    }
    match done {
        Some(done) if is_ours(facts, done)? => Some(standing(done.clone(), asked)),
        Some(_) => Some(Step::Forget(ID)),
        None if asked.mode(ID) == Some(FixMode::DryRun) => None,
        // Somebody else's, and as little use to pods.
        None => match standing(change, asked) {
            Step::Stands(_) => None,
            untold => Some(untold),
        },
    }
}

/// Lowered to what stood there before, or to what is in use.
fn undo(facts: &Facts, done: &Change) -> Option<Step> {
    let Some((before, after)) = words(done) else {
        return Some(Step::Forget(ID));
    };
    let (mut present, mut lowered, mut floor) =
        (Pages::default(), Pages::default(), Pages::default());
    for size in after.sizes() {
        let all = facts.hugepages.iter().find(|pages| pages.page_size == size);
        // Promised pages are taken from any NUMA node.
        let mut free = all.map_or(Some(0), |all| {
            Some(all.free?.saturating_sub(all.reserved.unwrap_or(0)))
        })?;
        for (place, ours) in after.iter().filter(|(place, _)| place.size == size) {
            let Some(pages) = find(facts, place) else {
                continue;
            };
            let (total, free_here) = (pages.total?, pages.free?);
            let first = before.get(place).unwrap_or(total);
            if total != ours || first >= total {
                continue;
            }
            let taken = (total - first).min(free_here).min(free);
            free -= taken;
            present.set(place, total);
            lowered.set(place, total - taken);
            floor.set(place, first);
        }
    }
    Some(if present.0.is_empty() {
        Step::Forget(ID)
    } else if lowered == present {
        in_use(&change_of(&floor, &present))
    } else {
        Step::Undo(change_of(&present, &lowered))
    })
}

/// Whether the node has the memory, and which part of it lacks it.
fn fits(
    facts: &Facts,
    asked: &Asked<'_>,
    present: &Pages,
    wanted: &Pages,
) -> Option<Result<(), (Reason, String)>> {
    let needs: Vec<(Option<u32>, u64)> = nodes(facts)?
        .into_iter()
        .map(|node| (node, need(present, wanted, node)))
        .filter(|(_, need)| *need > 0)
        .collect();
    let all: u64 = needs
        .iter()
        .map(|(_, need)| *need)
        .fold(0, u64::saturating_add);
    let Some(room) = asked.room.and_then(|room| room.memory) else {
        let words = "waits for the operator to count what the node's pods ask for".to_owned();
        return Some(Err((Reason::PodRequestsUnknown, words)));
    };
    let room = room.0.saturating_sub(uncounted_bytes(facts, asked));
    let have = room.saturating_sub(SPARE);
    if have < all {
        let share = |(node, need): &(Option<u32>, u64)| {
            let part = u128::from(have) * u128::from(*need) / u128::from(all);
            let part = whole(u64::try_from(part).unwrap_or(u64::MAX));
            format!("{} {} of {}", name(*node), ByteSize(part), ByteSize(*need))
        };
        let shares: Vec<String> = needs.iter().map(share).collect();
        let words = format!(
            "its pods leave {} of its memory, {} of it stay free: {}",
            ByteSize(whole(room)),
            ByteSize(SPARE),
            shares.join(", ")
        );
        return Some(Err((Reason::FixRefused, words)));
    }
    let mut short = Vec::new();
    for (id, need) in needs {
        let Some(node) = facts.numa_nodes.iter().find(|node| Some(node.id) == id) else {
            continue;
        };
        let spare = spare(node);
        let have = node.available?.saturating_sub(spare);
        if have < need {
            let have = ByteSize(have - have % spare);
            short.push(format!("{} {have} of {}", name(id), ByteSize(need)));
        }
    }
    Some(match short.is_empty() {
        true => Ok(()),
        false => {
            let words = format!("memory that is available there: {}", short.join(", "));
            Err((Reason::FixRefused, words))
        }
    })
}

/// What a NUMA node keeps in any case.
fn spare(node: &NumaNode) -> u64 {
    let part = node.memory.unwrap_or(0) / NUMA_PART;
    whole(part).max(NUMA_SPARE)
}

/// In mebibytes, two at a time.
fn whole(bytes: u64) -> u64 {
    bytes - bytes % (2 << 20)
}

/// Bytes that a NUMA node is to give.
fn need(present: &Pages, wanted: &Pages, node: Option<u32>) -> u64 {
    let here = wanted.iter().filter(|(place, _)| place.node == node);
    let bytes = here.map(|(place, wanted)| {
        let more = wanted.saturating_sub(present.get(place).unwrap_or(0));
        more.saturating_mul(place.size)
    });
    bytes.fold(0, u64::saturating_add)
}

/// Pages that the kubelet does not count are still in what it calls memory for pods.
fn uncounted_bytes(facts: &Facts, asked: &Asked<'_>) -> u64 {
    let counted = asked.room.iter().flat_map(|room| &room.hugepages);
    let more = counted.map(|counted| {
        let size = counted.page_size.0;
        let mut all = facts.hugepages.iter();
        let all = all.find(|pages| pages.page_size == size);
        let total = all.and_then(|pages| pages.total).unwrap_or(0);
        total.saturating_sub(counted.pages).saturating_mul(size)
    });
    more.fold(0, u64::saturating_add)
}

/// Of which of these pages the kubelet does not know, in words.
fn uncounted(pages: &Pages, asked: &Asked<'_>) -> Option<String> {
    let room = asked.room?;
    let fewer = pages.sizes().into_iter().filter_map(|size| {
        let mut counted = room.hugepages.iter();
        let counted = counted.find(|counted| counted.page_size.0 == size)?.pages;
        let stand = pages.of_size(size);
        let size = ByteSize(size);
        (counted < stand).then(|| format!("{counted} of {stand} of {size}"))
    });
    let fewer: Vec<String> = fewer.collect();
    (!fewer.is_empty()).then(|| {
        format!(
            "they stand, and the kubelet counts {}: systemctl restart kubelet on {}",
            fewer.join(", "),
            asked.node
        )
    })
}

/// True where what was done is what stands there.
fn is_ours(facts: &Facts, done: &Change) -> Option<bool> {
    let Some((_, after)) = words(done) else {
        return Some(false);
    };
    for (place, ours) in after.iter() {
        let Some(pages) = find(facts, place) else {
            return Some(false);
        };
        if pages.total? != ours {
            return Some(false);
        }
    }
    Some(true)
}

/// Where pages are set aside; none where that is not known.
fn nodes(facts: &Facts) -> Option<Vec<Option<u32>>> {
    if facts.numa_nodes.is_empty() {
        return (!facts.hugepages.is_empty()).then(|| vec![None]);
    }
    let near = facts.numa_nodes.iter().filter(|node| node.processors);
    let near = near.filter(|node| node.memory.is_none_or(|bytes| bytes > 0));
    let near: Vec<_> = near.map(|node| Some(node.id)).collect();
    (!near.is_empty()).then_some(near)
}

fn find(facts: &Facts, place: Place) -> Option<&Hugepages> {
    let pages = match place.node {
        None => &facts.hugepages,
        Some(id) => {
            let mut nodes = facts.numa_nodes.iter();
            &nodes.find(|node| node.id == id)?.hugepages
        }
    };
    pages.iter().find(|pages| pages.page_size == place.size)
}

fn words(change: &Change) -> Option<(Pages, Pages)> {
    Some((change.before.parse().ok()?, change.after.parse().ok()?))
}

fn change_of(before: &Pages, after: &Pages) -> Change {
    Change {
        id: ID,
        before: before.to_string(),
        after: after.to_string(),
    }
}

fn say(change: Change, reason: Reason, words: String) -> Step {
    Step::Say {
        change,
        reason,
        words,
    }
}

#[cfg(test)]
mod tests;
