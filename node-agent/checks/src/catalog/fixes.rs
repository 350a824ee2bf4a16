//! `Fixes`: the fixes that the policy allows succeeded, were not reverted, and need no restart of the kubelet.

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, Observation};

pub(crate) const CHECK: Check = Check::new(
    CheckId::Fixes,
    &[
        Reason::FixRefused,
        Reason::FixReverted,
        Reason::KubeletRestartRequired,
    ],
    run,
);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let observe = |fix: &crds::FixReport| match fix.reason.known() {
        Some(
            reason @ (Reason::FixRefused | Reason::FixReverted | Reason::KubeletRestartRequired),
        ) => {
            let message = format!("from {} to {}: {}", fix.before, fix.after, fix.message);
            Observation::warn(fix.id.as_str(), reason, message)
        }
        _ => Observation::pass(fix.id.as_str()),
    };
    input.snapshot.fixes.iter().map(observe).collect()
}
