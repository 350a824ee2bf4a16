//! The hook that lifts the limit of locked memory for containers of a claim: registering memory with a
//! device locks it, and CDI knows no limits. It is a program of its own on the node, where the container
//! runtime starts it, also while there is no agent.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

/// Name of the program beside the agent and on the node.
const PROGRAM: &str = "memlock";

/// How long its trial may take.
const TRIAL: Duration = Duration::from_secs(10);

/// Before another try where the copy is open for writing in a child that was forked in that moment.
const AGAIN: Duration = Duration::from_millis(20);

/// Why claims do not lift the limit on this node.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotLifted {
    #[error("{path}: {cause}")]
    Disk { path: PathBuf, cause: io::Error },
    /// Such as a folder from which nothing may be started.
    #[error("starting {path}: {cause}")]
    Start { path: PathBuf, cause: io::Error },
    #[error("{path} did not end in {TRIAL:?}")]
    Late { path: PathBuf },
    #[error("{path}: {words}")]
    Refused { path: PathBuf, words: String },
}

/// Puts the agent's own copy into the folder, and tries it there. Containers of other claims may be
/// starting by it meanwhile.
///
/// # Errors
/// If the node does not let it be there, run, or lift a limit.
pub(super) async fn install(folder: &Path) -> Result<PathBuf, NotLifted> {
    let beside = std::env::current_exe().map(|agent| agent.with_file_name(PROGRAM));
    let path = folder.join(PROGRAM);
    let disk = |cause| NotLifted::Disk {
        path: path.clone(),
        cause,
    };
    copy(&beside.map_err(disk)?, &path).map_err(disk)?;
    tried(path).await
}

async fn tried(path: PathBuf) -> Result<PathBuf, NotLifted> {
    let trial = async {
        loop {
            let told = Command::new(&path)
                .arg("trial")
                .env_clear()
                .stdin(Stdio::null())
                .kill_on_drop(true)
                .output()
                .await;
            match told {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                    tokio::time::sleep(AGAIN).await;
                }
                told => return told,
            }
        }
    };
    match tokio::time::timeout(TRIAL, trial).await {
        Err(_) => Err(NotLifted::Late { path }),
        Ok(Err(cause)) => Err(NotLifted::Start { path, cause }),
        Ok(Ok(told)) if told.status.success() => Ok(path),
        Ok(Ok(told)) => {
            let words = String::from_utf8_lossy(&told.stderr).trim().to_owned();
            Err(NotLifted::Refused { path, words })
        }
    }
}

/// Whole or not at all, and only where it is another: one that runs cannot be written to.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let program = fs::read(from)?;
    if fs::read(to).is_ok_and(|there| there == program) {
        return Ok(());
    }
    let draft = to.with_extension("new");
    fs::write(&draft, program)?;
    fs::set_permissions(&draft, Permissions::from_mode(0o755))?;
    fs::rename(&draft, to)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program of the folder that does as it is told.
    fn program(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join(PROGRAM);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_copy_is_whole_and_may_be_started_also_where_another_stood() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("copy");
        for script in ["exit 1", "exit 0"] {
            let from = program(folder.path(), script);
            copy(&from, &to).unwrap();
            assert_eq!(fs::read(&to).unwrap(), fs::read(&from).unwrap());
            let mode = fs::metadata(&to).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o755);
        }
    }

    #[tokio::test]
    async fn a_node_that_does_not_let_it_run_or_lift_a_limit_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = program(folder.path(), "[ \"$1\" = trial ]");
        assert_eq!(tried(path.clone()).await.unwrap(), path);
        program(folder.path(), "echo EPERM >&2; exit 1");
        let refused = tried(path.clone()).await.unwrap_err();
        assert!(refused.to_string().ends_with(": EPERM"), "{refused}");
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let refused = tried(path).await.unwrap_err();
        assert!(matches!(refused, NotLifted::Start { .. }), "{refused}");
    }
}
