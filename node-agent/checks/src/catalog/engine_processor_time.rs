//! `EngineProcessorTime`: each engine process gets the processor time that it needs. Without it transfers are slow, and
//! nothing else shows why.

use crds::{CheckId, Reason};
use host::snapshot::{Engine, Shortage};

use crate::debounce::Delays;
use crate::{Check, CheckInput, Observation};

// A busy minute is no finding.
pub(crate) const CHECK: Check = Check::new(
    CheckId::EngineProcessorTime,
    &[Reason::EngineThrottled],
    run,
)
.with_delays(Delays::LONG);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    input.snapshot.engines.values().map(observe).collect()
}

fn observe(engine: &Engine) -> Observation {
    let subject = format!("pool pod {}/{}", engine.namespace, engine.pod);
    let message = match engine.shortage {
        None => return Observation::pass(subject),
        Some(Shortage::CpuLimit) => {
            "the pod has a CPU limit, by which the kernel stops it for more than a tenth of the time"
        }
        Some(Shortage::OtherProcesses) => {
            "its engine process waits for a processor more than three times as long as it runs: \
             other processes of the node use the processors"
        }
    };
    Observation::warn(subject, Reason::EngineThrottled, message)
}
