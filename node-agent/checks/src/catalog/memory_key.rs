//! `MemoryKey`: a small memory registration succeeds on each RDMA device. A card without memory keys looks healthy in
//! sysfs. The probe has few mappings and locks little memory, which separates the causes of one errno.

use crds::{ByteSize, CheckId, Reason};
use rdma_probe::{Failure, Report, Stage};
use rustix::io::Errno;

use crate::{Check, CheckInput, Observation};
use host::fault::Problem;

pub(crate) const CHECK: Check = Check::new(
    CheckId::MemoryKey,
    &[
        Reason::MkeyExhausted,
        Reason::MemlockTooLow,
        Reason::MapCountTooLow,
        Reason::RegistrationFailed,
        Reason::VerbsProbeFailed,
    ],
    run,
);

/// Locked memory that the probe needs at most, in bytes: 16 times what it registers.
const LOCKED: u64 = 1 << 20;

/// A process with this few mappings left cannot create another.
const NEAR: u64 = 16;

fn run(input: &CheckInput<'_>) -> Vec<Observation> {
    let most = input.snapshot.facts.kernel.max_map_count;
    let observations = input.snapshot.facts.hcas.iter().filter_map(|hca| {
        let report = input.snapshot.hca_reports.get(&hca.name)?;
        observe(&hca.name, report, most)
    });
    observations.collect()
}

/// None for a device that hangs: `DeviceResponsive` reports it.
fn observe(name: &str, report: &Report, most_mappings: Option<u64>) -> Option<Observation> {
    if report.registered.is_some() {
        return Some(Observation::pass(name));
    }
    let failed = report.failed.as_ref()?;
    let message = describe(failed);
    Some(match failed.stage {
        Stage::View | Stage::Load | Stage::Find | Stage::Memory => {
            Observation::unknown(name, Reason::VerbsProbeFailed, message)
        }
        _ => {
            let (reason, why) = cause(failed, most_mappings);
            Observation::fail(name, reason, message + &why)
        }
    })
}

/// The stage of the probe that failed, and the kernel's error.
pub(crate) fn describe(failed: &Failure) -> String {
    let what = failed.stage.description();
    match failed.errno {
        Some(errno) => format!("{what} fails with {}", Problem::Errno(errno)),
        None => format!("{what} fails: {}", failed.message),
    }
}

fn cause(failed: &Failure, most_mappings: Option<u64>) -> (Reason, String) {
    let errno = failed.errno.map(Errno::from_raw_os_error);
    let refused = [Errno::AGAIN, Errno::NOMEM];
    let Some((errno, limits)) = errno
        .filter(|errno| refused.contains(errno))
        .zip(failed.limits)
    else {
        return (Reason::RegistrationFailed, String::new());
    };
    let locked = limits.may_lock.filter(|may| *may < LOCKED);
    let full = most_mappings.filter(|most| limits.mappings + NEAR >= *most);
    match (errno, locked, full) {
        (_, _, Some(most)) => (
            Reason::MapCountTooLow,
            format!(": vm.max_map_count is {most}, and the probe process has reached it"),
        ),
        (Errno::NOMEM, Some(may), _) => (
            Reason::MemlockTooLow,
            format!(": the agent may lock {}", ByteSize(may)),
        ),
        (Errno::AGAIN, ..) => (
            Reason::MkeyExhausted,
            ": mappings and lockable memory suffice, so the card has no memory keys left"
                .to_owned(),
        ),
        _ => (Reason::RegistrationFailed, String::new()),
    }
}
