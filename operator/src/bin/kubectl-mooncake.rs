//! The binary `kubectl-mooncake`, a plugin of kubectl; see `mooncake_operator::cli`.

use std::io::{IsTerminal, Write, stdout};
use std::process::ExitCode;

use clap::Parser;
use jiff::Timestamp;
use mooncake_operator::cli::args::{Args, Command, Output, Terminal};
use mooncake_operator::cli::run;

/// Wrong usage, as sysexits.h numbers it: 1 and 2 are answers.
const USAGE: u8 = 64;
/// Nothing could be looked at.
const BLIND: u8 = 2;
/// The same of `sizing`, whose 2 is the seeds' helper's.
const SIZING_BLIND: u8 = 3;

fn main() -> anyhow::Result<ExitCode> {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(words) => {
            words.print()?;
            let wrong = words.use_stderr();
            return Ok(ExitCode::from(if wrong { USAGE } else { 0 }));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let end = runtime.block_on(run(&args));
    // A program that gives credentials must not keep this one alive.
    runtime.shutdown_background();
    let answer = match end {
        Ok(answer) => answer,
        Err(failure) => {
            eprintln!("error: {failure}");
            let sizing = matches!(args.command, Command::Sizing(_));
            return Ok(ExitCode::from(if sizing { SIZING_BLIND } else { BLIND }));
        }
    };
    let text = match args.flags.output {
        Some(Output::Json) => answer.json()?,
        None => {
            let colour = stdout().is_terminal() && !Terminal::read().plain;
            answer.text(colour, Timestamp::now())
        }
    };
    // Whoever stops reading has seen enough.
    stdout().write_all(text.as_bytes()).ok();
    Ok(ExitCode::from(answer.exit_code()))
}
