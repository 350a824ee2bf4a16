//! Connects to a port of a pod by `kubectl port-forward`.

use crate::error::Error;
use local_cluster::kubectl::Kubectl;
use mooncake_e2e::http;
use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Seconds after which kubectl ends by itself.
const TIME_LIMIT: &str = "30";
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A running `kubectl port-forward`, ended when dropped.
pub(crate) struct PortForward {
    process: Child,
    /// kubectl writes a line per connection and exits when nothing reads them.
    output: BufReader<ChildStdout>,
    port: u16,
}

impl PortForward {
    pub(crate) fn to(
        kubectl: &Kubectl,
        namespace: &str,
        pod: &str,
        port: u64,
    ) -> Result<Self, Error> {
        let failed = |source| Error::Metrics {
            pod: pod.to_owned(),
            source,
        };
        let mut process = Command::new("timeout")
            .arg(TIME_LIMIT)
            .arg(&kubectl.program)
            .arg("--kubeconfig")
            .arg(&kubectl.kubeconfig)
            .args([
                "port-forward",
                "--address=127.0.0.1",
                "--namespace",
                namespace,
            ])
            .args([&format!("pod/{pod}"), &format!(":{port}")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let output = process
            .stdout
            .take()
            .ok_or_else(|| failed(io::Error::other("kubectl port-forward has no output")))?;
        let mut forward = Self {
            process,
            output: BufReader::new(output),
            port: 0,
        };
        let mut line = String::new();
        forward.output.read_line(&mut line).map_err(failed)?;
        forward.port = local_port(&line).ok_or_else(|| {
            failed(io::Error::other(format!(
                "kubectl port-forward printed `{}`",
                line.trim()
            )))
        })?;
        Ok(forward)
    }

    /// Sends GET and returns the body.
    pub(crate) fn get(&self, path: &str) -> io::Result<String> {
        http::get(self.connect()?, path, "")
    }

    /// The same over TLS, to a server that has this name in a certificate of one of these authorities (PEM).
    pub(crate) fn get_secure(
        &self,
        path: &str,
        token: &str,
        server: (&str, &str),
    ) -> io::Result<String> {
        http::get_secure(self.connect()?, path, token, server)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(stream)
    }
}

impl Drop for PortForward {
    fn drop(&mut self) {
        // `timeout` forwards SIGTERM to kubectl; SIGKILL would leave kubectl running.
        if let Ok(pid) = i32::try_from(self.process.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
        }
        self.process.wait().ok();
    }
}

/// The local port in `Forwarding from 127.0.0.1:40123 -> 9464`.
fn local_port(line: &str) -> Option<u16> {
    let (_, rest) = line.split_once("127.0.0.1:")?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_from_kubectls_first_line() {
        assert_eq!(
            local_port("Forwarding from 127.0.0.1:40123 -> 9464\n"),
            Some(40123)
        );
        assert_eq!(local_port("error: unable to forward"), None);
    }
}
