//! `mooncake-bench`: transfers between two engines, with the flags and the result line of the stock
//! `transfer_engine_bench`; the same frames over bare sockets; all combinations in turn, for one size or for all; small peers
//! beside a large one; idle peers; a stock client with both kinds of segments.

mod compare;
mod fairness;
mod flags;
mod goals;
mod idle;
mod initiator;
mod peer;
mod processes;
mod program;
mod raw;
mod report;
mod statistics;
mod stock_bench;
mod store;
mod target;
mod usage;

use clap::{Parser, Subcommand};

use crate::flags::{Flags, Mode};

#[derive(Debug, Parser)]
#[command(
    name = "mooncake-bench",
    about = "Measures transfers between engines; the flags are those of transfer_engine_bench",
    args_conflicts_with_subcommands = true,
    // The last one counts, as in the stock program.
    args_override_self = true
)]
struct Arguments {
    #[command(flatten)]
    flags: Flags,
    /// Run bare sockets, the stock program and this engine in turn, in all combinations, and print ratios.
    #[arg(long)]
    compare: bool,
    #[command(flatten)]
    comparison: compare::Comparison,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The same frames over bare sockets: the limit of the machine
    #[command(args_override_self = true)]
    Raw(Flags),
    /// Sizes from 4 KiB to 1 MiB in turn, each with all combinations of `--compare`, and the goals of this engine beside the result
    Goals(goals::Goals),
    /// Peers with small requests beside one with large ones, and beside one that stops
    #[command(args_override_self = true)]
    Fair(fairness::Fairness),
    /// What idle peers cost a target
    #[command(args_override_self = true)]
    Idle(idle::Idle),
    /// A stock client that puts and gets in our segment and in a stock one
    Store(store::Comparison),
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse_from(flags::with_double_dashes(std::env::args()));
    match arguments.command {
        Some(Command::Raw(flags)) => match flags.mode {
            Mode::Target => raw::serve(&flags),
            Mode::Initiator => raw::measure(&flags).map(|measured| measured.print(&flags)),
        },
        Some(Command::Goals(goals)) => goals::run(&goals),
        Some(Command::Fair(fairness)) => fairness::run(fairness),
        Some(Command::Idle(idle)) => idle::run(idle),
        Some(Command::Store(comparison)) => store::run(comparison),
        None if arguments.compare => compare::run(&arguments.flags, &arguments.comparison),
        None => match arguments.flags.mode {
            Mode::Target => target::serve(&arguments.flags),
            Mode::Initiator => initiator::measure(&arguments.flags)
                .map(|measured| measured.print(&arguments.flags)),
        },
    }
}
