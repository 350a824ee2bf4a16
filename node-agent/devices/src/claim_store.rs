//! Prepared claims with their checkpoint and CDI files. The checkpoint is written before the kubelet gets an
//! answer; lost CDI files are restored, since each container start needs them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crds::reason::Reason;
use tokio::sync::watch;

use super::checkpoint::{self, Claims, Prepared};
use super::refusal::Refusal;
use super::{allocation, cdi};
use host::{Facts, atomic_file};

/// Paths on the node.
#[derive(Debug)]
pub(crate) struct Paths {
    pub(crate) checkpoint: PathBuf,
    /// CDI directory of the container runtime.
    pub(crate) cdi: PathBuf,
}

/// Prepared claims, in memory and on disk.
#[derive(Debug)]
pub(crate) struct ClaimStore {
    paths: Paths,
    /// Program that lifts the memlock limit of a container; none while it does not work on this node.
    hook: Mutex<Option<PathBuf>>,
    boot_id: String,
    claims: Mutex<Claims>,
    /// Notified at each unprepared claim.
    freed: watch::Sender<()>,
}

/// A claim that holds an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) namespace: String,
    pub(crate) claim: String,
    pub(crate) claim_uid: String,
    /// Name of the RDMA device.
    pub(crate) hca: String,
}

/// Result of [`ClaimStore::hold`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Held {
    Yes,
    /// Another claim holds one of the devices; the text names both.
    ByAnother(String),
}

impl ClaimStore {
    /// Opens the checkpoint of this boot. An unreadable checkpoint is moved aside, so that pods can
    /// terminate.
    ///
    /// # Errors
    /// `DeviceRecordFailed`: the checkpoint or the CDI directory cannot be read or written.
    pub(crate) fn open(paths: Paths, boot_id: String) -> Result<Self, Refusal> {
        let Paths { checkpoint, cdi } = &paths;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| write_error(&path, &error)
        };
        let claims = match fs::read_to_string(checkpoint) {
            Ok(text) => match checkpoint::parse(&text, &boot_id) {
                Ok(claims) => claims,
                Err(error) => {
                    let aside = checkpoint.with_extension("unreadable");
                    fs::rename(checkpoint, &aside).map_err(failed(&aside))?;
                    tracing::error!(
                        %error, kept = %aside.display(),
                        "cannot read the checkpoint of prepared claims; running pods keep their devices"
                    );
                    Claims::new()
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Claims::new(),
            Err(error) => return Err(write_error(checkpoint, &error)),
        };
        fs::create_dir_all(cdi).map_err(failed(cdi))?;
        Ok(Self {
            paths,
            hook: Mutex::default(),
            boot_id,
            claims: Mutex::new(claims),
            freed: watch::channel(()).0,
        })
    }

    /// The prepared claim with this UID, whose CDI file exists when this returns.
    ///
    /// # Errors
    /// `DeviceRecordFailed`: the CDI file cannot be written.
    pub(crate) fn get(&self, uid: &str) -> Result<Option<Prepared>, Refusal> {
        let claims = self.lock();
        let Some(claim) = claims.get(uid) else {
            return Ok(None);
        };
        self.write_cdi(uid, claim)?;
        Ok(Some(claim.clone()))
    }

    /// Prepares a claim unless another claim holds one of its devices.
    ///
    /// # Errors
    /// `DeviceRecordFailed`: a file cannot be written. A later call retries.
    pub(crate) fn hold(&self, uid: &str, wanted: &Prepared) -> Result<Held, Refusal> {
        let mut claims = self.lock();
        if let Some((other, device)) = checkpoint::holder(&claims, uid, &wanted.devices) {
            return Ok(Held::ByAnother(format!(
                "{device} is held by {}/{}",
                other.namespace, other.name
            )));
        }
        let mut next = claims.clone();
        next.insert(uid.to_owned(), wanted.clone());
        self.save(&next)?;
        *claims = next;
        self.write_cdi(uid, wanted)?;
        Ok(Held::Yes)
    }

    /// Unprepares a claim; an unknown claim is a success.
    ///
    /// # Errors
    /// `DeviceRecordFailed`: a file cannot be written or removed.
    pub(crate) fn release(&self, uid: &str) -> Result<(), Refusal> {
        let mut claims = self.lock();
        if let Some(name) = cdi::file_name(uid) {
            let path = self.paths.cdi.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(write_error(&path, &error));
                }
                _ => {}
            }
        }
        if claims.contains_key(uid) {
            let mut next = claims.clone();
            next.remove(uid);
            self.save(&next)?;
            *claims = next;
            self.freed.send_replace(());
        }
        Ok(())
    }

    /// Prepared slots, each with the name of its RDMA device.
    pub(crate) fn devices(&self) -> BTreeMap<String, String> {
        let claims = self.lock();
        let devices = claims.values().flat_map(|claim| &claim.devices);
        devices
            .map(|granted| (granted.device.clone(), granted.hca.clone()))
            .collect()
    }

    /// Pairs of claim and RDMA device; claims with admin access hold none.
    pub(crate) fn holders(&self) -> Vec<Holder> {
        let claims = self.lock();
        let of = |(uid, claim): (&String, &Prepared)| {
            let held = claim.devices.iter().filter(|granted| !granted.admin);
            let hcas: BTreeSet<&str> = held.map(|granted| granted.hca.as_str()).collect();
            let holder = |hca: &str| Holder {
                namespace: claim.namespace.clone(),
                claim: claim.name.clone(),
                claim_uid: uid.clone(),
                hca: hca.to_owned(),
            };
            hcas.into_iter().map(holder).collect::<Vec<_>>()
        };
        claims.iter().flat_map(of).collect()
    }

    /// Notifies of each claim that is unprepared from now on.
    pub(crate) fn freed(&self) -> watch::Receiver<()> {
        self.freed.subscribe()
    }

    /// Gives the claims this hook, from the next restored files on.
    pub(crate) fn set_hook(&self, hook: Option<PathBuf>) {
        *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }

    fn hook(&self) -> Option<PathBuf> {
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
        hook.clone()
    }

    /// Restores lost CDI files and updates device numbers that a reloaded kernel driver changed.
    ///
    /// # Errors
    /// `DeviceRecordFailed`: a file cannot be written.
    pub(crate) fn restore_files(&self, facts: &Facts) -> Result<(), Refusal> {
        let mut claims = self.lock();
        let mut next = claims.clone();
        for device in next.values_mut().flat_map(|claim| &mut claim.devices) {
            let files = allocation::files(facts, &device.hca);
            // A missing device may come back; its pod keeps its files.
            if !files.is_empty() {
                device.files = files;
            }
        }
        if next != *claims {
            self.save(&next)?;
            *claims = next;
        }
        claims
            .iter()
            .try_for_each(|(uid, claim)| self.write_cdi(uid, claim))
    }

    fn save(&self, claims: &Claims) -> Result<(), Refusal> {
        let path = &self.paths.checkpoint;
        let bytes = checkpoint::render(claims, &self.boot_id)
            .map_err(|error| write_error(path, &error.into()))?;
        atomic_file::replace(path, &bytes, 0o644).map_err(|error| write_error(path, &error))
    }

    /// Writes a claim's CDI file unless it is up to date.
    fn write_cdi(&self, uid: &str, claim: &Prepared) -> Result<(), Refusal> {
        let Some(name) = cdi::file_name(uid) else {
            let words = format!("{uid:?} is not a valid claim UID");
            return Err(Refusal::new(Reason::ClaimInvalid, words));
        };
        let cdi = &self.paths.cdi;
        let path = cdi.join(name);
        let file = cdi::file(uid, claim, self.hook().as_deref());
        let bytes = file.to_string().into_bytes();
        if fs::read(&path).is_ok_and(|found| found == bytes) {
            return Ok(());
        }
        // A reboot removes the directory.
        fs::create_dir_all(cdi)
            .and_then(|()| atomic_file::replace(&path, &bytes, 0o644))
            .map_err(|error| write_error(&path, &error))
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write_error(path: &Path, error: &io::Error) -> Refusal {
    let words = format!("{}: {error}", path.display());
    Refusal::new(Reason::DeviceRecordFailed, words)
}

#[cfg(test)]
mod tests;
