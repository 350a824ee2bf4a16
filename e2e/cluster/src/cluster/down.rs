//! Removes a cluster by its record: also after a crash, repeatedly, and with running pods.

use super::cgroup::Cgroups;
use super::claim::{self, Claim, Holder};
use super::folder::{Folder, Record};
use super::{Cluster, check_name, network};
use crate::process::{kill_now, owned_by};
use crate::wait::wait_until;
use crate::{Error, Settings};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

impl Cluster {
    /// Removes everything of a cluster. What does not exist is no error. Nothing of a cluster with another state folder is
    /// touched, and nothing else that happens to have the name.
    ///
    /// # Errors
    /// [`Error::OtherFolder`], [`Error::Deadline`] when something cannot be ended or removed.
    pub fn down(settings: &Settings, name: &str) -> Result<(), Error> {
        check_name(name)?;
        let _lock = Self::lock(settings, name)?;
        let state = settings.state.display();
        if remove(settings, name)? {
            tracing::info!(cluster = name, %state, "removed");
        } else {
            tracing::info!(cluster = name, %state, "there is no such cluster; nothing was removed");
        }
        Ok(())
    }
}

/// As [`Cluster::down`], for a caller that holds the cluster's lock. Returns whether there was something.
pub(super) fn remove(settings: &Settings, name: &str) -> Result<bool, Error> {
    let folder = Folder::new(&settings.state, name);
    let claim = Claim {
        name: name.to_owned(),
        folder: folder.path().to_owned(),
    };
    let claimed = match claim::held_by(&claim)? {
        Holder::This => true,
        // After a restart of the machine only the folder is left.
        Holder::None | Holder::Other(_) if folder.path().exists() => false,
        Holder::None => return Ok(false),
        Holder::Other(folder) => {
            return Err(Error::OtherFolder {
                name: name.to_owned(),
                folder,
            });
        }
    };
    // A damaged record must not prevent the removal.
    let record = folder.load().ok().flatten();
    let group = record.map_or_else(|| Record::cgroup_of(name), |record| record.cgroup());
    let cgroups = Cgroups::of_this_machine()?;
    let mut recorded = folder.processes()?;
    recorded.sort_by_key(|(part, _)| part.kill_order());
    for (_, process) in &recorded {
        process.signal(Signal::KILL);
    }
    end_all(|| {
        // With processes that a killed `up` started but did not record.
        let mut pids = owned_by(folder.path());
        if claimed {
            pids.extend(cgroups.processes(&group));
            for namespace in network::namespaces(name) {
                pids.extend(network::processes(&namespace)?);
            }
        }
        pids.extend(
            recorded
                .iter()
                .filter(|(_, process)| process.alive())
                .map(|(_, process)| process.pid),
        );
        Ok(pids)
    })?;
    if claimed {
        network::remove(name)?;
        wait_until(
            "the cluster's cgroups to go",
            Duration::from_secs(60),
            || {
                let left = cgroups.remove(&group);
                Ok(if left.is_empty() {
                    Ok(())
                } else {
                    Err(format!("{left:?}"))
                })
            },
        )?;
    }
    if folder.path().exists() {
        fs::remove_dir_all(folder.path()).map_err(Error::file("removing", folder.path()))?;
    }
    claim::release(&claim)?;
    Ok(true)
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
