//! Plans fixes: which value changes from what to what. Pure: snapshot, policy and earlier changes in, steps out. Only fixes
//! of the closed list `FixId` are planned.

use std::collections::BTreeMap;

use crds::{FixId, FixMode};

use super::step::{Change, FixRequest, Step};
use super::{hugepages, ipv6};
use crate::catalog::{ephemeral_ports, map_count};
use host::Snapshot;

/// The kernel's default, which does not overlap the ports of Kubernetes Services.
const LOCAL_PORTS: (u16, u16) = (32_768, 60_999);

/// `tcp_tw_reuse` for all connections.
const REUSED: &str = "1";

pub const LOADED: &str = "loaded";
pub const NOT_LOADED: &str = "not loaded";

/// The steps for this snapshot. A value that could not be read has no step.
pub fn plan(
    snapshot: &Snapshot,
    request: &FixRequest<'_>,
    done: &BTreeMap<FixId, Change>,
) -> Vec<Step> {
    let all = FixId::ALL.iter();
    all.filter_map(|id| match id {
        FixId::Hugepages => hugepages::step(&snapshot.facts, request, done.get(id)),
        FixId::InterfaceIpv6 => ipv6::step(snapshot, request.mode(*id), done.get(id)),
        _ => step(*id, snapshot, request.mode(*id), done.get(id)),
    })
    .collect()
}

/// The journal entry of a change that is about to be applied: it keeps the value from before the agent's first change.
pub fn journal_entry(done: Option<&Change>, change: &Change) -> Change {
    if change.id == FixId::Hugepages
        && let Some(entry) = hugepages::journal_entry(done, change)
    {
        return entry;
    }
    if change.id == FixId::InterfaceIpv6 {
        return ipv6::journal_entry(done, change);
    }
    let mut entry = change.clone();
    if let Some(done) = done.filter(|done| done.after == change.before) {
        entry.before.clone_from(&done.before);
    }
    entry
}

/// The step after a change was applied.
pub fn after_apply(change: Change, request: &FixRequest<'_>) -> Step {
    match change.id {
        FixId::Hugepages => hugepages::after_apply(change, request),
        _ => Step::Applied(change),
    }
}

/// The part of `done` that remains to be reverted after `reverted`, and its step.
pub fn remaining(done: &Change, reverted: &Change) -> Option<(Change, Step)> {
    match done.id {
        FixId::Hugepages => {
            let left = hugepages::remaining(done, reverted)?;
            let step = hugepages::in_use(&left);
            Some((left, step))
        }
        FixId::InterfaceIpv6 => {
            let left = ipv6::remaining(done, reverted)?;
            let step = ipv6::in_use(&left);
            Some((left, step))
        }
        _ => None,
    }
}

/// True where `change` differs from the last attempt, and so need not wait for the retry delay.
pub(super) fn differs_from_attempt(last: &str, change: &Change) -> bool {
    match change.id {
        FixId::Hugepages => last != change.after,
        FixId::InterfaceIpv6 => !ipv6::includes(last, change),
        _ => false,
    }
}

fn step(
    id: FixId,
    snapshot: &Snapshot,
    mode: Option<FixMode>,
    done: Option<&Change>,
) -> Option<Step> {
    let before = present(id, snapshot)?;
    let wanted = wanted(id, snapshot).map(|after| Change {
        id,
        before: before.clone(),
        after,
    });
    match (mode, done, wanted) {
        (Some(FixMode::Apply), _, Some(wanted)) => Some(Step::Apply(wanted)),
        (Some(FixMode::Apply), Some(done), None) if done.after == before => {
            Some(Step::Applied(done.clone()))
        }
        (None | Some(FixMode::DryRun), Some(done), _)
            if is_revertible(id) && done.after == before =>
        {
            Some(Step::Revert(Change {
                id,
                before,
                after: done.before.clone(),
            }))
        }
        (_, Some(_), _) => Some(Step::Forget(id)),
        (Some(FixMode::DryRun), None, Some(wanted)) => Some(Step::Propose(wanted)),
        (_, None, _) => None,
    }
}

/// A module stays loaded until the next boot: the agent cannot know who uses it.
fn is_revertible(id: FixId) -> bool {
    !is_module(id)
}

pub fn is_module(id: FixId) -> bool {
    match id {
        FixId::ModuleIbUverbs | FixId::ModuleNvidiaPeermem | FixId::ModuleRdmaUcm => true,
        FixId::Hugepages
        | FixId::InterfaceIpv6
        | FixId::LocalPortRange
        | FixId::MaxMapCount
        | FixId::TimeWaitReuse => false,
    }
}

/// The value on the node; none where it is not known.
fn present(id: FixId, snapshot: &Snapshot) -> Option<String> {
    let kernel = &snapshot.facts.kernel;
    match id {
        FixId::MaxMapCount => kernel.max_map_count.map(|count| count.to_string()),
        FixId::LocalPortRange => kernel.local_ports.map(range),
        FixId::TimeWaitReuse => kernel.time_wait_reuse.map(|reuse| reuse.to_string()),
        // These have many values, which their own modules compare.
        FixId::Hugepages | FixId::InterfaceIpv6 => None,
        FixId::ModuleIbUverbs | FixId::ModuleNvidiaPeermem | FixId::ModuleRdmaUcm => {
            let loaded = kernel.has_module(id.target());
            Some(if loaded { LOADED } else { NOT_LOADED }.to_owned())
        }
    }
}

/// The value to set; none where the present one is sufficient. Values are raised, never lowered.
fn wanted(id: FixId, snapshot: &Snapshot) -> Option<String> {
    let kernel = &snapshot.facts.kernel;
    match id {
        FixId::MaxMapCount => {
            let need = map_count::need(&snapshot.facts);
            (kernel.max_map_count? < need).then(|| need.to_string())
        }
        FixId::LocalPortRange => {
            let (first, last) = kernel.local_ports?;
            let few = ephemeral_ports::count((first, last)) < ephemeral_ports::ENOUGH;
            few.then(|| range((first.min(LOCAL_PORTS.0), last.max(LOCAL_PORTS.1))))
        }
        FixId::Hugepages | FixId::InterfaceIpv6 => None,
        FixId::TimeWaitReuse => {
            let reuse = kernel.time_wait_reuse?.to_string();
            (reuse != REUSED).then(|| REUSED.to_owned())
        }
        FixId::ModuleIbUverbs | FixId::ModuleNvidiaPeermem | FixId::ModuleRdmaUcm => {
            let missing = present(id, snapshot)? == NOT_LOADED;
            (missing && crate::finds(id.cures(), snapshot)).then(|| LOADED.to_owned())
        }
    }
}

fn range((first, last): (u16, u16)) -> String {
    format!("{first} {last}")
}

#[cfg(test)]
pub(super) mod tests {
    use crds::policy::{FixRule, PolicyInForce};

    use super::*;
    use host::Host;
    use host::recording::Recording;

    /// A machine without devices.
    fn machine(map_count: u64, ports: &str, reuse: u8) -> Snapshot {
        let text = format!(
            "[proc/sys/vm]\nmax_map_count = {map_count}\n[proc/sys/net/ipv4]\n\
             ip_local_port_range = {ports}\ntcp_tw_reuse = {reuse}\n"
        );
        Host::parse(&text).unwrap().snapshot()
    }

    fn policy(mode: FixMode) -> PolicyInForce {
        PolicyInForce {
            name: "p".to_owned(),
            fixes: FixId::ALL
                .iter()
                .map(|id| FixRule { id: *id, mode })
                .collect(),
            ..PolicyInForce::default()
        }
    }

    fn plan(
        snapshot: &Snapshot,
        policy: Option<&PolicyInForce>,
        done: &BTreeMap<FixId, Change>,
    ) -> Vec<Step> {
        let request = FixRequest {
            policy,
            ..FixRequest::default()
        };
        super::plan(snapshot, &request, done)
    }

    pub(in crate::fixes) fn change(id: FixId, before: &str, after: &str) -> Change {
        Change {
            id,
            before: before.to_owned(),
            after: after.to_owned(),
        }
    }

    fn done(change: Change) -> BTreeMap<FixId, Change> {
        BTreeMap::from([(change.id, change)])
    }

    #[test]
    fn a_dry_run_proposes_the_changes_that_apply_makes() {
        let snapshot = machine(1000, "60000\t60099", 2);
        let of = |mode| plan(&snapshot, Some(&policy(mode)), &BTreeMap::new());
        let changes = [
            change(FixId::LocalPortRange, "60000 60099", "32768 60999"),
            change(FixId::MaxMapCount, "1000", "65530"),
            change(FixId::TimeWaitReuse, "2", "1"),
        ];
        assert_eq!(of(FixMode::Apply), changes.clone().map(Step::Apply));
        assert_eq!(of(FixMode::DryRun), changes.map(Step::Propose));
        assert_eq!(plan(&snapshot, None, &BTreeMap::new()), []);
    }

    #[test]
    fn values_are_raised_and_never_lowered() {
        let snapshot = machine(9_999_999, "1024\t65535", 1);
        assert_eq!(
            plan(&snapshot, Some(&policy(FixMode::Apply)), &BTreeMap::new()),
            []
        );
        let high = machine(65_530, "50000\t65535", 1);
        assert_eq!(
            plan(&high, Some(&policy(FixMode::Apply)), &BTreeMap::new()),
            [Step::Apply(change(
                FixId::LocalPortRange,
                "50000 65535",
                "32768 65535"
            ))]
        );
    }

    #[test]
    fn an_applied_change_is_applied_again_and_reverted_only_while_the_value_is_the_agents() {
        let ours = change(FixId::MaxMapCount, "1000", "65530");
        let at = |count, mode: Option<FixMode>| {
            let snapshot = machine(count, "32768\t60999", 1);
            let policy = mode.map(policy);
            plan(&snapshot, policy.as_ref(), &done(ours.clone()))
        };
        let apply = Some(FixMode::Apply);
        assert_eq!(at(65_530, apply), [Step::Applied(ours.clone())]);
        let again = change(FixId::MaxMapCount, "2000", "65530");
        assert_eq!(at(2000, apply), [Step::Apply(again)]);
        assert_eq!(at(70_000, apply), [Step::Forget(FixId::MaxMapCount)]);
        let undo = change(FixId::MaxMapCount, "65530", "1000");
        for mode in [None, Some(FixMode::DryRun)] {
            assert_eq!(at(65_530, mode), [Step::Revert(undo.clone())]);
            assert_eq!(at(70_000, mode), [Step::Forget(FixId::MaxMapCount)]);
            assert_eq!(at(2000, mode), [Step::Forget(FixId::MaxMapCount)]);
        }
    }

    #[test]
    fn the_journal_keeps_the_value_from_before_the_first_change() {
        let first = change(FixId::MaxMapCount, "1000", "65530");
        let next = change(FixId::MaxMapCount, "65530", "1048576");
        let both = change(FixId::MaxMapCount, "1000", "1048576");
        assert_eq!(journal_entry(Some(&first), &next), both);
        let others = change(FixId::MaxMapCount, "2000", "1048576");
        assert_eq!(journal_entry(Some(&first), &others), others);
        assert_eq!(journal_entry(None, &next), next);
    }

    #[test]
    fn a_value_that_cannot_be_read_is_not_changed() {
        let snapshot = Host::parse("[proc]\nuptime = 1 1").unwrap().snapshot();
        let apply = policy(FixMode::Apply);
        assert_eq!(plan(&snapshot, Some(&apply), &BTreeMap::new()), []);
        let kept = done(change(FixId::MaxMapCount, "1000", "65530"));
        assert_eq!(plan(&snapshot, None, &kept), [], "and not forgotten");
    }

    #[test]
    fn modules_are_loaded_where_a_check_misses_them_and_never_unloaded() {
        let text = include_str!("../../../host/machines/dgx-h100.txt");
        let whole = Recording::parse(text).unwrap();
        let apply = policy(FixMode::Apply);
        let modules = |snapshot: &Snapshot, policy: Option<&PolicyInForce>, done: &_| {
            let mut steps = plan(snapshot, policy, done);
            steps.retain(|step| match step {
                Step::Apply(change) | Step::Revert(change) => is_module(change.id),
                _ => true,
            });
            steps
        };
        let snapshot = Host::recorded(whole.clone()).snapshot();
        assert_eq!(modules(&snapshot, Some(&apply), &BTreeMap::new()), []);
        let mut without = whole;
        without.remove("dev/infiniband/rdma_cm");
        without.remove("sys/module/rdma_ucm/initstate");
        let snapshot = Host::recorded(without).snapshot();
        let load = change(FixId::ModuleRdmaUcm, NOT_LOADED, LOADED);
        assert_eq!(
            modules(&snapshot, Some(&apply), &BTreeMap::new()),
            [Step::Apply(load.clone())]
        );
        let mut loaded = snapshot;
        let name = "rdma_ucm".to_owned();
        loaded.facts.kernel.modules.push(crds::inventory::Module {
            name,
            version: None,
        });
        assert_eq!(
            modules(&loaded, None, &done(load)),
            [Step::Forget(FixId::ModuleRdmaUcm)]
        );
    }
}
