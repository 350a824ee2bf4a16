//! `Clock`: the node's clock agrees with the API server's. Logs, certificates and leases depend on it.

use crds::{CheckId, Reason};

use crate::{Check, CheckInput, NODE, Observation};

/// Differences that are reported, in seconds. Steps, so that the message of a drifting clock changes seldom.
const STEPS: [(u64, &str); 5] = [
    (86_400, "a day"),
    (3_600, "an hour"),
    (300, "5 minutes"),
    (30, "30 seconds"),
    (5, "5 seconds"),
];

pub(crate) const CHECK: Check = Check::new(CheckId::Clock, &[Reason::ClockSkewed], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let Some(ahead) = input.snapshot.clock_ahead else {
        return Vec::new();
    };
    let apart = ahead.unsigned_abs();
    let step = STEPS.iter().find(|(least, _)| apart >= *least);
    let direction = if ahead > 0 { "ahead of" } else { "behind" };
    vec![match step {
        None => Observation::pass(NODE),
        Some((_, step)) => {
            let message =
                format!("the node's clock is {step} or more {direction} the API server's");
            Observation::warn(NODE, Reason::ClockSkewed, message)
        }
    }]
}
