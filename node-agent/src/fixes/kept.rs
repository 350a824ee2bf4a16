//! What stood on the node before fixes, in a file that outlives agents: without it nothing could be
//! undone. A setting does not outlive its kernel, nor does what was kept of it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crds::FixId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::plan::Change;

const FILE: &str = "fixes.json";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Text {
    boot_id: String,
    /// Another release may know other fixes.
    changes: Vec<Value>,
}

/// The changes that were made since the node booted.
#[derive(Debug)]
pub struct Kept {
    path: PathBuf,
    boot_id: String,
    changes: BTreeMap<FixId, Change>,
}

impl Kept {
    /// Reads what earlier agents kept. A file that says nothing costs no more than that what they did
    /// stays done.
    pub fn open(folder: &Path, boot_id: &str) -> Self {
        let path = folder.join(FILE);
        let changes = match read(&path, boot_id) {
            Ok(changes) => changes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error,
                    "what stood before earlier fixes is not known: they will not be undone");
                BTreeMap::new()
            }
        };
        Self {
            path,
            boot_id: boot_id.to_owned(),
            changes,
        }
    }

    pub fn changes(&self) -> &BTreeMap<FixId, Change> {
        &self.changes
    }

    /// Keeps these, and of the others what there is.
    ///
    /// # Errors
    /// If they are not on the disk: then nothing may be changed.
    pub fn add(&mut self, changes: impl IntoIterator<Item = Change>) -> io::Result<()> {
        let mut all = self.changes.clone();
        all.extend(changes.into_iter().map(|change| (change.id, change)));
        self.store(all)
    }

    /// Puts back what was kept of a fix before.
    ///
    /// # Errors
    /// If that is not on the disk.
    pub fn restore(&mut self, id: FixId, before: Option<Change>) -> io::Result<()> {
        let mut all = self.changes.clone();
        match before {
            Some(change) => all.insert(id, change),
            None => all.remove(&id),
        };
        self.store(all)
    }

    /// Whole or not at all.
    fn store(&mut self, changes: BTreeMap<FixId, Change>) -> io::Result<()> {
        if changes == self.changes {
            return Ok(());
        }
        let values = changes.values().map(serde_json::to_value);
        let text = Text {
            boot_id: self.boot_id.clone(),
            changes: values.collect::<Result<_, _>>()?,
        };
        let fresh = self.path.with_extension("new");
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(&text)?)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        self.changes = changes;
        Ok(())
    }
}

fn read(path: &Path, boot_id: &str) -> io::Result<BTreeMap<FixId, Change>> {
    let text: Text = serde_json::from_slice(&fs::read(path)?)?;
    if text.boot_id != boot_id {
        return Ok(BTreeMap::new());
    }
    let known = text
        .changes
        .into_iter()
        .filter_map(|value| serde_json::from_value::<Change>(value).ok());
    Ok(known.map(|change| (change.id, change)).collect())
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::change;
    use super::*;

    #[test]
    fn what_stood_before_outlives_the_agent_and_not_the_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let first = change(FixId::MaxMapCount, "1000", "65530");
        let mut kept = Kept::open(folder.path(), "boot");
        kept.add([first.clone(), change(FixId::TimeWaitReuse, "2", "1")])
            .unwrap();
        kept.restore(FixId::TimeWaitReuse, None).unwrap();
        let next = Kept::open(folder.path(), "boot");
        assert_eq!(next.changes().values().collect::<Vec<_>>(), [&first]);
        assert!(
            Kept::open(folder.path(), "another boot")
                .changes()
                .is_empty()
        );
    }

    #[test]
    fn a_file_of_another_release_or_none_at_all_is_survived() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"bootId": "boot", "changes": [{"id": "OfTheNextRelease", "x": 1},
            {"id": "MaxMapCount", "before": "1", "after": "2"}]}"#;
        fs::write(folder.path().join(FILE), text).unwrap();
        assert_eq!(Kept::open(folder.path(), "boot").changes().len(), 1);
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(Kept::open(folder.path(), "boot").changes().is_empty());
        let gone = folder.path().join("gone");
        let mut nowhere = Kept::open(&gone, "boot");
        let refused = nowhere.add([change(FixId::MaxMapCount, "1", "2")]);
        assert!(refused.is_err() && nowhere.changes().is_empty());
    }
}
