//! The program `mooncake-master`; see the library `mooncake_master`.

use std::io::IsTerminal;
use std::process::ExitCode;

use mooncake_master::args::Args;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let args = Args::of_process();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match mooncake_master::run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the master ends");
            ExitCode::FAILURE
        }
    }
}
