//! `QpGrowth`: no process takes more and more queue pairs of a device. Some engines keep those of every failed transfer,
//! until nothing on the node can connect. Reported while there is time.

use crds::{CheckId, Reason};
use rdma_probe::Leak;

use crate::{Check, CheckInput, Observation, pod};

pub(crate) const CHECK: Check = Check::new(CheckId::QpGrowth, &[Reason::QueuePairsLeaking], run);

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let observations = input.snapshot.facts.hcas.iter().filter_map(|hca| {
        let usage = input.snapshot.hca_reports.get(&hca.name)?.usage.as_ref()?;
        Some(match &usage.leak {
            None => Observation::pass(&hca.name),
            Some(leak) => {
                Observation::warn(&hca.name, Reason::QueuePairsLeaking, message(input, leak))
            }
        })
    });
    observations.collect()
}

fn message(input: &CheckInput<'_>, leak: &Leak) -> String {
    let pod = leak.pod_uid.as_ref().map(|uid| {
        let mut injected = input.spec.injected.iter();
        let known = injected.find(|pod| pod.pod_uid == *uid);
        known.map_or_else(|| format!("the pod with UID {uid}"), pod::name)
    });
    let Leak {
        process,
        pid,
        hours,
        ..
    } = leak;
    let of = pod.map_or_else(String::new, |pod| format!(" of {pod}"));
    let span = match hours {
        1 => "an hour".to_owned(),
        hours => format!("{hours} hours"),
    };
    format!(
        "{process} (process {pid}){of} takes more and more queue pairs and releases none: at the rate of the last \
         hour none is left in less than {span}"
    )
}
