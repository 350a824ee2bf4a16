//! kubectl for one cluster, independent of an exported KUBECONFIG.

use crate::Error;
use crate::command::Run;
use crate::process::OWNER;
use std::path::PathBuf;
use std::time::Duration;

/// kubectl with the kubeconfig of a cluster.
#[derive(Debug, Clone)]
pub struct Kubectl {
    pub program: PathBuf,
    pub kubeconfig: PathBuf,
}

impl Kubectl {
    /// A kubectl command that has not started.
    pub fn command<S: AsRef<std::ffi::OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Run {
        let run = Run::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(arguments);
        match self.kubeconfig.parent() {
            Some(folder) => run.env(OWNER, folder),
            None => run,
        }
    }

    /// Runs kubectl for at most a minute and returns standard output.
    ///
    /// # Errors
    /// As [`Run::output`].
    pub fn run<S: AsRef<std::ffi::OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<String, Error> {
        self.command(arguments).output()
    }

    /// Applies YAML server-side.
    ///
    /// # Errors
    /// As [`Run::output`], with the API server's message.
    pub fn apply(&self, yaml: &str) -> Result<String, Error> {
        self.command(["apply", "--server-side", "-f", "-"])
            .input(yaml)
            .deadline(Duration::from_secs(60))
            .output()
    }
}
