//! Paths below the root of a machine: their links, and the kinds of files.

use rustix::io::Errno;

use super::fault::Problem;

/// Most links in one path.
const LINKS: usize = 40;

/// The type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    File,
    Folder,
    /// A character device.
    Device {
        major: u32,
        minor: u32,
    },
    Other,
}

/// Resolves the links of a path as after chroot.
pub(super) fn follow(
    path: &str,
    mut link: impl FnMut(&str) -> Option<String>,
) -> Result<String, Problem> {
    let mut links = 0;
    let mut rest: Vec<String> = parts(path).rev().map(str::to_owned).collect();
    let mut done: Vec<String> = Vec::new();
    while let Some(part) = rest.pop() {
        if part == ".." {
            done.pop();
            continue;
        }
        done.push(part);
        let Some(target) = link(&done.join("/")) else {
            continue;
        };
        links += 1;
        if links > LINKS {
            return Err(Errno::LOOP.into());
        }
        if target.starts_with('/') {
            done.clear();
        } else {
            done.pop();
        }
        rest.extend(parts(&target).rev().map(str::to_owned));
    }
    Ok(done.join("/"))
}

/// The parts of a path without `.` and empty ones.
fn parts(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/')
        .filter(|part| !part.is_empty() && *part != ".")
}

pub(super) fn join(folder: &str, name: &str) -> String {
    if folder.is_empty() {
        name.to_owned()
    } else {
        format!("{folder}/{name}")
    }
}
