//! What is to be changed on a node, from what to what. Pure: facts, policy and what was done go in, steps
//! come out. Nothing is named here that is not in the closed list.

use std::collections::BTreeMap;

use crds::node::Room;
use crds::policy::PolicyInForce;
use crds::{FixId, FixMode, Reason};
use serde::{Deserialize, Serialize};

use super::{hugepages, ipv6};
use crate::checks::{self, ephemeral_ports, map_count};
use crate::host::Facts;

/// What a fresh kernel has; it stays clear of the ports that Kubernetes gives to Services.
const LOCAL_PORTS: (u16, u16) = (32_768, 60_999);

/// `tcp_tw_reuse` for all connections.
const REUSED: &str = "1";

pub const LOADED: &str = "loaded";
pub const NOT_LOADED: &str = "not loaded";

/// One change of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub id: FixId,
    pub before: String,
    pub after: String,
}

/// What the operator says of the node.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asked<'a> {
    /// Its name.
    pub node: &'a str,
    pub policy: Option<&'a PolicyInForce>,
    pub room: Option<&'a Room>,
}

impl Asked<'_> {
    pub(super) fn mode(&self, id: FixId) -> Option<FixMode> {
        self.policy.and_then(|policy| policy.mode(id))
    }

    pub(super) fn wants_hugepages(&self) -> bool {
        self.policy.is_some_and(PolicyInForce::asks_for_hugepages)
    }
}

/// What is to become of one fix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Shown, not done.
    Propose(Change),
    Do(Change),
    /// Done before, and it holds.
    Stands(Change),
    /// Nobody asks for it any more, and the value is still ours.
    Undo(Change),
    /// The value is not ours any more.
    Forget(FixId),
    /// Nothing is to be done now, and that is told.
    Say {
        change: Change,
        reason: Reason,
        words: String,
    },
}

/// The steps of one look. What cannot be read of the node has none.
pub fn plan(facts: &Facts, asked: &Asked<'_>, done: &BTreeMap<FixId, Change>) -> Vec<Step> {
    let all = FixId::ALL.iter();
    all.filter_map(|id| match id {
        FixId::Hugepages => hugepages::step(facts, asked, done.get(id)),
        FixId::InterfaceIpv6 => ipv6::step(facts, asked.mode(*id), done.get(id)),
        _ => step(*id, facts, asked.mode(*id), done.get(id)),
    })
    .collect()
}

/// What is to be kept of a change that is about to be made: what stood there before, also where an
/// earlier one of ours is what stands there now.
pub fn kept(done: Option<&Change>, change: &Change) -> Change {
    if change.id == FixId::Hugepages
        && let Some(kept) = hugepages::kept(done, change)
    {
        return kept;
    }
    if change.id == FixId::InterfaceIpv6 {
        return ipv6::kept(done, change);
    }
    let mut kept = change.clone();
    if let Some(done) = done.filter(|done| done.after == change.before) {
        kept.before.clone_from(&done.before);
    }
    kept
}

/// What there is to say of a change that was just made.
pub fn standing(change: Change, asked: &Asked<'_>) -> Step {
    match change.id {
        FixId::Hugepages => hugepages::standing(change, asked),
        _ => Step::Stands(change),
    }
}

/// What of `done` is still to be undone after `undone`, and what there is to say of it.
pub fn rest(done: &Change, undone: &Change) -> Option<(Change, Step)> {
    match done.id {
        FixId::Hugepages => {
            let rest = hugepages::rest(done, undone)?;
            let step = hugepages::in_use(&rest);
            Some((rest, step))
        }
        FixId::InterfaceIpv6 => {
            let rest = ipv6::rest(done, undone)?;
            let step = ipv6::in_use(&rest);
            Some((rest, step))
        }
        _ => None,
    }
}

/// True where `change` asks for more than an attempt at `last` was one at: it need not wait for that.
pub(super) fn is_other(last: &str, change: &Change) -> bool {
    match change.id {
        // Another amount is another question.
        FixId::Hugepages => last != change.after,
        FixId::InterfaceIpv6 => !ipv6::holds(last, change),
        _ => false,
    }
}

fn step(id: FixId, facts: &Facts, mode: Option<FixMode>, done: Option<&Change>) -> Option<Step> {
    let before = present(id, facts)?;
    let wanted = wanted(id, facts).map(|after| Change {
        id,
        before: before.clone(),
        after,
    });
    match (mode, done, wanted) {
        (Some(FixMode::Apply), _, Some(wanted)) => Some(Step::Do(wanted)),
        (Some(FixMode::Apply), Some(done), None) if done.after == before => {
            Some(Step::Stands(done.clone()))
        }
        (None | Some(FixMode::DryRun), Some(done), _) if undoable(id) && done.after == before => {
            Some(Step::Undo(Change {
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

/// Who uses a module by now nobody can tell, so that it stays until the next boot.
fn undoable(id: FixId) -> bool {
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

/// What stands on the node; none where that is not known.
fn present(id: FixId, facts: &Facts) -> Option<String> {
    let kernel = &facts.kernel;
    match id {
        FixId::MaxMapCount => kernel.max_map_count.map(|count| count.to_string()),
        FixId::LocalPortRange => kernel.local_ports.map(range),
        FixId::TimeWaitReuse => kernel.time_wait_reuse.map(|reuse| reuse.to_string()),
        // Many values, which their own modules compare.
        FixId::Hugepages | FixId::InterfaceIpv6 => None,
        FixId::ModuleIbUverbs | FixId::ModuleNvidiaPeermem | FixId::ModuleRdmaUcm => {
            let mut modules = kernel.modules.iter();
            let loaded = modules.any(|module| module.name == id.target());
            Some(if loaded { LOADED } else { NOT_LOADED }.to_owned())
        }
    }
}

/// What should stand there; none where it is in order. Values are raised, never lowered.
fn wanted(id: FixId, facts: &Facts) -> Option<String> {
    let kernel = &facts.kernel;
    match id {
        FixId::MaxMapCount => {
            let need = map_count::need(facts);
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
            let missing = present(id, facts)? == NOT_LOADED;
            (missing && checks::finds(id.cures(), facts)).then(|| LOADED.to_owned())
        }
    }
}

fn range((first, last): (u16, u16)) -> String {
    format!("{first} {last}")
}

#[cfg(test)]
pub(super) mod tests {
    use crds::policy::FixRule;

    use super::*;
    use crate::host::Host;
    use crate::host::recording::Recording;

    /// A machine without devices; with one and a few files of it where that is said.
    fn machine(map_count: u64, ports: &str, reuse: u8) -> Facts {
        let text = format!(
            "[proc/sys/vm]\nmax_map_count = {map_count}\n[proc/sys/net/ipv4]\n\
             ip_local_port_range = {ports}\ntcp_tw_reuse = {reuse}\n"
        );
        Host::recorded(Recording::parse(&text).unwrap()).facts()
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
        facts: &Facts,
        policy: Option<&PolicyInForce>,
        done: &BTreeMap<FixId, Change>,
    ) -> Vec<Step> {
        let asked = Asked {
            policy,
            ..Asked::default()
        };
        super::plan(facts, &asked, done)
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
    fn s12_s17_what_is_shown_is_what_is_done() {
        let facts = machine(1000, "60000\t60099", 2);
        let of = |mode| plan(&facts, Some(&policy(mode)), &BTreeMap::new());
        let changes = [
            change(FixId::LocalPortRange, "60000 60099", "32768 60999"),
            change(FixId::MaxMapCount, "1000", "65530"),
            change(FixId::TimeWaitReuse, "2", "1"),
        ];
        assert_eq!(of(FixMode::Apply), changes.clone().map(Step::Do));
        assert_eq!(of(FixMode::DryRun), changes.map(Step::Propose));
        assert_eq!(plan(&facts, None, &BTreeMap::new()), []);
    }

    #[test]
    fn values_are_raised_and_never_lowered() {
        let facts = machine(9_999_999, "1024\t65535", 1);
        assert_eq!(
            plan(&facts, Some(&policy(FixMode::Apply)), &BTreeMap::new()),
            []
        );
        let high = machine(65_530, "50000\t65535", 1);
        assert_eq!(
            plan(&high, Some(&policy(FixMode::Apply)), &BTreeMap::new()),
            [Step::Do(change(
                FixId::LocalPortRange,
                "50000 65535",
                "32768 65535"
            ))]
        );
    }

    #[test]
    fn what_was_done_stands_is_done_again_and_is_undone_only_while_it_is_ours() {
        let ours = change(FixId::MaxMapCount, "1000", "65530");
        let at = |count, mode: Option<FixMode>| {
            let facts = machine(count, "32768\t60999", 1);
            let policy = mode.map(policy);
            plan(&facts, policy.as_ref(), &done(ours.clone()))
        };
        let apply = Some(FixMode::Apply);
        assert_eq!(at(65_530, apply), [Step::Stands(ours.clone())]);
        let again = change(FixId::MaxMapCount, "2000", "65530");
        assert_eq!(at(2000, apply), [Step::Do(again)]);
        assert_eq!(at(70_000, apply), [Step::Forget(FixId::MaxMapCount)]);
        let undo = change(FixId::MaxMapCount, "65530", "1000");
        for mode in [None, Some(FixMode::DryRun)] {
            assert_eq!(at(65_530, mode), [Step::Undo(undo.clone())]);
            assert_eq!(at(70_000, mode), [Step::Forget(FixId::MaxMapCount)]);
            assert_eq!(at(2000, mode), [Step::Forget(FixId::MaxMapCount)]);
        }
    }

    #[test]
    fn what_stood_before_the_first_change_is_kept_when_another_follows() {
        let first = change(FixId::MaxMapCount, "1000", "65530");
        let next = change(FixId::MaxMapCount, "65530", "1048576");
        let both = change(FixId::MaxMapCount, "1000", "1048576");
        assert_eq!(kept(Some(&first), &next), both);
        let others = change(FixId::MaxMapCount, "2000", "1048576");
        assert_eq!(kept(Some(&first), &others), others);
        assert_eq!(kept(None, &next), next);
    }

    #[test]
    fn what_cannot_be_read_is_left_alone() {
        let facts = Host::recorded(Recording::parse("[proc]\nuptime = 1 1").unwrap()).facts();
        let apply = policy(FixMode::Apply);
        assert_eq!(plan(&facts, Some(&apply), &BTreeMap::new()), []);
        let kept = done(change(FixId::MaxMapCount, "1000", "65530"));
        assert_eq!(plan(&facts, None, &kept), [], "nor is it forgotten");
    }

    #[test]
    fn s28_modules_are_loaded_where_something_lacks_them_and_never_unloaded() {
        let text = include_str!("../../tests/machines/dgx-h100.txt");
        let whole = Recording::parse(text).unwrap();
        let apply = policy(FixMode::Apply);
        let modules = |facts: &Facts, policy: Option<&PolicyInForce>, done: &_| {
            let mut steps = plan(facts, policy, done);
            steps.retain(|step| match step {
                Step::Do(change) | Step::Undo(change) => is_module(change.id),
                _ => true,
            });
            steps
        };
        let facts = Host::recorded(whole.clone()).facts();
        assert_eq!(modules(&facts, Some(&apply), &BTreeMap::new()), []);
        let mut without = whole;
        without.remove("dev/infiniband/rdma_cm");
        without.remove("sys/module/rdma_ucm/initstate");
        let facts = Host::recorded(without).facts();
        let load = change(FixId::ModuleRdmaUcm, NOT_LOADED, LOADED);
        assert_eq!(
            modules(&facts, Some(&apply), &BTreeMap::new()),
            [Step::Do(load.clone())]
        );
        let mut loaded = facts;
        let name = "rdma_ucm".to_owned();
        loaded.kernel.modules.push(crds::inventory::Module {
            name,
            version: None,
        });
        assert_eq!(
            modules(&loaded, None, &done(load)),
            [Step::Forget(FixId::ModuleRdmaUcm)]
        );
    }
}
