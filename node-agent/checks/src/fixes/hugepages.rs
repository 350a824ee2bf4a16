//! Plans the fix of hugepages, for which a policy sets amounts. Pure. They are reserved from memory that no pod requests:
//! all of them, or none.
//!
//! ```text
//! amounts, present pages ── wanted ── room of the node, of each NUMA node ── Apply, Propose or why not
//! an applied change      ── Revert, as far as pages are free
//! applied, and the kubelet counts fewer ── KubeletRestartRequired
//! ```

use crds::{ByteSize, FixId, FixMode, Reason};

use super::page_counts::{PageCounts, Place, name};
use super::step::{Change, FixRequest, Step};
use host::Facts;
use host::memory::{Hugepages, NumaNode};

/// Memory that stays free for pods that start meanwhile.
const SPARE: u64 = 512 << 20;

/// Memory that a NUMA node keeps: this much or 1/64 of its memory, whichever is more. Messages round to it, so that they
/// do not change all the time.
const NUMA_SPARE: u64 = 256 << 20;
const NUMA_PART: u64 = 64;

const ID: FixId = FixId::Hugepages;

/// The next step; none where nothing is requested, or where the present pages cannot be read.
pub(super) fn step(facts: &Facts, request: &FixRequest<'_>, done: Option<&Change>) -> Option<Step> {
    let mode = request.mode(ID).filter(|_| request.requests_hugepages());
    match (mode, done) {
        (Some(FixMode::Apply), done) => raise(facts, request, done, Step::Apply),
        (Some(FixMode::DryRun), None) => raise(facts, request, None, Step::Propose),
        (None | Some(FixMode::DryRun), Some(done)) => revert(facts, done),
        (None, None) => None,
    }
}

/// The step after a change was applied: it takes effect once the kubelet counts the pages.
pub(super) fn after_apply(change: Change, request: &FixRequest<'_>) -> Step {
    let pages: PageCounts = change.after.parse().unwrap_or_default();
    match uncounted(&pages, request) {
        Some(message) => report(change, Reason::KubeletRestartRequired, message),
        None => Step::Applied(change),
    }
}

/// The journal entry of a change: it keeps the counts from before the agent's first change.
pub(super) fn journal_entry(done: Option<&Change>, change: &Change) -> Option<Change> {
    let (mut before, mut after) = parsed(change)?;
    if let Some((first, last)) = done.and_then(parsed) {
        for (place, last) in last.iter() {
            let Some(first) = first.get(place) else {
                continue;
            };
            match before.get(place) {
                // An interrupted attempt leaves a count in between.
                Some(now) if (first..=last).contains(&now) => before.set(place, first),
                Some(_) => {}
                // No longer requested, but still the agent's.
                None => {
                    before.set(place, first);
                    after.set(place, last);
                }
            }
        }
    }
    Some(change_of(&before, &after))
}

/// The part of `done` that remains to be reverted after `reverted`.
pub(super) fn remaining(done: &Change, reverted: &Change) -> Option<Change> {
    let ((first, _), (_, now)) = (parsed(done)?, parsed(reverted)?);
    let (mut before, mut after) = (PageCounts::default(), PageCounts::default());
    for (place, now) in now.iter() {
        if let Some(first) = first.get(place).filter(|first| *first < now) {
            before.set(place, first);
            after.set(place, now);
        }
    }
    (!after.0.is_empty()).then(|| change_of(&before, &after))
}

/// The step while the remaining pages cannot be released.
pub(super) fn in_use(left: &Change) -> Step {
    let back = Change {
        id: ID,
        before: left.after.clone(),
        after: left.before.clone(),
    };
    let message = "no policy requests them; the remaining pages are in use";
    report(back, Reason::HugepagesInUse, message)
}

fn raise(
    facts: &Facts,
    request: &FixRequest<'_>,
    done: Option<&Change>,
    step: fn(Change) -> Step,
) -> Option<Step> {
    let (mut present, mut wanted) = (PageCounts::default(), PageCounts::default());
    let mut unsupported = None;
    for rule in request.policy.iter().flat_map(|policy| &policy.hugepages) {
        for node in nodes(facts)? {
            let place = Place::new(rule.page_size, node);
            let total = match find(facts, place) {
                Some(pages) => pages.total?,
                None => {
                    unsupported = Some(place);
                    0
                }
            };
            present.set(place, total);
            wanted.set(place, total.max(rule.pages()));
        }
    }
    let change = change_of(&present, &wanted);
    if let Some(place) = unsupported {
        let size = ByteSize(place.size);
        let place = name(place.node);
        let message = format!(
            "{place} has no hugepages of {size}: the kernel or processor does not support them"
        );
        return Some(report(change, Reason::FixRefused, message));
    }
    if present != wanted {
        return Some(match check_room(facts, request, &present, &wanted)? {
            Ok(()) => step(change),
            Err((reason, message)) => report(change, reason, message),
        });
    }
    match done {
        Some(done) if is_ours(facts, done)? => Some(after_apply(done.clone(), request)),
        Some(_) => Some(Step::Forget(ID)),
        None if request.mode(ID) == Some(FixMode::DryRun) => None,
        // Reserved by somebody else; pods cannot use them either until the kubelet counts them.
        None => match after_apply(change, request) {
            Step::Applied(_) => None,
            step => Some(step),
        },
    }
}

/// Lowers the counts to those from before, or to the pages in use.
fn revert(facts: &Facts, done: &Change) -> Option<Step> {
    let Some((before, after)) = parsed(done) else {
        return Some(Step::Forget(ID));
    };
    let (mut present, mut lowered, mut floor) = (
        PageCounts::default(),
        PageCounts::default(),
        PageCounts::default(),
    );
    for size in after.sizes() {
        let all = Hugepages::of_size(&facts.hugepages, size);
        // Reserved pages may come from any NUMA node.
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
        Step::Revert(change_of(&present, &lowered))
    })
}

/// Checks whether the node and its NUMA nodes have the memory. None where it cannot be read.
fn check_room(
    facts: &Facts,
    request: &FixRequest<'_>,
    present: &PageCounts,
    wanted: &PageCounts,
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
    let Some(room) = request.room.and_then(|room| room.memory) else {
        let message = "waits for the operator to count the requests of the node's pods".to_owned();
        return Some(Err((Reason::PodRequestsUnknown, message)));
    };
    let room = room.0.saturating_sub(uncounted_bytes(facts, request));
    let have = room.saturating_sub(SPARE);
    if have < all {
        let share = |(node, need): &(Option<u32>, u64)| {
            let part = u128::from(have) * u128::from(*need) / u128::from(all);
            let part = even_mebibytes(u64::try_from(part).unwrap_or(u64::MAX));
            format!("{} {} of {}", name(*node), ByteSize(part), ByteSize(*need))
        };
        let shares: Vec<String> = needs.iter().map(share).collect();
        let message = format!(
            "its pods leave {} of memory, of which {} stay free: {}",
            ByteSize(even_mebibytes(room)),
            ByteSize(SPARE),
            shares.join(", ")
        );
        return Some(Err((Reason::FixRefused, message)));
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
            let message = format!("not enough memory available: {}", short.join(", "));
            Err((Reason::FixRefused, message))
        }
    })
}

/// Memory that a NUMA node keeps in any case.
fn spare(node: &NumaNode) -> u64 {
    let part = node.memory.unwrap_or(0) / NUMA_PART;
    even_mebibytes(part).max(NUMA_SPARE)
}

/// Rounds down to a multiple of 2 MiB.
fn even_mebibytes(bytes: u64) -> u64 {
    bytes - bytes % (2 << 20)
}

/// Bytes that are taken from a NUMA node.
fn need(present: &PageCounts, wanted: &PageCounts, node: Option<u32>) -> u64 {
    let here = wanted.iter().filter(|(place, _)| place.node == node);
    let bytes = here.map(|(place, wanted)| {
        let more = wanted.saturating_sub(present.get(place).unwrap_or(0));
        more.saturating_mul(place.size)
    });
    bytes.fold(0, u64::saturating_add)
}

/// Bytes of pages that the kubelet does not count, and so still counts as memory for pods.
fn uncounted_bytes(facts: &Facts, request: &FixRequest<'_>) -> u64 {
    let counted = request.room.iter().flat_map(|room| &room.hugepages);
    let more = counted.map(|counted| {
        let size = counted.page_size.0;
        let all = Hugepages::of_size(&facts.hugepages, size);
        let total = all.and_then(|pages| pages.total).unwrap_or(0);
        total.saturating_sub(counted.pages).saturating_mul(size)
    });
    more.fold(0, u64::saturating_add)
}

/// Message where the kubelet counts fewer pages than these.
fn uncounted(pages: &PageCounts, request: &FixRequest<'_>) -> Option<String> {
    let room = request.room?;
    let fewer = pages.sizes().into_iter().filter_map(|size| {
        let mut counted = room.hugepages.iter();
        let counted = counted.find(|counted| counted.page_size.0 == size)?.pages;
        let present = pages.of_size(size);
        let size = ByteSize(size);
        (counted < present).then(|| format!("{counted} of {present} of {size}"))
    });
    let fewer: Vec<String> = fewer.collect();
    (!fewer.is_empty()).then(|| {
        format!(
            "the pages are reserved, but the kubelet counts {}: run systemctl restart kubelet on {}",
            fewer.join(", "),
            request.node
        )
    })
}

/// True where the present counts are those of the change.
fn is_ours(facts: &Facts, done: &Change) -> Option<bool> {
    let Some((_, after)) = parsed(done) else {
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

/// NUMA nodes on which pages are reserved, or the whole machine; none where that is not known.
fn nodes(facts: &Facts) -> Option<Vec<Option<u32>>> {
    if facts.numa_nodes.is_empty() {
        return (!facts.hugepages.is_empty()).then(|| vec![None]);
    }
    let with_cpus = facts.numa_nodes.iter().filter(|node| node.processors);
    let with_cpus = with_cpus.filter(|node| node.memory.is_none_or(|bytes| bytes > 0));
    let with_cpus: Vec<_> = with_cpus.map(|node| Some(node.id)).collect();
    (!with_cpus.is_empty()).then_some(with_cpus)
}

fn find(facts: &Facts, place: Place) -> Option<&Hugepages> {
    let pages = match place.node {
        None => &facts.hugepages,
        Some(id) => {
            let mut nodes = facts.numa_nodes.iter();
            &nodes.find(|node| node.id == id)?.hugepages
        }
    };
    Hugepages::of_size(pages, place.size)
}

fn parsed(change: &Change) -> Option<(PageCounts, PageCounts)> {
    Some((change.before.parse().ok()?, change.after.parse().ok()?))
}

fn change_of(before: &PageCounts, after: &PageCounts) -> Change {
    Change {
        id: ID,
        before: before.to_string(),
        after: after.to_string(),
    }
}

fn report(change: Change, reason: Reason, message: impl Into<String>) -> Step {
    Step::Report {
        change,
        reason,
        message: message.into(),
    }
}

#[cfg(test)]
mod tests;
