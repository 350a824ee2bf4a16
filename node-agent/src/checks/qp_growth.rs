//! `QpGrowth`: an engine that keeps the queue pairs of every transfer that failed takes the last one some
//! day, and then nobody on the node connects any more. Named while there is time.

use crds::{CheckId, Reason};
use verbs::Rising;

use super::steady::Patience;
use super::{Check, Said, World, pod};

pub(super) const CHECK: Check = Check {
    id: CheckId::QpGrowth,
    reasons: &[Reason::QueuePairsLeaking],
    patience: Patience::SHORT,
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let said = world.facts.hcas.iter().filter_map(|hca| {
        let taken = hca.verbs.as_ref()?.taken.as_ref()?;
        Some(match &taken.rising {
            None => Said::pass(&hca.name),
            Some(rising) => Said::warn(&hca.name, Reason::QueuePairsLeaking, words(world, rising)),
        })
    });
    said.collect()
}

fn words(world: &World<'_>, rising: &Rising) -> String {
    let owner = rising.pod_uid.as_ref().map(|uid| {
        let mut injected = world.injected.iter();
        let known = injected.find(|pod| pod.pod_uid == *uid);
        known.map_or_else(|| format!("the pod of UID {uid}"), pod::name)
    });
    let Rising {
        process,
        pid,
        hours,
        ..
    } = rising;
    let of = owner.map_or_else(String::new, |owner| format!(" of {owner}"));
    let span = match hours {
        1 => "an hour".to_owned(),
        hours => format!("{hours} hours"),
    };
    format!(
        "{process} (process {pid}){of} takes ever more of its queue pairs and gives none back: at the pace of \
         the last hour none is left in less than {span}"
    )
}
