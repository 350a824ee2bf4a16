//! Reads the Secret with which the cluster's etcd is used, as the kubelet shows it in a folder of this pod. The engine
//! process opens no file, and the agent reads no Secret.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use crate::handover::PACKET_LIMIT;
use crds::names::ETCD_SECRET_KEYS;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;

/// Most bytes of all files together. PEM of this length fits a packet as JSON, in which a line break has two bytes.
const LIMIT: usize = 48 << 10;

/// Bytes of the packet around the files.
const FRAME: usize = 512;

/// The folder that the kubelet replaces as a whole when the Secret changes.
const CURRENT: &str = "..data";

/// Why the Secret is not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The system's error.
    #[error("cannot read {name} of the Secret in the pool pod: {source}")]
    File {
        /// A key of the Secret, or its folder.
        name: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// It does not fit a packet.
    #[error(
        "the Secret is longer than {LIMIT} bytes: only the certificates that sign those of etcd belong into ca.crt"
    )]
    TooLong,
}

/// Returns what the folder has of the keys that an etcd needs, all from one state of the Secret. A key that is not there
/// is left out.
pub(super) fn read(folder: &Path) -> Result<BTreeMap<String, String>, Error> {
    let failed = |name: &str| {
        let name = name.to_owned();
        move |source: io::Error| Error::File { name, source }
    };
    let open = |at: &Path| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, at, flags, Mode::empty())
    };
    let current = match open(&folder.join(CURRENT)) {
        Err(Errno::NOENT) => open(folder),
        current => current,
    };
    let current = current
        .map_err(io::Error::from)
        .map_err(failed("the folder"))?;
    let mut files = BTreeMap::new();
    let mut left = LIMIT;
    for key in ETCD_SECRET_KEYS {
        let Some(text) = one(&current, key, left).map_err(failed(key))? else {
            continue;
        };
        left = left.checked_sub(text.len()).ok_or(Error::TooLong)?;
        files.insert(key.to_owned(), text);
    }
    // Control characters, which JSON writes by six bytes.
    let json = serde_json::to_vec(&files).map_or(usize::MAX, |json| json.len());
    if json > PACKET_LIMIT - FRAME {
        return Err(Error::TooLong);
    }
    Ok(files)
}

/// Reads one file, at most one byte more than `limit`.
fn one(folder: &OwnedFd, key: &str, limit: usize) -> io::Result<Option<String>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = match openat(folder.as_fd(), key, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        file => File::from(file?),
    };
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    let text = String::from_utf8(bytes).map_err(|_| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "it is not UTF-8. Certificates and keys are PEM",
        )
    })?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::handover::message::{FromPool, Reply};

    /// Shows a Secret as the kubelet does: files are links through a link that is replaced.
    fn show(folder: &Path, version: &str, files: &[(&str, &[u8])]) {
        let data = folder.join(version);
        fs::create_dir(&data).unwrap();
        for (key, value) in files {
            fs::write(data.join(key), value).unwrap();
            let _ = symlink(format!("{CURRENT}/{key}"), folder.join(key));
        }
        let fresh = folder.join("..fresh");
        symlink(version, &fresh).unwrap();
        fs::rename(fresh, folder.join(CURRENT)).unwrap();
    }

    #[test]
    fn the_keys_of_an_etcd_are_read_and_each_change_of_the_kubelet_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        assert!(read(folder.path()).unwrap().is_empty());
        show(
            folder.path(),
            "..1",
            &[("ca.crt", b"one"), ("other", b"no"), ("password", b"p\n")],
        );
        let files = read(folder.path()).unwrap();
        let expected = [("ca.crt", "one"), ("password", "p\n")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(files, BTreeMap::from(expected));
        show(folder.path(), "..2", &[("ca.crt", b"two")]);
        let files = read(folder.path()).unwrap();
        let only = BTreeMap::from([("ca.crt".to_owned(), "two".to_owned())]);
        assert_eq!(files, only);
    }

    #[test]
    fn what_cannot_be_read_is_named_and_the_longest_secret_fits_a_packet() {
        let gone = read(Path::new("/does/not/exist")).unwrap_err().to_string();
        assert!(gone.contains("cannot read the folder"), "{gone}");
        let folder = tempfile::tempdir().unwrap();
        show(folder.path(), "..1", &[("ca.crt", &[0xff])]);
        let text = read(folder.path()).unwrap_err().to_string();
        assert!(text.contains("cannot read ca.crt"), "{text}");
        // A PEM file has a line break after 64 bytes at most.
        let line = format!("{}\n", "x".repeat(7));
        let whole = line.repeat(LIMIT / line.len());
        show(folder.path(), "..2", &[("ca.crt", whole.as_bytes())]);
        let files = read(folder.path()).unwrap();
        let answer = FromPool::Answer {
            id: u64::MAX,
            reply: Reply::Secret { files },
        };
        assert!(serde_json::to_vec(&answer).unwrap().len() <= PACKET_LIMIT);
        show(
            folder.path(),
            "..3",
            &[("ca.crt", whole.as_bytes()), ("password", b"p")],
        );
        assert!(matches!(read(folder.path()), Err(Error::TooLong)));
        let control = vec![1; PACKET_LIMIT / 6];
        show(folder.path(), "..4", &[("password", &control)]);
        assert!(matches!(read(folder.path()), Err(Error::TooLong)));
    }
}
