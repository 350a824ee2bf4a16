//! A folder as the root of a machine. No file outside of it is read, and no file in it can block the reader or fill its
//! memory.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::fault::Problem;
use super::path::FileKind;
use super::root_path;

/// Most bytes that are read of a file.
const LONGEST: usize = 1 << 20;

/// Most bytes that are read of a process's mappings.
const MAPPINGS: u64 = 16 << 20;

/// A type of file system, by the kernel's magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileSystem(i64);

/// The file systems of cgroups, version 1 and 2.
pub(super) const CGROUP: FileSystem = FileSystem(0x0027_e0eb);
pub(super) const CGROUP_2: FileSystem = FileSystem(0x6367_7270);

/// The device /dev/kmsg.
const KERNEL_LOG: FileKind = FileKind::Device {
    major: 1,
    minor: 11,
};

/// Longest record of the kernel log (CONSOLE_EXT_LOG_MAX).
const RECORD: usize = 8 << 10;

/// Most records that are read, and most that are kept (the last ones).
const RECORDS: usize = 256 << 10;
const KEPT: usize = 1024;

/// Most entries of a folder that are listed.
const MOST: usize = 16 << 10;

/// The folder, held open.
#[derive(Debug)]
pub(super) struct Folder(OwnedFd);

impl Folder {
    pub(super) fn open(root: &Path) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(root, flags, Mode::empty())?))
    }

    /// Opens a folder whose path is the kernel's, such as the root of a process, as a root of its own.
    pub(super) fn inside(&self, path: &str) -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::openat(
            &self.0,
            path,
            flags,
            Mode::empty(),
        )?))
    }

    fn at(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        root_path::open(&self.0, path, flags)
    }

    pub(super) fn read(&self, path: &str) -> Result<Vec<u8>, Problem> {
        // O_NONBLOCK: opening a pipe does not block. Readers name no devices.
        let file = self.at(path, OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode);
        if kind != FileType::RegularFile {
            return Err(Problem::NotAFile);
        }
        bytes(std::fs::File::from(file), LONGEST)
    }

    /// Reads a file whose path is untrusted. Only regular files with contents are opened: opening some devices has effects
    /// (a watchdog starts), and reading some kernel files consumes their contents. Those have size 0 and read as empty.
    pub(super) fn read_named(&self, path: &str, longest: usize) -> Result<Vec<u8>, Problem> {
        let found = self.at(path, OFlags::PATH)?;
        let metadata = rustix::fs::fstat(&found)?;
        if FileType::from_raw_mode(metadata.st_mode) != FileType::RegularFile {
            return Err(Problem::NotAFile);
        }
        match u64::try_from(metadata.st_size) {
            Ok(0) => return Ok(Vec::new()),
            Ok(size) if size <= longest as u64 => {}
            _ => return Err(Problem::TooLarge),
        }
        bytes(reopen(&found)?, longest)
    }

    /// Reads a file, if it is on that type of file system.
    pub(super) fn read_of_kind(
        &self,
        path: &str,
        FileSystem(kind): FileSystem,
    ) -> Result<Vec<u8>, Problem> {
        let found = self.at(path, OFlags::PATH)?;
        let metadata = rustix::fs::fstat(&found)?;
        let regular = FileType::from_raw_mode(metadata.st_mode) == FileType::RegularFile;
        if !regular || rustix::fs::fstatfs(&found)?.f_type != kind {
            return Err(Problem::NotAFile);
        }
        bytes(reopen(&found)?, LONGEST)
    }

    /// Searches a line, up to [`MAPPINGS`] bytes.
    pub(super) fn has_line(
        &self,
        path: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<bool, Problem> {
        let file = std::fs::File::from(self.at(path, OFlags::RDONLY | OFlags::NONBLOCK)?);
        let lines = BufReader::new(file.take(MAPPINGS)).split(b'\n');
        let mut lines = lines.map_while(Result::ok);
        Ok(lines.any(|line| str::from_utf8(&line).is_ok_and(&wanted)))
    }

    /// The wanted lines of a text file, or of the kernel log up to its last record.
    pub(super) fn lines(
        &self,
        path: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<String, Problem> {
        if self.node(path)? != KERNEL_LOG {
            let bytes = self.read(path)?;
            let text = String::from_utf8(bytes).map_err(|_| Problem::NotText)?;
            let lines: Vec<&str> = text.lines().filter(|line| wanted(line)).collect();
            return Ok(lines.join("\n"));
        }
        let log = self.at(path, OFlags::RDONLY | OFlags::NONBLOCK)?;
        let mut lines: Vec<String> = Vec::new();
        let mut record = vec![0; RECORD];
        for _ in 0..RECORDS {
            let length = match rustix::io::read(&log, &mut record) {
                Ok(0) | Err(Errno::AGAIN) => break,
                Ok(length) => length,
                // EPIPE: the record was overwritten. EINVAL: it is longer than the buffer.
                Err(Errno::PIPE | Errno::INVAL | Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let text = String::from_utf8_lossy(&record[..length]);
            // Further lines of a record are key-value pairs.
            if let Some(line) = text.lines().next().filter(|line| wanted(line)) {
                if lines.len() == KEPT {
                    lines.remove(0);
                }
                lines.push(line.to_owned());
            }
        }
        Ok(lines.join("\n"))
    }

    pub(super) fn list(&self, path: &str) -> Result<Vec<String>, Problem> {
        self.matching(path, |_| true)
    }

    pub(super) fn matching(
        &self,
        path: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<Vec<String>, Problem> {
        let folder = self.at(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for (count, entry) in Dir::read_from(folder)?.enumerate() {
            if count > MOST {
                return Err(Problem::TooLarge);
            }
            let entry = entry?;
            // No file of interest has a name that is not UTF-8.
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            if name != "." && name != ".." && wanted(name) {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn link(&self, path: &str) -> Result<String, Problem> {
        let link = self.at(path, OFlags::PATH | OFlags::NOFOLLOW)?;
        let metadata = rustix::fs::fstat(&link)?;
        if FileType::from_raw_mode(metadata.st_mode) != FileType::Symlink {
            return Err(Errno::INVAL.into());
        }
        let target = rustix::fs::readlinkat(link.as_fd(), "", Vec::new())?;
        target.into_string().map_err(|_| Problem::NotText)
    }

    pub(super) fn node(&self, path: &str) -> Result<FileKind, Problem> {
        let metadata = rustix::fs::fstat(self.at(path, OFlags::PATH)?)?;
        Ok(match FileType::from_raw_mode(metadata.st_mode) {
            FileType::RegularFile => FileKind::File,
            FileType::Directory => FileKind::Folder,
            FileType::CharacterDevice => FileKind::Device {
                major: rustix::fs::major(metadata.st_rdev),
                minor: rustix::fs::minor(metadata.st_rdev),
            },
            _ => FileKind::Other,
        })
    }
}

/// Opens for reading the very file that was found, not what its path leads to by now.
fn reopen(found: &OwnedFd) -> Result<std::fs::File, Errno> {
    let path = format!("/proc/self/fd/{}", found.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

/// Reads a whole file of at most `longest` bytes.
fn bytes(file: std::fs::File, longest: usize) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    let read = file.take(longest as u64 + 1).read_to_end(&mut bytes);
    read.map_err(|error| {
        Problem::Errno(
            error
                .raw_os_error()
                .unwrap_or_else(|| Errno::IO.raw_os_error()),
        )
    })?;
    if bytes.len() > longest {
        return Err(Problem::TooLarge);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_after_invalid_text_and_a_file_of_another_file_system_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("maps"), b"\xff\xfe\nlast").unwrap();
        let opened = Folder::open(folder.path()).unwrap();
        assert_eq!(opened.has_line("maps", |line| line == "last"), Ok(true));
        assert_eq!(opened.has_line("maps", |line| line == "first"), Ok(false));
        for kind in [CGROUP, CGROUP_2] {
            assert_eq!(opened.read_of_kind("maps", kind), Err(Problem::NotAFile));
        }
        let proc = Folder::open(Path::new("/proc")).unwrap();
        let kind = FileSystem(0x9fa0);
        assert!(!proc.read_of_kind("self/status", kind).unwrap().is_empty());
    }
}
