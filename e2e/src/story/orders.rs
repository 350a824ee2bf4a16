//! A stock peer that does what it is told, one order at a time, and answers with what came of it.

use super::namespace::Namespace;
use super::stock::{CONTAINER, StockPod, StockWork};
use super::wait::{Seen, eventually};
use anyhow::{Context, bail};
use serde_json::Value;
use std::time::Duration;

const SERVER: &str = include_str!("../../tests/workload/orders.py");
/// Says one order, prints the answer.
const CLIENT: &str = "import socket, sys
door = socket.socket(socket.AF_UNIX)
door.connect('/tmp/orders')
lines = door.makefile('rw')
print(sys.argv[1], file=lines, flush=True)
print(lines.readline(), end='')";
/// From its creation to its first order.
const START: Duration = Duration::from_secs(120);

/// A pod that takes orders.
#[derive(Clone)]
pub struct Ordered {
    namespace: Namespace,
    name: String,
}

impl Ordered {
    /// Starts an injected pod on a node. `program` is Python text that leaves its functions in `ORDERS`.
    ///
    /// # Errors
    /// When it takes no orders in two minutes; the last words of its log say why.
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
        eventually(format!("{name} to take orders"), START, || async {
            let log = namespace.logs(name, CONTAINER).await?;
            let ready = log.lines().any(|line| line == "under orders");
            Ok(Seen::when(
                ready.then_some(()),
                crate::command::tail(&log, 5),
            ))
        })
        .await?;
        Ok(Self {
            namespace: namespace.clone(),
            name: name.to_owned(),
        })
    }

    /// Gives an order, `{"order": "its name", ...}`, and answers with what it returned.
    ///
    /// # Errors
    /// Its exception, or that it was not carried out in time.
    pub async fn tell(&self, order: Value, deadline: Duration) -> anyhow::Result<Value> {
        let text = order.to_string();
        let words = ["python3", "-c", CLIENT, &text];
        let answer = self
            .namespace
            .exec(&self.name, CONTAINER, &words, deadline)
            .await
            .with_context(|| format!("{} was told {text}", self.name))?;
        let answer: Value = serde_json::from_str(&answer)
            .with_context(|| format!("{} answered {text} with {answer:?}", self.name))?;
        match answer.get("failed").and_then(Value::as_str) {
            Some(failed) => bail!("{} could not {text}:\n{failed}", self.name),
            None => Ok(answer["done"].clone()),
        }
    }
}
