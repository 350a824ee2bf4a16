//! `Dns`: injected pods find their master by name; one name that does not resolve may be that name's
//! fault, where none does it is the name service's or the way to it.

use std::time::Duration;

use crds::{CheckId, Reason, Verdict};

use super::steady::Patience;
use super::{Check, Said, World};

pub(super) const CHECK: Check = Check {
    id: CheckId::Dns,
    reasons: &[Reason::NameNotResolved],
    // A name server that is replaced is away for as long.
    patience: Patience {
        grace: Duration::from_secs(10),
        hold: Duration::from_secs(15),
    },
    look,
};

fn look(world: &World<'_>) -> Vec<Said> {
    let names = world.names;
    let none = names.len() > 1 && names.iter().all(|name| name.failed.is_some());
    let say = |name: &super::Name| match &name.failed {
        None => Said::pass(&name.name),
        Some(why) if none => {
            let words = format!("{why}; no name resolves on this node");
            Said::of(&name.name, Verdict::Fail, Reason::NameNotResolved, words)
        }
        Some(why) => Said::warn(&name.name, Reason::NameNotResolved, why),
    };
    names.iter().map(say).collect()
}
