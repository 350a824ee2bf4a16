//! `Dns`: the names of masters resolve. If one name fails, the name may be wrong; if all fail, the name service is.

use std::time::Duration;

use crds::{CheckId, Reason, Verdict};

use crate::debounce::Delays;
use crate::{Check, CheckInput, Observation};

// The name of a new MooncakeCluster may be looked up before the name service has it. CoreDNS answers then for up to 30 s that it
// does not exist, which is no fault. The replacement of a name server takes less.
pub(crate) const CHECK: Check = Check::new(CheckId::Dns, &[Reason::NameNotResolved], run)
    .with_delays(Delays {
        raise: Duration::from_secs(35),
        clear: Duration::from_secs(15),
    });

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let names = &input.snapshot.master_names;
    let none = names.len() > 1 && names.iter().all(|name| name.error.is_some());
    let observe = |name: &host::snapshot::MasterName| match &name.error {
        None => Observation::pass(&name.name),
        Some(why) if none => {
            let message = format!("{why}; no master's name resolves on this node");
            Observation::new(&name.name, Verdict::Fail, Reason::NameNotResolved, message)
        }
        Some(why) => Observation::warn(&name.name, Reason::NameNotResolved, why),
    };
    names.iter().map(observe).collect()
}
