//! `bundle`: one archive for a support request. It contains what an administrator of Mooncake reads, and no Secret, no
//! environment and no annotation of a user.
//!
//! ```text
//! snapshot, objects, events, logs --> prune (listed fields) --> redact (credentials) --> tar.gz with a manifest
//! each request and the whole have a deadline; what is missing is named in the manifest
//! ```

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use crate::args::BundleArgs;
use crate::collect::Objects;
use crate::connection::Connection;
use crate::doctor::doctor;
use crate::read_error::ReadError;
use crate::renderer::{Renderer, cells};
use crate::report::Report;
use crate::run::RELEASE;

mod archive;
mod events;
mod logs;
mod objects;
mod prune;
mod redact;

use archive::Archive;
pub use archive::{Entry, LeftOut};

/// Why there is no archive.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Cannot write {}: {source}. Choose another path with --file", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("Cannot build the archive: {0}. Report it with the version of kubectl-mooncake")]
    Archive(#[from] io::Error),
}

/// The report.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Bundle {
    /// Path of the archive.
    pub file: PathBuf,
    /// Size of the archive.
    pub bytes: usize,
    pub entries: Vec<Entry>,
    pub left_out: Vec<LeftOut>,
    pub read_errors: Vec<ReadError>,
}

/// When to stop.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    /// The value, or why there is none.
    async fn bound<T>(self, work: impl Future<Output = T>) -> Result<T, String> {
        let bounded = tokio::time::timeout_at(self.at, work).await;
        bounded.map_err(|_| format!("not read within --deadline {} s", self.limit.as_secs_f64()))
    }
}

/// Reads everything and writes the archive.
///
/// # Errors
/// The file exists, or cannot be written.
pub async fn bundle(
    connection: &Connection,
    namespace: Option<&str>,
    args: &BundleArgs,
) -> Result<Bundle, Error> {
    let now = Timestamp::now();
    let path = args.file.clone().unwrap_or_else(|| {
        PathBuf::from(
            now.strftime("mooncake-bundle-%Y%m%dT%H%M%SZ.tar.gz")
                .to_string(),
        )
    });
    // Before the reads, which take minutes.
    let write_error = |source| Error::Write {
        path: path.clone(),
        source,
    };
    let mut file = create(&path).map_err(write_error)?;
    let written = match fill(connection, namespace, args, now).await {
        Ok((bundle, content)) => file
            .write_all(&content)
            .and_then(|()| file.sync_all())
            .map(|()| bundle)
            .map_err(write_error),
        Err(error) => Err(error.into()),
    };
    if written.is_err() {
        std::fs::remove_file(&path).ok();
    }
    Ok(Bundle {
        file: path,
        ..written?
    })
}

/// Reads everything; returns the report without the path, and the archive.
async fn fill(
    connection: &Connection,
    namespace: Option<&str>,
    args: &BundleArgs,
    now: Timestamp,
) -> io::Result<(Bundle, Vec<u8>)> {
    let deadline = Deadline {
        at: Instant::now() + args.deadline,
        limit: args.deadline,
    };
    let time = u64::try_from(now.as_second()).unwrap_or_default();
    let mut archive = Archive::new(args.max_size, time);
    let mut read_errors = Vec::new();

    let snapshot = crate::collect::collect(connection, namespace, Objects::All);
    match deadline.bound(snapshot).await {
        Err(why) => archive.leave_out("doctor, pods, workloads, events and logs", why),
        Ok(snapshot) => {
            read_errors.clone_from(&snapshot.read_errors);
            let report = Report::Doctor(doctor(&snapshot, RELEASE, now));
            archive.text("doctor.txt", &report.text(false, now))?;
            archive.text("doctor.json", &report.json().map_err(io::Error::other)?)?;
            objects::of_snapshot(&mut archive, &snapshot)?;
            objects::of_mooncake(&mut archive, connection, namespace, deadline).await?;
            objects::versions(&mut archive, connection, &snapshot, deadline).await?;
            events::collect(&mut archive, connection, &snapshot, deadline).await?;
            logs::collect(&mut archive, connection, &snapshot, args, deadline).await?;
        }
    }
    let (entries, left_out) = (archive.entries.clone(), archive.left_out.clone());
    let manifest = json!({
        "created": now, "kubectlMooncake": RELEASE, "namespace": namespace,
        "limits": {
            "maxSize": args.max_size, "since": args.since.as_secs(), "agents": args.agents,
            "deadline": args.deadline.as_secs_f64(),
        },
        "entries": entries, "leftOut": left_out, "readErrors": read_errors,
    });
    let content = archive.finish(&manifest)?;
    let bundle = Bundle {
        file: PathBuf::new(),
        bytes: content.len(),
        entries,
        left_out,
        read_errors,
    };
    Ok((bundle, content))
}

/// Creates the file for its owner only; an existing one is not overwritten.
fn create(path: &Path) -> io::Result<std::fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

impl Bundle {
    /// 0: complete, 2: something could not be read or was left out.
    pub fn exit_code(&self) -> u8 {
        match self.left_out.is_empty() && self.read_errors.is_empty() {
            true => 0,
            false => 2,
        }
    }

    pub(crate) fn show(&self, out: &mut Renderer) {
        let size = crds::ByteSize(u64::try_from(self.bytes).unwrap_or(u64::MAX));
        let files = self.entries.len();
        out.line(cells![format!(
            "Wrote {} ({files} files, {size}). Read it before you send it: it contains names of your objects, nodes and images.",
            self.file.display()
        )]);
        for LeftOut { what, why } in &self.left_out {
            out.indented(2, cells!["Left out:", format!("{what}: {why}")]);
        }
    }
}
