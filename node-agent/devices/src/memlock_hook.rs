//! Installs the OCI hook that lifts the memlock limit for containers of a claim: memory registration locks
//! memory, and CDI cannot set limits. The container runtime starts the program on the node, also without an agent.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use host::atomic_file;
use tokio::process::Command;

/// File name of the hook, in the agent's image and on the node.
const PROGRAM: &str = "memlock";

/// Deadline of the trial run.
const TRIAL: Duration = Duration::from_secs(10);

/// Time between attempts while a child that was forked during the copy still has the file open.
const RETRY: Duration = Duration::from_millis(20);

/// Why the hook does not work on this node.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotLifted {
    #[error("{path}: {cause}")]
    Disk { path: PathBuf, cause: io::Error },
    /// For example a directory mounted with noexec.
    #[error("cannot start {path}: {cause}")]
    Start { path: PathBuf, cause: io::Error },
    #[error("{path} did not exit within {TRIAL:?}")]
    Late { path: PathBuf },
    #[error("{path}: {words}")]
    Refused { path: PathBuf, words: String },
}

/// What was on the node before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Copied {
    /// This program, from an earlier agent.
    WasEqual,
    /// Another one, or none.
    Replaced,
}

/// Copies the hook into the directory and runs a trial. Starting containers may use the old copy meanwhile.
///
/// # Errors
/// The copy fails, or the trial cannot start, times out or cannot lift a limit.
pub(super) async fn install(folder: &Path) -> Result<PathBuf, NotLifted> {
    let beside = std::env::current_exe().map(|agent| agent.with_file_name(PROGRAM));
    let path = folder.join(PROGRAM);
    let disk = |cause| NotLifted::Disk {
        path: path.clone(),
        cause,
    };
    let copied = copy(&beside.map_err(disk)?, &path).map_err(disk)?;
    kept(copied, tried(path).await)
}

/// On a node under load a trial may be late. Running claims keep the hook that they have then: containers that start again
/// would lose their limit.
fn kept(copied: Copied, trial: Result<PathBuf, NotLifted>) -> Result<PathBuf, NotLifted> {
    match (copied, trial) {
        (Copied::WasEqual, Err(NotLifted::Late { path })) => {
            let path_on_node = path.display();
            tracing::warn!(path = %path_on_node, "the trial of the memlock hook is late; claims keep the hook");
            Ok(path)
        }
        (Copied::WasEqual | Copied::Replaced, trial) => trial,
    }
}

async fn tried(path: PathBuf) -> Result<PathBuf, NotLifted> {
    let trial = async {
        loop {
            let output = Command::new(&path)
                .arg("trial")
                .env_clear()
                .stdin(Stdio::null())
                .kill_on_drop(true)
                .output()
                .await;
            match output {
                Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                    tokio::time::sleep(RETRY).await;
                }
                output => return output,
            }
        }
    };
    match tokio::time::timeout(TRIAL, trial).await {
        Err(_) => Err(NotLifted::Late { path }),
        Ok(Err(cause)) => Err(NotLifted::Start { path, cause }),
        Ok(Ok(output)) if output.status.success() => Ok(path),
        Ok(Ok(output)) => {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(NotLifted::Refused { path, words })
        }
    }
}

/// Replaces the file atomically unless it is equal: a running program cannot be written to.
fn copy(from: &Path, to: &Path) -> io::Result<Copied> {
    let program = fs::read(from)?;
    if fs::read(to).is_ok_and(|there| there == program) {
        return Ok(Copied::WasEqual);
    }
    atomic_file::replace(to, &program, 0o755)?;
    Ok(Copied::Replaced)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A shell script with the name of the hook.
    fn program(folder: &Path, script: &str) -> PathBuf {
        let path = folder.join(PROGRAM);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[test]
    fn a_copy_is_executable_and_replaces_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let to = folder.path().join("copy");
        for script in ["exit 1", "exit 0"] {
            let from = program(folder.path(), script);
            assert_eq!(copy(&from, &to).unwrap(), Copied::Replaced);
            assert_eq!(copy(&from, &to).unwrap(), Copied::WasEqual);
            assert_eq!(fs::read(&to).unwrap(), fs::read(&from).unwrap());
            let mode = fs::metadata(&to).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o755);
        }
    }

    #[test]
    fn a_late_trial_does_not_take_the_hook_from_running_claims() {
        let path = PathBuf::from("/x/memlock");
        let late = || Err(NotLifted::Late { path: path.clone() });
        assert_eq!(kept(Copied::WasEqual, late()).unwrap(), path);
        kept(Copied::Replaced, late()).unwrap_err();
        let refused = NotLifted::Refused {
            path: path.clone(),
            words: "EPERM".to_owned(),
        };
        kept(Copied::WasEqual, Err(refused)).unwrap_err();
    }

    #[tokio::test]
    async fn a_hook_that_cannot_start_or_lift_the_limit_is_reported() {
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
