//! A target as a process of its own, ours or the stock one.

use std::process::Command;
use std::time::Duration;

use crate::compare::fill;
use crate::flags::{Flags, Operation};
use crate::processes::Logged;
use crate::stock_bench::{self, StockBench};

/// To start, which includes allocating the memory.
const START: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Ours,
    Stock,
}

impl Target {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Stock => "stock",
        }
    }
}

/// Starts a target, and returns its name. It ends with the returned process.
///
/// # Errors
/// It does not start.
pub(crate) async fn serve(
    target: Target,
    flags: &Flags,
    stock: &StockBench,
) -> anyhow::Result<(Logged, String)> {
    let mut command = match target {
        Target::Ours => Command::new(std::env::current_exe()?),
        Target::Stock => stock.command(),
    };
    command
        .args(stock_bench::arguments(flags))
        .arg("--mode=target");
    let mut process = Logged::start(command)?;
    let name = process.until(START, stock_bench::listening).await?;
    if target == Target::Stock && flags.operation == Operation::Read {
        fill(flags, stock, &name).await?;
    }
    Ok((process, name))
}
