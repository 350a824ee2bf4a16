//! The archive: a compressed tar of bounded size in memory, and the manifest of what it contains and of what was left out.

use std::io;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use serde_json::Value;

use super::redact::redact;

/// Folder of all entries.
const ROOT: &str = "mooncake-bundle";

/// One file of the archive.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    pub path: String,
    /// Size before compression.
    pub bytes: usize,
}

/// What is not in the archive, and why.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    pub what: String,
    pub why: String,
}

pub(super) struct Archive {
    builder: tar::Builder<GzEncoder<Vec<u8>>>,
    /// Bytes before compression that may be added.
    left: u64,
    /// Seconds since the epoch, the modification time of each entry.
    time: u64,
    pub(super) entries: Vec<Entry>,
    pub(super) left_out: Vec<LeftOut>,
}

impl Archive {
    pub(super) fn new(limit: u64, time: u64) -> Self {
        Self {
            builder: tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default())),
            left: limit,
            time,
            entries: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// Adds text without credentials; names it among what was left out if it exceeds the limit.
    pub(super) fn text(&mut self, path: &str, text: &str) -> io::Result<()> {
        let text = redact(text);
        let bytes = text.len();
        if u64::try_from(bytes).is_ok_and(|bytes| bytes > self.left) {
            let why = format!("{bytes} bytes exceed --max-size");
            self.leave_out(path, why);
            return Ok(());
        }
        self.append(path, text.as_bytes())?;
        self.left = self
            .left
            .saturating_sub(u64::try_from(bytes).unwrap_or(u64::MAX));
        let path = path.to_owned();
        self.entries.push(Entry { path, bytes });
        Ok(())
    }

    /// Adds a list of objects, one JSON document per line: a reader needs no memory for all of them.
    pub(super) fn objects(
        &mut self,
        path: &str,
        objects: impl Iterator<Item = Value>,
    ) -> io::Result<()> {
        let lines: Vec<String> = objects.map(|object| object.to_string() + "\n").collect();
        self.text(path, &lines.concat())
    }

    pub(super) fn leave_out(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let (what, why) = (what.into(), redact(&why.into()));
        self.left_out.push(LeftOut { what, why });
    }

    /// Adds the manifest and returns the compressed archive.
    pub(super) fn finish(mut self, manifest: &Value) -> io::Result<Vec<u8>> {
        self.append(
            "manifest.json",
            redact(&format!("{manifest:#}\n")).as_bytes(),
        )?;
        self.builder.into_inner()?.finish()
    }

    fn append(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(u64::try_from(content.len()).map_err(io::Error::other)?);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        let path = format!("{ROOT}/{path}");
        self.builder.append_data(&mut header, path, content)
    }
}
