//! kubectl of our own build, tied to one cluster: an exported KUBECONFIG changes nothing.

use crate::Error;
use crate::command::Run;
use crate::process::OWNER;
use std::path::PathBuf;
use std::time::Duration;

/// One cluster's kubectl.
#[derive(Debug, Clone)]
pub struct Kubectl {
    pub program: PathBuf,
    pub kubeconfig: PathBuf,
}

impl Kubectl {
    /// A command line, to be given input or a deadline before it runs.
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

    /// Runs and answers standard output; a minute at most.
    ///
    /// # Errors
    /// As [`Run::output`].
    pub fn run<S: AsRef<std::ffi::OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Result<String, Error> {
        self.command(arguments).output()
    }

    /// Applies objects given as YAML by server-side apply.
    ///
    /// # Errors
    /// As [`Run::output`]; the API server's words stand in it.
    pub fn apply(&self, yaml: &str) -> Result<String, Error> {
        self.command(["apply", "--server-side", "-f", "-"])
            .input(yaml)
            .deadline(Duration::from_secs(60))
            .output()
    }
}
