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

/// Most operations of a pod that wait for one on a disk that hangs.
const MOST_WAITING: usize = 16;

/// Held by the operations on the files of one pod, in the sequence of their calls.
type Turn = Arc<tokio::sync::Mutex<()>>;

impl Disk {
    /// Runs operations on the files of a pod on a thread of their own, so that a disk that hangs blocks no task.
    ///
    /// # Errors
    /// The errors of `work`; `TimedOut` where it goes on, or waits for another one, after [`DEADLINE`], and at once where
    /// [`MOST_WAITING`] wait, without that it is done.
    pub(super) async fn run(
        &self,
        pod_uid: &str,
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> io::Result<()> {
        let turn = self.turn(pod_uid);
        // One reference is that of the map, one of this call, and one of the operation that runs.
        if Arc::strong_count(&turn) > MOST_WAITING + 2 {
            return Err(io::ErrorKind::TimedOut.into());
        }
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

    #[tokio::test]
    async fn a_disk_that_hangs_has_a_bounded_number_of_operations_that_wait() {
        let disk = Disk::default();
        let written = Arc::new(Mutex::new(0));
        let (go_on, hangs) = mpsc::channel::<()>();
        let hanging = move || {
            let _ended = hangs.recv();
            Ok(())
        };
        let write = || {
            let written = Arc::clone(&written);
            move || {
                *written.lock() += 1;
                Ok(())
            }
        };
        let waiting = (0..2 * MOST_WAITING).map(|_| disk.run("a", write()));
        let all = async { futures::future::join_all(waiting).await };
        let (first, others) = tokio::join!(disk.run("a", hanging), all);
        assert!(first.is_err() && others.iter().all(Result::is_err));
        drop(go_on);
        let done = async {
            while *written.lock() < MOST_WAITING {
                tokio::task::yield_now().await;
            }
            // It would be done after them.
            disk.run("a", || Ok(())).await
        };
        timeout(DEADLINE, done).await.unwrap().unwrap();
        assert_eq!(*written.lock(), MOST_WAITING);
    }
}
