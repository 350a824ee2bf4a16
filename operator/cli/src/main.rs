//! The binary `kubectl-mooncake`, a plugin of kubectl.

use std::io::{IsTerminal, Write, stdout};
use std::process::ExitCode;

use clap::Parser;
use jiff::Timestamp;
use mooncake_cli::args::{Args, Command, Output, Terminal};
use mooncake_cli::run;

/// Wrong usage, `EX_USAGE` of sysexits.h: 1 and 2 are results.
const USAGE: u8 = 64;
/// No object could be read.
const FAILURE: u8 = 2;
/// No object could be read by `sizing`, where 2 means that the launch does not start.
const SIZING_FAILURE: u8 = 3;

fn main() -> anyhow::Result<ExitCode> {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            error.print()?;
            return Ok(ExitCode::from(if error.use_stderr() { USAGE } else { 0 }));
        }
    };
    let report = match run(&args) {
        Ok(report) => report,
        Err(failure) => {
            eprintln!("error: {failure}");
            return Ok(ExitCode::from(match args.command {
                Command::Sizing(_) => SIZING_FAILURE,
                _ => FAILURE,
            }));
        }
    };
    let text = match args.flags.output {
        Some(Output::Json) => report.json()?,
        None => {
            let colour = stdout().is_terminal() && !Terminal::read().plain;
            report.text(colour, Timestamp::now())
        }
    };
    // A closed pipe is no error: the reader has what it needs.
    stdout().write_all(text.as_bytes()).ok();
    Ok(ExitCode::from(report.exit_code()))
}
