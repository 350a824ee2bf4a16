//! `PeerReachable`: probes of the agents of other nodes succeed. One path that fails may be the peer's fault; if all
//! fail, this node is cut off.

use std::time::Duration;

use crds::names::PROBE_SLOT;
use crds::{ByteSize, CheckId, Reason, Verdict};

use crate::debounce::Delays;
use crate::{Check, CheckInput, Observation};

// The replacement of an agent takes as long: a rollout raises no findings.
pub(crate) const CHECK: Check = Check::new(
    CheckId::PeerReachable,
    &[Reason::PeerUnreachable, Reason::TransportDegraded],
    run,
)
.with_delays(Delays {
    raise: Duration::from_secs(15),
    clear: Duration::from_secs(15),
});

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let paths = &input.snapshot.peer_paths;
    let none = paths.len() > 1 && paths.iter().all(|path| path.error.is_some());
    let observe = |path: &host::snapshot::PeerPath| match (&path.error, path.slow) {
        (Some(why), _) if none => {
            let message = format!("{why}; no probed node can be reached from this node");
            Observation::new(&path.node, Verdict::Fail, Reason::PeerUnreachable, message)
        }
        (Some(why), _) => Observation::new(&path.node, Verdict::Warn, Reason::PeerUnreachable, why),
        (None, Some(limit)) => {
            let (bytes, limit) = (ByteSize(PROBE_SLOT), limit.as_millis());
            let message = format!(
                "the fastest probe of the last 30 seconds took more than {limit} ms for {bytes} there and back"
            );
            Observation::new(
                &path.node,
                Verdict::Warn,
                Reason::TransportDegraded,
                message,
            )
        }
        (None, None) => Observation::pass(&path.node),
    };
    paths.iter().map(observe).collect()
}
