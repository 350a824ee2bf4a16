//! Files of a machine below one root, from a folder or a recording. Records what could not be read, and, on request,
//! everything that was read.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::str::FromStr;

use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::fault::{Fault, Problem};
use super::folder::{FileSystem, Folder};
use super::path::{FileKind, follow, join};
use super::recording::{Entry, Recording};

/// Most faults that are kept; a failing device causes hundreds.
const FAULTS: usize = 256;

/// Characters in names of devices, files and modules.
const NAME: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:,@+-";

#[derive(Debug)]
enum Source {
    Folder(Folder),
    Recording(Recording),
}

/// The files of a machine.
#[derive(Debug)]
pub struct Tree {
    source: Source,
    /// Paths whose files cannot be read, and why.
    hidden: Option<(&'static [&'static str], Problem)>,
    faults: RefCell<BTreeSet<Fault>>,
    kept: Option<RefCell<Recording>>,
}

impl Tree {
    /// A machine with this root folder.
    ///
    /// # Errors
    /// The folder cannot be opened.
    pub fn folder(root: &Path) -> io::Result<Self> {
        Ok(Self::of(Source::Folder(Folder::open(root)?)))
    }

    /// A recorded machine.
    pub fn recording(recording: Recording) -> Self {
        Self::of(Source::Recording(recording))
    }

    fn of(source: Source) -> Self {
        Self {
            source,
            hidden: None,
            faults: RefCell::default(),
            kept: None,
        }
    }

    /// Keeps everything that is read from now on.
    #[must_use]
    pub fn keeping(mut self) -> Self {
        self.kept = Some(RefCell::default());
        self
    }

    /// Refuses to read files below these paths from now on.
    #[must_use]
    pub fn hiding(mut self, paths: &'static [&'static str], why: Problem) -> Self {
        self.hidden = Some((paths, why));
        self
    }

    /// Everything that was read, if it is kept.
    pub fn kept(&self) -> Option<Recording> {
        self.kept.as_ref().map(|kept| kept.borrow().clone())
    }

    /// What could not be read so far.
    pub fn faults(&self) -> Vec<Fault> {
        self.faults.borrow().iter().cloned().collect()
    }

    /// Adds a fault: something that could not be read or parsed.
    pub fn note(&self, path: &str, problem: Problem) {
        let mut faults = self.faults.borrow_mut();
        if faults.len() < FAULTS {
            let path = path.to_owned();
            faults.insert(Fault { path, problem });
        }
    }

    /// A text that may be absent, trimmed.
    pub fn text(&self, path: &str) -> Option<String> {
        self.seen(path, self.try_text(path))
    }

    /// A text that must be there.
    pub fn need(&self, path: &str) -> Option<String> {
        self.needed(path, self.try_text(path))
    }

    /// A text, or why it cannot be read. Adds no fault.
    pub fn try_text(&self, path: &str) -> Result<String, Problem> {
        let read = match (self.refused(path), &self.source) {
            (Some(why), _) => Err(why),
            (None, Source::Folder(folder)) => folder
                .read(path)
                .and_then(|bytes| String::from_utf8(bytes).map_err(|_| Problem::NotText)),
            (None, Source::Recording(recording)) => recording.read(path),
        };
        let read = read.map(|text| text.trim().to_owned());
        self.keep(path, || match &read {
            Ok(text) => Entry::Text(text.clone()),
            Err(problem) => Entry::Fault(problem.clone()),
        });
        read
    }

    /// The text of a file whose path is untrusted, or why it is not read. Adds no fault.
    pub(super) fn named_file(&self, path: &str, longest: usize) -> Result<String, Problem> {
        let text = match &self.source {
            Source::Folder(folder) => folder
                .read_named(path, longest)
                .and_then(|bytes| String::from_utf8(bytes).map_err(|_| Problem::NotText))?,
            Source::Recording(recording) => recording.read(path)?,
        };
        match text.len() {
            length if length > longest => Err(Problem::TooLarge),
            _ => Ok(text),
        }
    }

    /// The text of a kernel file below an untrusted root, if it is on that type of file system; or why it is not read.
    /// Adds no fault.
    pub(super) fn of_kind(&self, path: &str, kind: FileSystem) -> Result<String, Problem> {
        match &self.source {
            Source::Folder(folder) => {
                let bytes = folder.read_of_kind(path, kind)?;
                String::from_utf8(bytes).map_err(|_| Problem::NotText)
            }
            Source::Recording(recording) => recording.read(path),
        }
    }

    /// True where a file has such a line; false where it cannot be read. Adds no fault.
    pub(super) fn has_line(&self, path: &str, wanted: impl Fn(&str) -> bool) -> bool {
        let found = match &self.source {
            Source::Folder(folder) => folder.has_line(path, wanted),
            Source::Recording(recording) => {
                let text = recording.read(path);
                text.map(|text| text.lines().any(wanted))
            }
        };
        found.unwrap_or(false)
    }

    /// The wanted lines of a log; the others are not recorded either. None where the log is absent, or where this process
    /// has no right to read it.
    pub fn lines(&self, path: &str, wanted: impl Fn(&str) -> bool) -> Option<String> {
        let read = match &self.source {
            Source::Folder(folder) => folder.lines(path, wanted),
            Source::Recording(recording) => recording.read(path),
        };
        self.keep(path, || match &read {
            Ok(text) => Entry::Text(text.clone()),
            Err(problem) => Entry::Fault(problem.clone()),
        });
        let refused = [Errno::PERM, Errno::ACCESS].map(Problem::from);
        match read {
            Err(problem) if refused.contains(&problem) => None,
            read => self.seen(path, read),
        }
    }

    /// A number or any other value, which may be absent.
    pub fn value<T: FromStr>(&self, path: &str) -> Option<T> {
        self.parsed(path, self.text(path)?, |text| text.parse().ok())
    }

    /// Parses a text. A text that cannot be parsed is a fault.
    pub fn parsed<T>(
        &self,
        path: &str,
        text: impl AsRef<str>,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = text.as_ref();
        let parsed = parse(text);
        if parsed.is_none() {
            self.note(path, Problem::malformed(text));
        }
        parsed
    }

    /// A value in JSON, which may be absent.
    pub(super) fn json<T: DeserializeOwned>(&self, path: &str) -> Option<T> {
        self.parsed(path, self.text(path)?, |text| {
            serde_json::from_str(text).ok()
        })
    }

    /// Names in a folder, sorted; none where it is absent.
    pub fn list(&self, path: &str) -> Vec<String> {
        let listed = match &self.source {
            Source::Folder(folder) => folder.list(path),
            Source::Recording(recording) => recording.list(path),
        };
        self.keep(path, || match &listed {
            Ok(_) => Entry::Folder,
            Err(problem) => Entry::Fault(problem.clone()),
        });
        let mut names = self.seen(path, listed).unwrap_or_default();
        // No device, file or module has other characters in its name.
        names.retain(|name| name.bytes().all(|byte| NAME.contains(&byte)));
        for name in &names {
            self.keep_name(path, name);
        }
        names
    }

    /// The wanted names in a folder, sorted; the others are not kept in memory.
    pub fn matching(&self, path: &str, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let sound = |name: &str| wanted(name) && name.bytes().all(|byte| NAME.contains(&byte));
        let listed = match &self.source {
            Source::Folder(folder) => folder.matching(path, sound),
            Source::Recording(recording) => recording.list(path).map(|mut names| {
                names.retain(|name| sound(name));
                names
            }),
        };
        self.seen(path, listed).unwrap_or_default()
    }

    /// The tree with this path as root, such as the root of a process.
    ///
    /// # Errors
    /// The folder cannot be opened.
    pub(super) fn inside(&self, path: &str) -> Result<Self, Problem> {
        Ok(Self::of(match &self.source {
            Source::Folder(folder) => Source::Folder(folder.inside(path)?),
            Source::Recording(recording) => Source::Recording(recording.inside(path)?),
        }))
    }

    /// The target of a link; none where there is no link.
    pub fn link(&self, path: &str) -> Option<String> {
        self.seen(path, self.try_link(path))
    }

    /// The target of a link, or why it cannot be read. Adds no fault.
    pub(super) fn try_link(&self, path: &str) -> Result<String, Problem> {
        let target = match &self.source {
            Source::Folder(folder) => folder.link(path),
            Source::Recording(recording) => recording.link(path),
        };
        if let (Ok(target), Some((folder, name))) = (&target, path.rsplit_once('/')) {
            self.keep_at(folder, name, Entry::Link(target.clone()));
        }
        target
    }

    /// The last part of a link's target: in sysfs the name of a driver or device.
    pub fn link_name(&self, path: &str) -> Option<String> {
        let target = self.link(path)?;
        target.rsplit('/').next().map(str::to_owned)
    }

    /// The type of a file after links; none where it is absent.
    pub fn node(&self, path: &str) -> Option<FileKind> {
        let node = match &self.source {
            Source::Folder(folder) => folder.node(path),
            Source::Recording(recording) => recording.node(path),
        };
        self.keep(path, || match &node {
            Ok(FileKind::Device { major, minor }) => Entry::Device {
                major: *major,
                minor: *minor,
            },
            Ok(FileKind::Folder) => Entry::Folder,
            Ok(FileKind::File | FileKind::Other) => Entry::There,
            Err(problem) => Entry::Fault(problem.clone()),
        });
        self.seen(path, node)
    }

    fn refused(&self, path: &str) -> Option<Problem> {
        let (paths, why) = self.hidden.as_ref()?;
        let below = |hidden: &&str| {
            path.strip_prefix(hidden)
                .is_some_and(|p| p.starts_with('/'))
        };
        paths.iter().any(below).then(|| why.clone())
    }

    fn seen<T>(&self, path: &str, read: Result<T, Problem>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(Problem::ABSENT) => None,
            Err(problem) => {
                self.note(path, problem);
                None
            }
        }
    }

    fn needed<T>(&self, path: &str, read: Result<T, Problem>) -> Option<T> {
        read.map_err(|problem| self.note(path, problem)).ok()
    }

    fn keep(&self, path: &str, entry: impl FnOnce() -> Entry) {
        if self.kept.is_some()
            && let Some((folder, name)) = self.resolve(path)
        {
            self.keep_at(&folder, &name, entry());
        }
    }

    fn keep_name(&self, folder: &str, name: &str) {
        if self.kept.is_some()
            && let Some((above, folder)) = self.resolve(folder)
        {
            let path = join(&above, &folder);
            match self.source_link(&join(&path, name)) {
                Some(target) => self.keep_at(&path, name, Entry::Link(target)),
                None => self.keep_at(&path, name, Entry::There),
            }
        }
    }

    fn keep_at(&self, folder: &str, name: &str, entry: Entry) {
        let Some(kept) = &self.kept else { return };
        let folder = self
            .resolve(folder)
            .map_or_else(|| folder.to_owned(), |(above, name)| join(&above, &name));
        kept.borrow_mut().insert(&join(&folder, name), entry);
    }

    fn source_link(&self, path: &str) -> Option<String> {
        match &self.source {
            Source::Folder(folder) => folder.link(path).ok(),
            Source::Recording(recording) => recording.link(path).ok(),
        }
    }

    /// Resolves the links of a path; returns folder and name, and keeps the links.
    fn resolve(&self, path: &str) -> Option<(String, String)> {
        let kept = self.kept.as_ref()?;
        let end = follow(path, |here| {
            let target = self.source_link(here)?;
            kept.borrow_mut().insert(here, Entry::Link(target.clone()));
            Some(target)
        });
        let end = end.ok()?;
        let (folder, name) = end.rsplit_once('/').unwrap_or(("", &end));
        (!name.is_empty()).then(|| (folder.to_owned(), name.to_owned()))
    }
}
