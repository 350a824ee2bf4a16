//! `suites`: runs the tests, suite by suite, and prints the table of time budgets.

mod args;
mod suite;

use args::{Args, Command};
use clap::Parser;
use mooncake_e2e::command::Run;
use mooncake_e2e::settings::Environment;
use mooncake_e2e::{Cluster, Settings, product};
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use suite::{Kind, SUITES, Suite};

/// The local cluster that the stories share.
const CLUSTER: &str = "suites";
/// The one that `local_cluster` cuts and kills.
const DISTURBED: &str = "tool";
/// A suite that hangs is ended after this many budgets.
const PATIENCE: u32 = 3;

/// What became of one suite.
struct Outcome {
    suite: &'static Suite,
    took: Duration,
    failed: Option<String>,
}

fn main() -> ExitCode {
    let (only, full) = match Args::parse().command {
        Command::Test { only } => (only, false),
        Command::Soak { only } => (only, true),
    };
    match run(only.as_deref(), full) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("suites: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all passed. A failed suite does not keep the next from running.
#[expect(clippy::print_stdout, reason = "the table is the answer")]
fn run(only: Option<&str>, full: bool) -> Result<bool, Box<dyn std::error::Error>> {
    let chosen: Vec<_> = SUITES
        .iter()
        .filter(|suite| only.is_none_or(|only| only == suite.name))
        .collect();
    if chosen.is_empty() {
        let names: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        return Err(format!("no such suite; there are {}", names.join(", ")).into());
    }
    let settings = Settings::from_environment(Environment::read());
    let mut outcomes = Vec::new();
    for suite in chosen {
        outcomes.push(tell(suite, full));
        // At once: a cluster that nobody needs any more costs the next suite its time.
        Cluster::down(&settings, DISTURBED)?;
    }
    if outcomes
        .iter()
        .any(|o| matches!(o.suite.kind, Kind::Stories(_)))
    {
        Cluster::down(&settings, CLUSTER)?;
    }
    let table = table(&outcomes, full);
    println!("\n{table}");
    if full && only.is_none() {
        let page = product::source().join("docs/soak.md");
        std::fs::write(page, soak(&table)?)?;
    }
    Ok(outcomes.iter().all(|outcome| outcome.failed.is_none()))
}

#[expect(clippy::print_stdout, reason = "who waits sees for what")]
fn tell(suite: &'static Suite, full: bool) -> Outcome {
    println!(
        "== {}: {} (budget {} min)",
        suite.name, suite.about, suite.budget
    );
    let started = Instant::now();
    let failed = lines(suite)
        .iter()
        .find_map(|line| cargo(suite, line, full).err());
    Outcome {
        suite,
        took: started.elapsed(),
        failed,
    }
}

/// cargo's words, one line for each run.
fn lines(suite: &Suite) -> Vec<String> {
    match suite.kind {
        Kind::Cargo(lines) => lines.iter().map(|line| (*line).to_owned()).collect(),
        Kind::Stories(targets) => targets
            .iter()
            .map(|target| {
                format!(
                    "test --quiet --package mooncake-e2e --locked --test {target} \
                     -- --include-ignored --nocapture --test-threads=1"
                )
            })
            .collect(),
    }
}

fn cargo(suite: &Suite, line: &str, full: bool) -> Result<(), String> {
    let minutes = if full {
        24 * 60
    } else {
        suite.budget * PATIENCE
    };
    let mut run = Run::new("cargo")
        .args(line.split_whitespace())
        .env("MOONCAKE_K8S_CLUSTER", CLUSTER)
        .directory(product::source())
        .deadline(Duration::from_secs(u64::from(minutes) * 60));
    if full {
        run = run
            .env("MOONCAKE_STORIES", "full")
            .env("PROPTEST_CASES", "100000");
    }
    run.shown().map_err(|error| error.to_string())
}

fn table(outcomes: &[Outcome], full: bool) -> String {
    let mut table =
        String::from("| suite | shows | result | minutes | budget |\n|---|---|---|---|---|\n");
    for Outcome {
        suite,
        took,
        failed,
    } in outcomes
    {
        let minutes = took.as_secs_f64() / 60.0;
        let result = if failed.is_some() { "FAILED" } else { "passed" };
        let over = if !full && minutes > f64::from(suite.budget) {
            ", over"
        } else {
            ""
        };
        // Writing to a String cannot fail.
        let _ = writeln!(
            table,
            "| {} | {} | {result} | {minutes:.1}{over} | {} |",
            suite.name, suite.about, suite.budget
        );
    }
    for failed in outcomes
        .iter()
        .filter_map(|outcome| outcome.failed.as_deref())
    {
        let _ = writeln!(table, "\n{failed}");
    }
    table
}

/// The page that keeps the last result of `make soak`.
fn soak(table: &str) -> Result<String, mooncake_e2e::Error> {
    let commit = Run::new("git")
        .args(["log", "-1", "--format=%h of %cs"])
        .directory(product::source())
        .output()?;
    Ok(format!(
        "# Soak\n\nThe last run of `make soak`, every suite at full counts, at commit {}.\n\n{table}",
        commit.trim()
    ))
}
