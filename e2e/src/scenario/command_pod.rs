//! A stock pod that runs commands of the test one at a time and returns each result.

use super::eventually::{Seen, eventually};
use super::namespace::Namespace;
use super::stock_pod::{CONTAINER, StockPod, StockWork};
use anyhow::{Context, bail};
use local_cluster::command::tail;
use serde_json::Value;
use std::time::Duration;

const SERVER: &str = include_str!("../../tests/workload/command_server.py");
/// Sends one command and prints the result.
const CLIENT: &str = "import socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect('/tmp/commands')
lines = server.makefile('rw')
print(sys.argv[1], file=lines, flush=True)
print(lines.readline(), end='')";
/// From the pod's creation to its first command.
const START: Duration = Duration::from_secs(120);

/// A handle by name.
#[derive(Clone)]
pub struct CommandPod {
    namespace: Namespace,
    name: String,
}

impl CommandPod {
    /// Starts an injected pod on a node. `program` is Python text that defines the functions `COMMANDS`.
    ///
    /// # Errors
    /// When it accepts no commands within two minutes, the end of its log.
    pub async fn start(
        namespace: &Namespace,
        name: &str,
        node: &str,
        cluster: &str,
        program: &str,
    ) -> anyhow::Result<Self> {
        let work = StockWork::Program {
            text: SERVER,
            arguments: vec![program.to_owned()],
        };
        StockPod::new(name, work)
            .node(node)
            .inject(cluster)
            .start(namespace)
            .await?;
        eventually(format!("{name} to accept commands"), START, || async {
            let log = namespace.logs(name, CONTAINER).await?;
            let ready = log.lines().any(|line| line == "accepting commands");
            Ok(Seen::when(ready.then_some(()), tail(&log, 5)))
        })
        .await?;
        Ok(Self {
            namespace: namespace.clone(),
            name: name.to_owned(),
        })
    }

    /// Runs a command, `{"command": "its name", ...}`, and returns its result.
    ///
    /// # Errors
    /// The command's exception, or that it did not end in time.
    pub async fn run(&self, command: Value, deadline: Duration) -> anyhow::Result<Value> {
        let text = command.to_string();
        let words = ["python3", "-c", CLIENT, &text];
        let answer = self
            .namespace
            .exec(&self.name, CONTAINER, &words, deadline)
            .await
            .with_context(|| format!("{}: command {text}", self.name))?;
        let answer: Value = serde_json::from_str(&answer)
            .with_context(|| format!("{}: {text} returned {answer:?}", self.name))?;
        match answer.get("failed").and_then(Value::as_str) {
            Some(failed) => bail!("{}: {text} failed:\n{failed}", self.name),
            None => Ok(answer["done"].clone()),
        }
    }
}
