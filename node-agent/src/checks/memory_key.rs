//! `MemoryKey`: a device whose card has no memory keys left looks well in every file, and refuses the next
//! registration. So one is tried. The process that tries it has few mappings and locks little, by which
//! the causes of one errno are told apart.

use crds::{ByteSize, CheckId, Reason};
use rustix::io::Errno;
use verbs::{Answer, Failure, Stage};

use super::steady::Patience;
use super::{Check, Said, World};
use crate::host::fault::Problem;

pub(super) const CHECK: Check = Check {
    id: CheckId::MemoryKey,
    reasons: &[
        Reason::MkeyExhausted,
        Reason::MemlockTooLow,
        Reason::MapCountTooLow,
        Reason::RegistrationFailed,
        Reason::VerbsUntried,
    ],
    patience: Patience::SHORT,
    look,
};

/// What is registered takes a sixteenth of it.
const LOCKED: u64 = 1 << 20;

/// A process this near to the most mappings that it may have is kept from having another.
const NEAR: u64 = 16;

fn look(world: &World<'_>) -> Vec<Said> {
    let most = world.facts.kernel.max_map_count;
    let said = world.facts.hcas.iter().filter_map(|hca| {
        let answer = hca.verbs.as_ref()?;
        say(&hca.name, answer, most)
    });
    said.collect()
}

/// Nothing of one that hangs: `DeviceAnswers` names it.
fn say(name: &str, answer: &Answer, most_mappings: Option<u64>) -> Option<Said> {
    if answer.registered.is_some() {
        return Some(Said::pass(name));
    }
    let failed = answer.failed.as_ref()?;
    let words = told(failed);
    Some(match failed.stage {
        Stage::View | Stage::Load | Stage::Find | Stage::Memory => {
            Said::unknown(name, Reason::VerbsUntried, words)
        }
        _ => {
            let (reason, why) = cause(failed, most_mappings);
            Said::fail(name, reason, words + &why)
        }
    })
}

/// The stage, and what the kernel said.
pub(super) fn told(failed: &Failure) -> String {
    let what = failed.stage.words();
    match failed.errno {
        Some(errno) => format!("{what} fails with {}", Problem::Errno(errno)),
        None => format!("{what} fails: {}", failed.words),
    }
}

fn cause(failed: &Failure, most_mappings: Option<u64>) -> (Reason, String) {
    let errno = failed.errno.map(Errno::from_raw_os_error);
    let refused = [Errno::AGAIN, Errno::NOMEM];
    let Some((errno, means)) = errno
        .filter(|errno| refused.contains(errno))
        .zip(failed.means)
    else {
        return (Reason::RegistrationFailed, String::new());
    };
    let locked = means.may_lock.filter(|may| *may < LOCKED);
    let full = most_mappings.filter(|most| means.mappings + NEAR >= *most);
    match (errno, locked, full) {
        (_, _, Some(most)) => (
            Reason::MapCountTooLow,
            format!(
                ": vm.max_map_count is {most}, and a process that does nothing else has as many"
            ),
        ),
        (Errno::NOMEM, Some(may), _) => (
            Reason::MemlockTooLow,
            format!(": the agent may lock {}", ByteSize(may)),
        ),
        (Errno::AGAIN, ..) => (
            Reason::MkeyExhausted,
            ": neither mappings nor lockable memory are short, so the card has no keys left"
                .to_owned(),
        ),
        _ => (Reason::RegistrationFailed, String::new()),
    }
}
