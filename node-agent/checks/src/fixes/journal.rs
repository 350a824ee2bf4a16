//! The journal of applied changes: a file with the values from before, by which a later agent can revert them. An entry is
//! valid until the next boot, as the settings are.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crds::FixId;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::step::Change;
use host::atomic_file;

const FILE: &str = "fixes.json";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Contents {
    boot_id: String,
    /// Raw values: another release may know other fixes.
    changes: Vec<Value>,
}

/// The changes that were applied since the node booted.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    boot_id: String,
    changes: BTreeMap<FixId, Change>,
}

impl Journal {
    /// Reads the journal of earlier agents. Where it cannot be read, their changes are not reverted.
    pub fn open(folder: &Path, boot_id: &str) -> Self {
        let path = folder.join(FILE);
        let changes = match read(&path, boot_id) {
            Ok(changes) => changes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error,
                    "cannot read the journal of fixes: earlier fixes will not be reverted");
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

    /// Adds or replaces the entries of these changes.
    ///
    /// # Errors
    /// The file cannot be written. The changes may then not be applied.
    pub fn add(&mut self, changes: impl IntoIterator<Item = Change>) -> io::Result<()> {
        let mut all = self.changes.clone();
        all.extend(changes.into_iter().map(|change| (change.id, change)));
        self.store(all)
    }

    /// Replaces the entry of a fix by its previous one, or removes it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn restore(&mut self, id: FixId, before: Option<Change>) -> io::Result<()> {
        let mut all = self.changes.clone();
        match before {
            Some(change) => all.insert(id, change),
            None => all.remove(&id),
        };
        self.store(all)
    }

    fn store(&mut self, changes: BTreeMap<FixId, Change>) -> io::Result<()> {
        if changes == self.changes {
            return Ok(());
        }
        let values = changes.values().map(serde_json::to_value);
        let contents = Contents {
            boot_id: self.boot_id.clone(),
            changes: values.collect::<Result<_, _>>()?,
        };
        atomic_file::replace(&self.path, &serde_json::to_vec(&contents)?, 0o644)?;
        self.changes = changes;
        Ok(())
    }
}

fn read(path: &Path, boot_id: &str) -> io::Result<BTreeMap<FixId, Change>> {
    let contents: Contents = serde_json::from_slice(&fs::read(path)?)?;
    if contents.boot_id != boot_id {
        return Ok(BTreeMap::new());
    }
    let known = contents
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
    fn the_journal_outlives_the_agent_and_not_the_boot() {
        let folder = tempfile::tempdir().unwrap();
        let first = change(FixId::MaxMapCount, "1000", "65530");
        let mut journal = Journal::open(folder.path(), "boot");
        journal
            .add([first.clone(), change(FixId::TimeWaitReuse, "2", "1")])
            .unwrap();
        journal.restore(FixId::TimeWaitReuse, None).unwrap();
        let next = Journal::open(folder.path(), "boot");
        assert_eq!(next.changes().values().collect::<Vec<_>>(), [&first]);
        assert!(
            Journal::open(folder.path(), "another boot")
                .changes()
                .is_empty()
        );
    }

    #[test]
    fn a_journal_of_another_release_or_an_unreadable_one_is_accepted() {
        let folder = tempfile::tempdir().unwrap();
        let text = r#"{"bootId": "boot", "changes": [{"id": "OfTheNextRelease", "x": 1},
            {"id": "MaxMapCount", "before": "1", "after": "2"}]}"#;
        fs::write(folder.path().join(FILE), text).unwrap();
        assert_eq!(Journal::open(folder.path(), "boot").changes().len(), 1);
        fs::write(folder.path().join(FILE), "{").unwrap();
        assert!(Journal::open(folder.path(), "boot").changes().is_empty());
        let gone = folder.path().join("gone");
        let mut nowhere = Journal::open(&gone, "boot");
        let refused = nowhere.add([change(FixId::MaxMapCount, "1", "2")]);
        assert!(refused.is_err() && nowhere.changes().is_empty());
    }
}
