//! `Clock`: times of this node stand beside those of others in logs, certificates and leases.

use crds::{CheckId, Reason};

use super::steady::Patience;
use super::{Check, NODE, Said, World};

/// Seconds from which on it is told, and the steps in which: what drifts is not told anew each time.
const STEPS: [(u64, &str); 5] = [
    (86_400, "a day"),
    (3_600, "an hour"),
    (300, "5 minutes"),
    (30, "30 seconds"),
    (5, "5 seconds"),
];

pub(super) const CHECK: Check = Check {
    id: CheckId::Clock,
    reasons: &[Reason::ClockSkewed],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let Some(ahead) = world.ahead else {
        return Vec::new();
    };
    let apart = ahead.unsigned_abs();
    let step = STEPS.iter().find(|(least, _)| apart >= *least);
    let way = if ahead > 0 { "ahead of" } else { "behind" };
    vec![match step {
        None => Said::pass(NODE),
        Some((_, step)) => {
            let words = format!("its clock is {step} or more {way} the API server's");
            Said::warn(NODE, Reason::ClockSkewed, words)
        }
    }]
}
