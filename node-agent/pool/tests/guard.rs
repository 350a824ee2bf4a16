//! The process of a guard: it stays until SIGTERM, and then ends at once, so that a drain goes on.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

const LIMIT: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_guard_stays_until_it_is_terminated() {
    let mut guard = Command::new(env!("CARGO_BIN_EXE_pool"))
        .arg("guard")
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let early = timeout(Duration::from_secs(1), guard.wait()).await;
    assert!(early.is_err(), "{early:?}");
    let id = guard.id().unwrap().to_string();
    let sent = Command::new("kill").args(["-TERM", &id]).status();
    assert!(sent.await.unwrap().success());
    let ended = timeout(LIMIT, guard.wait()).await.unwrap().unwrap();
    assert_eq!(ended.code(), Some(0));
}
