//! A recording: a machine's files as one text, with a section for each folder and a line for each file, link or device.
//!
//! ```text
//! # from https://example.org/a-public-dump
//! [sys/class/infiniband]
//! mlx5_0 -> ../../devices/pci0000:15/0000:15:01.0/0000:18:00.0/infiniband/mlx5_0
//! [sys/devices/pci0000:15/0000:15:01.0/0000:18:00.0/infiniband/mlx5_0]
//! fw_ver = 28.41.1000
//! ports/1/gid_attrs/types/4 ! EINVAL
//! [dev/infiniband]
//! uverbs0 : 231 192
//! [proc/1]
//! limits = Limit                     Soft Limit
//! | Max locked memory         8388608
//! [sys/class]
//! net ?
//! empty/
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Bound;

use rustix::io::Errno;

use super::fault::Problem;
use super::path::{FileKind, follow, join};

/// What was found at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    Text(String),
    Link(String),
    /// A character device.
    Device {
        major: u32,
        minor: u32,
    },
    Folder,
    /// It exists; its contents were not read.
    There,
    /// It could not be read.
    Fault(Problem),
}

impl Entry {
    /// The entry with more information about a path has the higher rank.
    fn rank(&self) -> u8 {
        match self {
            Self::There => 0,
            Self::Folder => 1,
            Self::Fault(_) => 2,
            Self::Device { .. } => 3,
            Self::Text(_) => 4,
            Self::Link(_) => 5,
        }
    }
}

/// Files of a machine, by path below its root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording(BTreeMap<String, Entry>);

/// Why a text is not a recording.
#[derive(Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Unreadable {
    line: usize,
    what: &'static str,
}

impl Recording {
    /// Adds what was found at a path, unless more is known already.
    pub fn insert(&mut self, path: &str, entry: Entry) {
        if entry == Entry::Fault(Problem::ABSENT) || path.is_empty() {
            return;
        }
        let known = self.0.get(path).is_some_and(|known| {
            known.rank() > entry.rank()
                || (known.rank() == entry.rank() && !matches!(entry, Entry::Text(_)))
        });
        if !known {
            self.0.insert(path.to_owned(), entry);
        }
    }

    /// Removes a path and everything below it.
    pub fn remove(&mut self, path: &str) {
        let below = format!("{path}/");
        self.0
            .retain(|known, _| known != path && !known.starts_with(&below));
    }

    /// Replaces whatever is at a path.
    pub fn replace(&mut self, path: &str, entry: Entry) {
        let path = self.resolved(path);
        self.remove(&path);
        self.0.insert(path, entry);
    }

    /// Resolves the links of a path.
    pub fn resolved(&self, path: &str) -> String {
        self.resolve(path).unwrap_or_else(|_| path.to_owned())
    }

    /// Every path with what was found there.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.iter().map(|(path, entry)| (path.as_str(), entry))
    }

    /// Returns the machine with each text changed.
    #[must_use]
    pub fn map_texts(&self, mut change: impl FnMut(&str, &str) -> String) -> Self {
        let changed = self.0.iter().map(|(path, entry)| {
            let entry = match entry {
                Entry::Text(text) => Entry::Text(change(path, text)),
                other => other.clone(),
            };
            (path.clone(), entry)
        });
        Self(changed.collect())
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// A line has no entry, continues none, or repeats a path; the error has its number.
    pub fn parse(text: &str) -> Result<Self, Unreadable> {
        let mut recording = Self::default();
        let mut section = String::new();
        let mut last: Option<String> = None;
        for (number, line) in text.lines().enumerate() {
            let wrong = |what| Unreadable {
                line: number + 1,
                what,
            };
            if let Some(more) = line.strip_prefix("| ").or_else(|| line.strip_prefix('|')) {
                let path = last.as_ref().ok_or_else(|| wrong("continues no entry"))?;
                let Some(Entry::Text(text)) = recording.0.get_mut(path) else {
                    return Err(wrong("continues no text"));
                };
                text.push('\n');
                text.push_str(&unescape(more));
            } else if line.trim().is_empty() || line.starts_with('#') {
                last = None;
            } else if let Some(folder) = line.strip_prefix('[') {
                let folder = folder.strip_suffix(']').ok_or_else(|| wrong("no end"))?;
                folder.clone_into(&mut section);
                last = None;
            } else {
                let (name, entry) = entry(line).ok_or_else(|| wrong("no entry"))?;
                let path = join(&section, name);
                if recording.0.insert(path.clone(), entry).is_some() {
                    return Err(wrong("path occurs twice"));
                }
                last = Some(path);
            }
        }
        Ok(recording)
    }

    /// The text form, with the comment `above` before every section.
    pub fn render(&self, above: &str) -> String {
        let mut text = String::new();
        let mut section = None;
        let split = |path: &String| -> (String, String) {
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            (folder.to_owned(), name.to_owned())
        };
        let grouped = self.0.iter().map(|(path, entry)| (split(path), entry));
        for ((folder, name), entry) in grouped.collect::<BTreeMap<_, _>>() {
            if section.as_ref() != Some(&folder) {
                let _ = writeln!(text, "{above}\n[{folder}]");
                section = Some(folder);
            }
            let _ = match entry {
                Entry::Text(content) => {
                    let lines = escape(content).replace('\n', "\n| ");
                    writeln!(text, "{name} = {lines}")
                }
                Entry::Link(target) => writeln!(text, "{name} -> {target}"),
                Entry::Device { major, minor } => writeln!(text, "{name} : {major} {minor}"),
                Entry::Folder => writeln!(text, "{name}/"),
                Entry::There => writeln!(text, "{name} ?"),
                Entry::Fault(problem) => writeln!(text, "{name} ! {problem}"),
            };
        }
        text
    }

    pub(super) fn read(&self, path: &str) -> Result<String, Problem> {
        let path = self.resolve(path)?;
        match self.0.get(&path) {
            Some(Entry::Text(text)) => Ok(text.clone()),
            Some(Entry::Fault(problem)) => Err(problem.clone()),
            Some(Entry::There) => Err(Problem::NotRecorded),
            Some(_) => Err(Problem::NotAFile),
            None if self.has_below(&path) => Err(Problem::NotAFile),
            None => Err(Problem::ABSENT),
        }
    }

    pub(super) fn list(&self, path: &str) -> Result<Vec<String>, Problem> {
        let path = self.resolve(path)?;
        match self.0.get(&path) {
            Some(Entry::Fault(problem)) => return Err(problem.clone()),
            Some(Entry::Folder) => {}
            Some(Entry::There) if !self.has_below(&path) => return Err(Problem::NotRecorded),
            Some(Entry::There) => {}
            Some(_) => return Err(Errno::NOTDIR.into()),
            None if path.is_empty() || self.has_below(&path) => {}
            None => return Err(Problem::ABSENT),
        }
        let prefix = join(&path, "");
        let mut names: Vec<String> = self
            .below(&prefix)
            .filter_map(|(found, _)| found[prefix.len()..].split('/').next())
            .map(str::to_owned)
            .collect();
        names.dedup();
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    /// The files below a path, as a recording of their own.
    pub(super) fn inside(&self, path: &str) -> Result<Self, Problem> {
        match self.0.get(path) {
            Some(Entry::Fault(problem)) => return Err(problem.clone()),
            None if !self.has_below(path) => return Err(Problem::ABSENT),
            _ => {}
        }
        let prefix = join(path, "");
        let below = self.below(&prefix);
        let below = below.map(|(path, entry)| (path[prefix.len()..].to_owned(), entry.clone()));
        Ok(Self(below.collect()))
    }

    pub(super) fn link(&self, path: &str) -> Result<String, Problem> {
        let path = match path.rsplit_once('/') {
            Some((folder, name)) => join(&self.resolve(folder)?, name),
            None => path.to_owned(),
        };
        match self.0.get(&path) {
            Some(Entry::Link(target)) => Ok(target.clone()),
            Some(Entry::Fault(problem)) => Err(problem.clone()),
            Some(_) => Err(Errno::INVAL.into()),
            None if self.has_below(&path) => Err(Errno::INVAL.into()),
            None => Err(Problem::ABSENT),
        }
    }

    pub(super) fn node(&self, path: &str) -> Result<FileKind, Problem> {
        let path = self.resolve(path)?;
        match self.0.get(&path) {
            Some(Entry::Device { major, minor }) => Ok(FileKind::Device {
                major: *major,
                minor: *minor,
            }),
            Some(Entry::Text(_)) => Ok(FileKind::File),
            Some(Entry::Folder) => Ok(FileKind::Folder),
            Some(Entry::Fault(problem)) => Err(problem.clone()),
            _ if path.is_empty() || self.has_below(&path) => Ok(FileKind::Folder),
            Some(_) => Ok(FileKind::Other),
            None => Err(Problem::ABSENT),
        }
    }

    fn below(&self, prefix: &str) -> impl Iterator<Item = (&String, &Entry)> {
        let from = (Bound::Excluded(prefix), Bound::Unbounded);
        self.0
            .range::<str, _>(from)
            .take_while(move |(path, _)| path.starts_with(prefix))
    }

    fn has_below(&self, path: &str) -> bool {
        self.below(&join(path, "")).next().is_some()
    }

    fn resolve(&self, path: &str) -> Result<String, Problem> {
        follow(path, |here| match self.0.get(here) {
            Some(Entry::Link(target)) => Some(target.clone()),
            _ => None,
        })
    }
}

/// Parses one line. A name contains no separator.
fn entry(line: &str) -> Option<(&str, Entry)> {
    if let Some((name, text)) = line.split_once(" =")
        && !name.contains(' ')
    {
        let text = text.strip_prefix(' ').unwrap_or(text);
        return Some((name, Entry::Text(unescape(text))));
    }
    let mut words = line.splitn(3, ' ');
    let (name, sign, rest) = (words.next()?, words.next(), words.next());
    let entry = match (sign, rest) {
        (None, None) => return Some((name.strip_suffix('/')?, Entry::Folder)),
        (Some("?"), None) => Entry::There,
        (Some("->"), Some(target)) => Entry::Link(target.to_owned()),
        (Some("!"), Some(problem)) => Entry::Fault(problem.parse().ok()?),
        (Some(":"), Some(numbers)) => {
            let (major, minor) = numbers.split_once(' ')?;
            Entry::Device {
                major: major.parse().ok()?,
                minor: minor.parse().ok()?,
            }
        }
        _ => return None,
    };
    Some((name, entry))
}

/// Escapes carriage returns, which would count as part of the line end, and NUL bytes of command lines.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('\r', "\\r")
        .replace('\0', "\\0")
}

fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut escaped = false;
    for sign in text.chars() {
        match (escaped, sign) {
            (false, '\\') => escaped = true,
            (true, 'r') => {
                out.push('\r');
                escaped = false;
            }
            (true, '0') => {
                out.push('\0');
                escaped = false;
            }
            (_, sign) => {
                out.push(sign);
                escaped = false;
            }
        }
    }
    out
}
