//! Allocates the pages of an extent in a few threads, charged to this process's cgroup.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sys::mem::{Error, PageSize, Region};
use tokio::sync::mpsc;

/// Bytes between two progress reports; a multiple of every page size but the largest.
const PIECE: u64 = 64 << 20;

/// Most threads.
const THREADS: usize = 4;

/// Progress of touching an extent.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) index: usize,
    pub(super) bytes: u64,
    pub(super) failure: Option<String>,
}

/// Touches an extent and reports each piece; unmaps it before the last report. Blocks: call it on a separate
/// thread.
pub(super) fn touch(
    index: usize,
    fd: OwnedFd,
    length: u64,
    page: PageSize,
    reports: &mpsc::UnboundedSender<Progress>,
) {
    let report = |bytes, failure| {
        // Fails only while the process exits.
        let _ = reports.send(Progress {
            index,
            bytes,
            failure,
        });
    };
    let region = match Region::map(fd, length, page) {
        Ok(region) => region,
        Err(error) => return report(0, Some(error.to_string())),
    };
    let piece = PIECE.max(page.bytes());
    let next = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let failure = Mutex::new(None::<Error>);
    let work = || {
        loop {
            let offset = next.fetch_add(piece, Ordering::Relaxed);
            if offset >= length {
                return;
            }
            let bytes = piece.min(length - offset);
            if let Err(error) = region.populate(offset, bytes) {
                next.store(length, Ordering::Relaxed);
                if let Ok(mut first) = failure.lock() {
                    first.get_or_insert(error);
                }
                return;
            }
            let sum = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if sum < length {
                report(sum, None);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..threads.min(THREADS) {
            let helper = std::thread::Builder::new()
                .name("touch".to_owned())
                .stack_size(128 << 10);
            // Without them this thread does all the work.
            let _ = helper.spawn_scoped(scope, work);
        }
        work();
    });
    drop(region);
    let failure = failure.into_inner().ok().flatten();
    report(done.into_inner(), failure.map(|error| error.to_string()));
}
