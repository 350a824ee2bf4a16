//! Writes to the node's disk with a time limit: a disk may hang.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::timeout;

/// Limit for the file operations of one call.
const DEADLINE: Duration = Duration::from_secs(2);

/// The files of one kind of all pool pods. Operations on those of one pod wait for each other, also for one whose call has
/// ended at the limit: it goes on when the disk does, and its content is older.
#[derive(Debug, Default)]
pub(super) struct Disk(Mutex<BTreeMap<String, Turn>>);

/// Held by the operations on the files of one pod, in the sequence of their calls.
type Turn = Arc<tokio::sync::Mutex<()>>;

impl Disk {
    /// Runs operations on the files of a pod on a thread of their own, so that a disk that hangs blocks no task.
    ///
    /// # Errors
    /// The errors of `work`; `TimedOut` where it goes on, or waits for another one, after [`DEADLINE`].
    pub(super) async fn run(
        &self,
        pod_uid: &str,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let turn = self.turn(pod_uid);
        let done = tokio::spawn(async move {
            let _turn = turn.lock_owned().await;
            tokio::task::spawn_blocking(work).await?
        });
        timeout(DEADLINE, done).await??
    }

    fn turn(&self, pod_uid: &str) -> Turn {
        let mut turns = self.0.lock();
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(pod_uid.to_owned()).or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn an_operation_waits_for_an_earlier_one_of_its_pod_that_hangs_and_for_no_other() {
        let disk = Disk::default();
        let written = Arc::new(Mutex::new(Vec::new()));
        let write = |text: &'static str| {
            let written = Arc::clone(&written);
            move || {
                written.lock().push(text);
                Ok(())
            }
        };
        let (go_on, hangs) = mpsc::channel::<()>();
        let old = write("old");
        let hanging = move || {
            let _ended = hangs.recv();
            old()
        };
        let timed_out = disk.run("a", hanging).await.unwrap_err();
        assert_eq!(timed_out.kind(), io::ErrorKind::TimedOut);
        disk.run("b", write("other")).await.unwrap();
        let late = disk.run("a", write("new")).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        drop(go_on);
        disk.run("a", write("newest")).await.unwrap();
        assert_eq!(*written.lock(), ["other", "old", "new", "newest"]);
        disk.run("b", write("last")).await.unwrap();
        assert_eq!(disk.0.lock().len(), 1, "of those that run only");
    }
}
