//! The programs that can be an end: bare sockets, this engine, and the stock program. Each end is a process of its own.

use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::flags::{Flags, Operation};
use crate::processes::Logged;
use crate::stock_bench::{self, StockBench};

/// For a target to start, which includes allocating the memory.
const START: Duration = Duration::from_secs(60);
/// To write to the memory of a stock target.
const FILL: Duration = Duration::from_secs(90);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    Raw,
    Ours,
    Stock,
}

impl Program {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Ours => "ours",
            Self::Stock => "stock",
        }
    }

    fn command(self, stock: &StockBench) -> anyhow::Result<Command> {
        let this = std::env::current_exe()?;
        Ok(match self {
            Self::Ours => Command::new(this),
            Self::Raw => {
                let mut command = Command::new(this);
                command.arg("raw");
                command
            }
            Self::Stock => stock.command(),
        })
    }

    /// The command of an initiator.
    pub(crate) fn initiator(
        self,
        flags: &Flags,
        stock: &StockBench,
        target: &str,
    ) -> anyhow::Result<Command> {
        let mut command = self.command(stock)?;
        command
            .args(stock_bench::arguments(flags))
            .args(["--mode=initiator", &format!("--segment_id={target}")]);
        Ok(command)
    }

    /// Starts a target, and returns its name. It ends with the returned process.
    ///
    /// # Errors
    /// It does not start.
    pub(crate) async fn serve(
        self,
        flags: &Flags,
        stock: &StockBench,
    ) -> anyhow::Result<(Logged, String)> {
        let mut command = self.command(stock)?;
        command
            .args(stock_bench::arguments(flags))
            .arg("--mode=target");
        let mut process = Logged::start(command)?;
        let name = process.until(START, stock_bench::listening).await;
        let name = name.with_context(|| format!("the target ({})", self.name()))?;
        if self == Self::Stock && flags.operation == Operation::Read {
            let filled = fill(flags, stock, &name).await;
            filled.with_context(|| format!("filling the memory of {name}"))?;
        }
        Ok((process, name))
    }
}

/// Writes to the memory of a stock target that is read afterwards. The stock program allocates its memory and does not
/// touch it: a read of it would copy the same page of zeros each time, which stays in the cache.
async fn fill(flags: &Flags, stock: &StockBench, target: &str) -> anyhow::Result<()> {
    let flags = Flags {
        operation: Operation::Write,
        duration: 1,
        ..flags.clone()
    };
    let command = Program::Stock.initiator(&flags, stock, target)?;
    let written = |printed: &str| stock_bench::throughput(printed, flags.report_unit);
    Logged::start(command)?.until(FILL, written).await?;
    Ok(())
}
