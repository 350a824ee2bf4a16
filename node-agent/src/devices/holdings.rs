//! Which claim holds which device, on disk before anybody is told, and the files by which the container
//! runtime gives them. What a container needs at each of its starts is put back when it is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crds::reason::Reason;
use tokio::sync::watch;

use super::checkpoint::{self, Claims, Prepared};
use super::refusal::Refusal;
use super::{allotment, cdi};
use crate::host::Facts;

/// Paths on the node.
#[derive(Debug)]
pub(crate) struct Places {
    /// What was given, for the next agent.
    pub(crate) checkpoint: PathBuf,
    /// Folder of the container runtime.
    pub(crate) cdi: PathBuf,
    /// Lifts a container's limit of locked memory; none where the node does not let it.
    pub(crate) hook: Option<PathBuf>,
}

/// Claims that are prepared, and where that is written.
#[derive(Debug)]
pub(crate) struct Holdings {
    places: Places,
    boot_id: String,
    claims: Mutex<Claims>,
    /// Told at each claim that is let go.
    freed: watch::Sender<()>,
}

/// A claim that holds an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) namespace: String,
    pub(crate) claim: String,
    pub(crate) claim_uid: String,
    /// The RDMA device's own name.
    pub(crate) hca: String,
}

/// What came of asking for devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Held {
    Yes,
    /// Another claim has one of them; who, in words.
    ByAnother(String),
}

impl Holdings {
    /// Reads what an earlier agent gave since the node booted. A checkpoint that cannot be understood is
    /// put aside: pods must be able to end.
    ///
    /// # Errors
    /// If the disk fails.
    pub(crate) fn open(places: Places, boot_id: String) -> Result<Self, Refusal> {
        let Places {
            checkpoint, cdi, ..
        } = &places;
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| unwritten(&path, &error)
        };
        let claims = match fs::read_to_string(checkpoint) {
            Ok(text) => match checkpoint::parse(&text, &boot_id) {
                Ok(claims) => claims,
                Err(error) => {
                    let aside = checkpoint.with_extension("unreadable");
                    fs::rename(checkpoint, &aside).map_err(failed(&aside))?;
                    tracing::error!(
                        %error, kept = %aside.display(),
                        "which claims hold devices is not known: pods that run keep what they have"
                    );
                    Claims::new()
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Claims::new(),
            Err(error) => return Err(unwritten(checkpoint, &error)),
        };
        fs::create_dir_all(cdi).map_err(failed(cdi))?;
        Ok(Self {
            places,
            boot_id,
            claims: Mutex::new(claims),
            freed: watch::channel(()).0,
        })
    }

    /// What a claim was given; its file is there when this returns.
    ///
    /// # Errors
    /// If that cannot be written.
    pub(crate) fn get(&self, uid: &str) -> Result<Option<Prepared>, Refusal> {
        let claims = self.lock();
        let Some(claim) = claims.get(uid) else {
            return Ok(None);
        };
        self.put(uid, claim)?;
        Ok(Some(claim.clone()))
    }

    /// Gives devices to a claim, unless another has one of them.
    ///
    /// # Errors
    /// If that cannot be written; the claim is prepared when it is asked for again.
    pub(crate) fn hold(&self, uid: &str, wanted: &Prepared) -> Result<Held, Refusal> {
        let mut claims = self.lock();
        if let Some((other, device)) = checkpoint::holder(&claims, uid, &wanted.devices) {
            let words = format!("{device} is held by {}/{}", other.namespace, other.name);
            return Ok(Held::ByAnother(words));
        }
        let mut next = claims.clone();
        next.insert(uid.to_owned(), wanted.clone());
        self.save(&next)?;
        *claims = next;
        self.put(uid, wanted)?;
        Ok(Held::Yes)
    }

    /// Takes everything from a claim. One that is not known has nothing.
    ///
    /// # Errors
    /// If that cannot be written.
    pub(crate) fn release(&self, uid: &str) -> Result<(), Refusal> {
        let mut claims = self.lock();
        if let Some(name) = cdi::file_name(uid) {
            let path = self.places.cdi.join(name);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(unwritten(&path, &error));
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

    /// The RDMA device of each device that claims hold.
    pub(crate) fn devices(&self) -> BTreeMap<String, String> {
        let claims = self.lock();
        let devices = claims.values().flat_map(|claim| &claim.devices);
        devices
            .map(|granted| (granted.device.clone(), granted.hca.clone()))
            .collect()
    }

    /// Which claims hold which RDMA devices, one entry for each pair; an administrator's claim holds none.
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

    /// Told at each claim that is let go from now on.
    pub(crate) fn freed(&self) -> watch::Receiver<()> {
        self.freed.subscribe()
    }

    /// Puts lost files back, and follows a driver that was loaded anew and gave its devices other
    /// numbers.
    ///
    /// # Errors
    /// If that cannot be written.
    pub(crate) fn tend(&self, facts: &Facts) -> Result<(), Refusal> {
        let mut claims = self.lock();
        let mut next = claims.clone();
        for device in next.values_mut().flat_map(|claim| &mut claim.devices) {
            let files = allotment::files(facts, &device.hca);
            // A device that is gone may come back; its pod keeps what it was given.
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
            .try_for_each(|(uid, claim)| self.put(uid, claim))
    }

    fn save(&self, claims: &Claims) -> Result<(), Refusal> {
        let path = &self.places.checkpoint;
        let bytes = checkpoint::render(claims, &self.boot_id)
            .map_err(|error| unwritten(path, &error.into()))?;
        replace(path, &bytes).map_err(|error| unwritten(path, &error))
    }

    /// Writes a claim's file, where it does not stand there already.
    fn put(&self, uid: &str, claim: &Prepared) -> Result<(), Refusal> {
        let Some(name) = cdi::file_name(uid) else {
            let words = format!("{uid:?} is no UID of a claim");
            return Err(Refusal::new(Reason::ClaimInvalid, words));
        };
        let Places { cdi, hook, .. } = &self.places;
        let path = cdi.join(name);
        let file = cdi::file(uid, claim, hook.as_deref());
        let bytes = file.to_string().into_bytes();
        if fs::read(&path).is_ok_and(|found| found == bytes) {
            return Ok(());
        }
        // A reboot takes the whole folder.
        fs::create_dir_all(cdi)
            .and_then(|()| replace(&path, &bytes))
            .map_err(|error| unwritten(&path, &error))
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whole or not at all, also when the power goes. A name with a leading point is no file of the
/// runtime's.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or_else(|| Path::new("/"));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let fresh = folder.join(format!(".{name}.new"));
    let mut file = File::create(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    File::open(folder)?.sync_all()
}

fn unwritten(path: &Path, error: &io::Error) -> Refusal {
    let words = format!("{}: {error}", path.display());
    Refusal::new(Reason::DeviceRecordFailed, words)
}

#[cfg(test)]
mod tests;
