//! A stock client in a separate process, which puts and gets on request.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};

use super::stock::{self, Wheel};

#[derive(Clone, Copy)]
pub(crate) struct Round {
    pub(crate) value_bytes: u64,
    pub(crate) volume_bytes: u64,
    pub(crate) deadline: Duration,
}

#[derive(Serialize)]
struct Order<'a> {
    segment: &'a str,
    value_bytes: u64,
    volume_bytes: u64,
}

#[derive(Deserialize)]
pub(crate) struct Sample {
    put_seconds: f64,
    get_seconds: f64,
    refused: u64,
    wrong: u64,
    bytes: f64,
}

impl Sample {
    /// MB/s, 10^6 bytes.
    pub(crate) fn put(&self) -> f64 {
        self.bytes / self.put_seconds / 1e6
    }

    /// MB/s, 10^6 bytes.
    pub(crate) fn get(&self) -> f64 {
        self.bytes / self.get_seconds / 1e6
    }
}

pub(crate) struct Client {
    process: Child,
    requests: ChildStdin,
    answers: mpsc::Receiver<String>,
}

impl Client {
    pub(crate) fn start(wheel: &Wheel, master: &str) -> anyhow::Result<Self> {
        let mut process = wheel
            .python()
            .args(["-c", include_str!("client.py"), master])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .env("MC_LOG_LEVEL", "ERROR")
            .spawn()?;
        let requests = process.stdin.take().context("no pipe to the client")?;
        let output = process.stdout.take().context("no pipe from the client")?;
        let mut client = Self {
            process,
            requests,
            answers: lines(output),
        };
        client
            .answer(Duration::from_secs(30))
            .context("the client's setup")?;
        Ok(client)
    }

    /// Puts and gets `volume_bytes` in one segment, and compares every value.
    pub(crate) fn measure(&mut self, segment: &str, round: Round) -> anyhow::Result<Sample> {
        let Round {
            value_bytes,
            volume_bytes,
            deadline,
        } = round;
        serde_json::to_writer(
            &self.requests,
            &Order {
                segment,
                value_bytes,
                volume_bytes,
            },
        )?;
        writeln!(self.requests)?;
        let sample: Sample = serde_json::from_str(&self.answer(deadline)?)?;
        ensure!(
            sample.refused == 0 && sample.wrong == 0,
            "{} puts refused, {} values wrong",
            sample.refused,
            sample.wrong
        );
        Ok(sample)
    }

    fn answer(&mut self, deadline: Duration) -> anyhow::Result<String> {
        match self.answers.recv_timeout(deadline) {
            Ok(line) => Ok(line),
            Err(mpsc::RecvTimeoutError::Timeout) => bail!("no answer within {deadline:?}"),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                bail!("the client ended: {}", self.process.wait()?)
            }
        }
    }

    pub(crate) fn stop(self, deadline: Duration) -> anyhow::Result<()> {
        let Self {
            mut process,
            requests,
            answers,
        } = self;
        drop(requests);
        // The stock client needs up to two seconds to unmount, and then closes its pipe.
        let ended = answers.recv_timeout(deadline);
        ensure!(
            ended == Err(mpsc::RecvTimeoutError::Disconnected),
            "the client does not end"
        );
        stock::reap(&mut process)
    }
}

/// Reads in a thread, so that a wait for an answer can time out.
fn lines(output: ChildStdout) -> mpsc::Receiver<String> {
    let (line, lines) = mpsc::channel();
    thread::spawn(move || {
        for text in BufReader::new(output).lines().map_while(Result::ok) {
            if line.send(text).is_err() {
                return;
            }
        }
    });
    lines
}
