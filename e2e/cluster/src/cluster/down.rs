//! Removes a cluster by its record: also after a crash, repeatedly, and with running pods.

use super::cgroup::Cgroups;
use super::claim;
use super::folder::Folder;
use super::{Cluster, check_name, network};
use crate::process::{kill_now, owned_by};
use crate::wait::wait_until;
use crate::{Error, Settings};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

impl Cluster {
    /// Removes everything of a cluster. What does not exist is no error.
    ///
    /// # Errors
    /// [`Error::Deadline`] when something cannot be ended or removed.
    pub fn down(settings: &Settings, name: &str) -> Result<(), Error> {
        check_name(name)?;
        let _lock = Self::lock(settings, name)?;
        remove(settings, name)
    }
}

/// As [`Cluster::down`], for a caller that holds the cluster's lock.
pub(super) fn remove(settings: &Settings, name: &str) -> Result<(), Error> {
    let folder = Folder::new(&settings.state, name);
    let cgroups = Cgroups::of_this_machine()?;
    let mut recorded = folder.processes()?;
    recorded.sort_by_key(|(part, _)| part.kill_order());
    for (_, process) in &recorded {
        process.signal(Signal::KILL);
    }
    end_all(|| {
        let mut pids = cgroups.processes(name);
        // Processes that a killed `up` started but did not record.
        pids.extend(owned_by(folder.path()));
        for namespace in network::namespaces(name) {
            pids.extend(network::processes(&namespace)?);
        }
        pids.extend(
            recorded
                .iter()
                .filter(|(_, process)| process.alive())
                .map(|(_, process)| process.pid),
        );
        Ok(pids)
    })?;
    network::remove(name)?;
    wait_until(
        "the cluster's cgroups to go",
        Duration::from_secs(60),
        || {
            let left = cgroups.remove(name);
            Ok(if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            })
        },
    )?;
    if folder.path().exists() {
        fs::remove_dir_all(folder.path()).map_err(Error::file("removing", folder.path()))?;
    }
    claim::release(name)?;
    tracing::info!(cluster = name, "removed");
    Ok(())
}

/// Kills processes until two looks in a row find none, because a killed process may just have started another.
pub(super) fn end_all(mut look: impl FnMut() -> Result<BTreeSet<i32>, Error>) -> Result<(), Error> {
    let mut none_before = false;
    wait_until("its processes to end", Duration::from_secs(60), || {
        let pids = look()?;
        let none = pids.is_empty();
        if none && none_before {
            return Ok(Ok(()));
        }
        none_before = none;
        kill_now(pids.iter().copied());
        Ok(Err(format!("pids {pids:?}")))
    })
}
