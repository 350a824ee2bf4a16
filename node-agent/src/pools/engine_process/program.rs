//! The program of engine processes: a copy in the agent's state folder with the libraries that it is linked with, because
//! a process outlives the container from whose file system it was started.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sha2::{Digest, Sha256};
use tokio::process::Command;

/// Name of the copies, followed by their hash.
pub(super) const PREFIX: &str = "program-";

/// Name of the program in its copy.
const PROGRAM: &str = "engine";

/// Name of the folder with the libraries in a copy.
const LIBRARIES: &str = "libraries";

/// What a copy takes from the root folder of the libraries, as Debian has them.
const FOLDERS: [&str; 3] = ["lib", "usr/lib", "etc/libibverbs.d"];

/// Folders on which the node's are mounted while a device is opened.
const MOUNT_POINTS: [&str; 2] = ["sys", "dev"];

/// Bytes that are read at a time.
const PART: usize = 64 << 10;

#[cfg(target_arch = "x86_64")]
const LOADER: &str = "ld-linux-x86-64.so.2";
#[cfg(target_arch = "aarch64")]
const LOADER: &str = "ld-linux-aarch64.so.1";

/// A copy of the program.
#[derive(Debug)]
pub(super) struct Program {
    folder: PathBuf,
    /// Absent: the program runs with the libraries of the agent's file system.
    libraries: Option<Libraries>,
}

/// The libraries of a copy.
#[derive(Debug)]
struct Libraries {
    root: PathBuf,
    loader: PathBuf,
}

/// A file of a copy: its source, or the target of the link that it is.
enum Source {
    File(PathBuf),
    Link(PathBuf),
}

impl Program {
    /// Copies the program and the libraries below `root`, if any, unless a whole copy exists, and removes other copies.
    /// Processes that run from those go on.
    ///
    /// # Errors
    /// A file is missing, or cannot be copied.
    pub(super) fn install(within: &Path, program: &Path, root: Option<&Path>) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        files.insert(PathBuf::from(PROGRAM), Source::File(program.to_owned()));
        if let Some(root) = root {
            for part in FOLDERS {
                let to = Path::new(LIBRARIES).join(part);
                list(&root.join(part), &to, &mut files)?;
            }
        }
        let hash = hash(&files)?;
        let folder = within.join(format!("{PREFIX}{hash}"));
        if !is_whole(&folder, &hash) {
            for entry in fs::read_dir(within)? {
                let entry = entry?;
                if entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) {
                    remove(&entry.path())?;
                }
            }
            // Renamed when it is complete on the disk: after a power loss the copy is absent or whole.
            let fresh = within.join(format!("{PREFIX}new"));
            copy(&files, &fresh)?;
            sync(&fresh).map_err(|error| of(&fresh, &error))?;
            fs::rename(&fresh, &folder)?;
            File::open(within)?.sync_all()?;
        }
        let libraries = root.map(|_| Libraries::of(&folder)).transpose()?;
        Ok(Self { folder, libraries })
    }

    /// A command that runs the program without the agent's environment. The process is killed with its handle, and the agent reads its
    /// standard error.
    pub(super) fn command(&self) -> Command {
        let program = self.folder.join(PROGRAM);
        let mut command = match &self.libraries {
            None => Command::new(program),
            Some(libraries) => {
                let mut command = Command::new(&libraries.loader);
                command
                    .args(["--inhibit-cache", "--library-path"])
                    .arg(libraries.path())
                    .arg(program);
                command
            }
        };
        command
            .env_clear()
            .current_dir("/")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// The root folder of the libraries with which RDMA devices are opened.
    pub(super) fn libraries(&self) -> Option<&Path> {
        self.libraries.as_ref().map(|libraries| &*libraries.root)
    }

    /// Whether a process runs from this copy.
    pub(super) fn is_of(&self, pid: u32) -> bool {
        let identity = |path: &Path| {
            let metadata = fs::metadata(path).ok()?;
            Some((metadata.dev(), metadata.ino()))
        };
        // The kernel started the loader, which then loaded the program.
        let own = match &self.libraries {
            Some(libraries) => identity(&libraries.loader),
            None => identity(&self.folder.join(PROGRAM)),
        };
        own.is_some() && own == identity(Path::new(&format!("/proc/{pid}/exe")))
    }
}

impl Libraries {
    fn of(copy: &Path) -> io::Result<Self> {
        let root = copy.join(LIBRARIES);
        let loaders = folders(&root).map(|folder| folder.join(LOADER));
        // Links of Debian are absolute, so only a file is the loader.
        let loader = loaders
            .into_iter()
            .find(|path| path.symlink_metadata().is_ok_and(|of| of.is_file()))
            .ok_or_else(|| {
                let cause = format!("the libraries of the engine program lack {LOADER}");
                io::Error::new(io::ErrorKind::NotFound, cause)
            })?;
        Ok(Self { root, loader })
    }

    /// The folders of the libraries, as the loader expects them.
    fn path(&self) -> String {
        folders(&self.root)
            .map(|folder| folder.display().to_string())
            .join(":")
    }
}

/// Where Debian has libraries.
fn folders(root: &Path) -> [PathBuf; 2] {
    let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
    ["lib", "usr/lib"].map(|part| root.join(part).join(&triple))
}

/// Lists the files below a folder, which may be absent.
fn list(from: &Path, to: &Path, files: &mut BTreeMap<PathBuf, Source>) -> io::Result<()> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| of(from, &error))?,
    };
    for entry in entries {
        let entry = entry?;
        let (path, to) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_dir() {
            list(&path, &to, files)?;
        } else if kind.is_symlink() {
            files.insert(to, Source::Link(fs::read_link(&path)?));
        } else {
            files.insert(to, Source::File(path));
        }
    }
    Ok(())
}

/// A hash of names and contents, as text.
fn hash(files: &BTreeMap<PathBuf, Source>) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut add = |bytes: &[u8]| {
        hash.update(bytes.len().to_le_bytes());
        hash.update(bytes);
    };
    for (to, source) in files {
        add(to.as_os_str().as_bytes());
        match source {
            Source::Link(target) => add(target.as_os_str().as_bytes()),
            Source::File(path) => {
                let of_file = hash_of_file(path).map_err(|error| of(path, &error))?;
                add(&of_file);
            }
        }
    }
    let hash = hash.finalize();
    Ok(hash[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

/// Reads in parts: what is allocated for a whole program would stay with this process.
fn hash_of_file(path: &Path) -> io::Result<[u8; 32]> {
    let (mut file, mut hash) = (File::open(path)?, Sha256::new());
    let mut part = vec![0; PART];
    loop {
        match file.read(&mut part)? {
            0 => return Ok(hash.finalize().into()),
            count => hash.update(&part[..count]),
        }
    }
}

fn copy(files: &BTreeMap<PathBuf, Source>, folder: &Path) -> io::Result<()> {
    let make = |path: &Path| {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
    };
    for (to, source) in files {
        let to = folder.join(to);
        to.parent().map(make).transpose()?;
        match source {
            Source::Link(target) => symlink(target, to)?,
            // With its permissions.
            Source::File(path) => {
                fs::copy(path, to).map_err(|error| of(path, &error))?;
            }
        }
    }
    MOUNT_POINTS
        .iter()
        .try_for_each(|name| make(&folder.join(LIBRARIES).join(name)))
}

/// Whether a copy has the files of its hash. Earlier releases did not sync theirs, so a power loss could
/// empty files.
fn is_whole(copy: &Path, of: &str) -> bool {
    let mut files = BTreeMap::new();
    // Without the program nothing is read, as in a copy that is absent.
    copy.join(PROGRAM).is_file()
        && list(copy, Path::new(""), &mut files).is_ok()
        && hash(&files).is_ok_and(|found| found == of)
        && MOUNT_POINTS
            .iter()
            .all(|name| copy.join(LIBRARIES).join(name).is_dir())
}

/// Writes a folder and all below it to the disk.
fn sync(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sync(&entry.path())?;
        } else if kind.is_file() {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(folder)?.sync_all()
}

/// Removes a copy. It was a file before it had libraries.
fn remove(path: &Path) -> io::Result<()> {
    if path.symlink_metadata()?.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    }
}

/// Adds the path to an error.
fn of(path: &Path, error: &io::Error) -> io::Error {
    let cause = format!("the engine program: {}: {error}", path.display());
    io::Error::new(error.kind(), cause)
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    /// A root folder with the libraries of this machine that a small program needs.
    fn libraries(root: &Path) {
        let triple = format!("{}-linux-gnu", std::env::consts::ARCH);
        let folder = root.join("lib").join(&triple);
        fs::create_dir_all(&folder).unwrap();
        let system = Path::new("/lib").join(triple);
        for name in [LOADER, "libc.so.6"] {
            fs::copy(system.join(name), folder.join(name)).unwrap();
        }
        symlink("libc.so.6", folder.join("libc.so")).unwrap();
    }

    fn copies(within: &Path) -> Vec<String> {
        let entries = fs::read_dir(within).unwrap().flatten();
        entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    }

    #[tokio::test]
    async fn a_program_runs_from_its_copy_with_the_libraries_of_the_copy_only() {
        let (within, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        libraries(root.path());
        let cat = Path::new("/bin/cat");
        fs::write(within.path().join("program-0123"), "without libraries").unwrap();
        let plain = Program::install(within.path(), cat, None).unwrap();
        let linked = Program::install(within.path(), cat, Some(root.path())).unwrap();
        assert!(plain.libraries().is_none());
        assert_eq!(copies(within.path()).len(), 1, "the others are removed");

        // The source may be gone, as with the container of an agent.
        drop(root);
        let mut child = linked
            .command()
            .arg("/proc/self/maps")
            .arg("-")
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id().unwrap();
        let ready = async {
            while !linked.is_of(pid) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let patience = std::time::Duration::from_secs(20);
        tokio::time::timeout(patience, ready).await.unwrap();
        assert!(!plain.is_of(pid) && !linked.is_of(std::process::id()));
        drop(child.stdin.take());
        let output = tokio::time::timeout(patience, child.wait_with_output());
        let maps = String::from_utf8(output.await.unwrap().unwrap().stdout).unwrap();
        let copy = within.path().display().to_string();
        let mapped = maps.lines().filter_map(|line| line.split(' ').next_back());
        let files = mapped.filter(|path| path.starts_with('/') && path.contains("lib"));
        let files: Vec<_> = files.collect();
        assert!(!files.is_empty(), "{maps}");
        assert!(files.iter().all(|path| path.starts_with(&copy)), "{maps}");
    }

    #[test]
    fn a_copy_is_made_again_only_for_other_files() {
        let (within, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        libraries(root.path());
        let cat = Path::new("/bin/cat");
        let install = || Program::install(within.path(), cat, Some(root.path())).unwrap();
        let identity = |program: &Program| {
            let loader = &program.libraries.as_ref().unwrap().loader;
            fs::metadata(loader).unwrap().ino()
        };
        let first = install();
        assert_eq!(identity(&install()), identity(&first));
        let drivers = root.path().join("etc/libibverbs.d");
        fs::create_dir_all(&drivers).unwrap();
        fs::write(drivers.join("rxe.driver"), "driver rxe\n").unwrap();
        let second = install();
        let copied = second
            .libraries()
            .unwrap()
            .join("etc/libibverbs.d/rxe.driver");
        assert_eq!(fs::read_to_string(copied).unwrap(), "driver rxe\n");
        assert_eq!(copies(within.path()).len(), 1);
    }

    #[test]
    fn a_copy_that_a_power_loss_has_damaged_is_made_again() {
        let (within, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        libraries(root.path());
        let cat = Path::new("/bin/cat");
        let program = fs::read(cat).unwrap();
        let install = || Program::install(within.path(), cat, Some(root.path())).unwrap();
        let folder = install().folder;
        let engine = folder.join(PROGRAM);
        let damages: [&dyn Fn(); 5] = [
            &|| fs::write(&engine, "").unwrap(),
            &|| fs::write(&engine, vec![0; program.len()]).unwrap(),
            &|| fs::remove_file(&engine).unwrap(),
            &|| {
                let loader = Libraries::of(&folder).unwrap().loader;
                fs::write(loader.with_file_name("libc.so.6"), "").unwrap();
            },
            &|| fs::remove_dir(folder.join(LIBRARIES).join("dev")).unwrap(),
        ];
        for damage in damages {
            damage();
            let repaired = install();
            assert_eq!(repaired.folder, folder);
            assert!(fs::read(&engine).unwrap() == program);
            let loader = repaired.libraries.unwrap().loader;
            let library = loader.with_file_name("libc.so.6");
            assert!(fs::metadata(library).unwrap().len() > 0);
            assert!(folder.join(LIBRARIES).join("dev").is_dir());
            assert_eq!(copies(within.path()).len(), 1);
        }
    }

    #[test]
    fn libraries_without_a_loader_are_an_error_that_names_it() {
        let (within, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let error = Program::install(within.path(), Path::new("/bin/cat"), Some(root.path()));
        assert!(error.unwrap_err().to_string().contains(LOADER));
    }
}
