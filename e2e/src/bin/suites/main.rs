//! `suites`: runs the tests, suite by suite, and prints the table of time budgets.

mod args;
mod page;
mod suite;
mod words;

use args::{Args, Command};
use clap::Parser;
use mooncake_e2e::command::Run;
use mooncake_e2e::needs::{self, Needs, packages};
use mooncake_e2e::settings::Environment;
use mooncake_e2e::story::stages;
use mooncake_e2e::{Cluster, Settings, cluster, product};
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use suite::{Kind, SUITES, Suite};

/// The local cluster that the stories share.
const CLUSTER: &str = "suites";
/// The one that `local_cluster` cuts and kills.
const DISTURBED: &str = "tool";
/// Nodes of a stage.
const NODES: u8 = 2;
/// What a stage takes at the height of a story.
const STAGE_MEMORY: u64 = 4 << 30;
/// Of each fuzz target: reduced, and in full.
const FUZZED: [u32; 2] = [10, 300];
/// A suite that hangs is ended after this many budgets.
const PATIENCE: u32 = 3;

/// What became of one suite.
struct Outcome {
    suite: &'static Suite,
    took: Duration,
    failed: Option<Failure>,
}

/// A suite's failing command, and what its tests said of why.
struct Failure {
    command: String,
    words: Vec<String>,
}

fn main() -> ExitCode {
    let (only, full) = match Args::parse().command {
        Command::Test { only } => (only, false),
        Command::Soak { only } => (only, true),
    };
    match run(&only, full) {
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
fn run(only: &[String], full: bool) -> Result<bool, Box<dyn std::error::Error>> {
    if let Some(unknown) = only
        .iter()
        .find(|only| SUITES.iter().all(|suite| suite.name != **only))
    {
        let names: Vec<_> = SUITES.iter().map(|suite| suite.name).collect();
        return Err(format!("no suite {unknown}; there are {}", names.join(", ")).into());
    }
    let chosen: Vec<_> = SUITES
        .iter()
        .filter(|suite| only.is_empty() || only.iter().any(|only| only == suite.name))
        .collect();
    let settings = Settings::from_environment(Environment::read());
    if chosen.iter().any(|suite| suite.machine) {
        // Now, not after ten minutes of other suites.
        cluster::equip(&settings, Needs::cluster(NODES))?;
        packages::install(packages::STOCK)?;
        packages::install(packages::FUZZ)?;
    }
    let mut outcomes = Vec::new();
    for suite in chosen {
        outcomes.push(tell(suite, full));
        // At once: a cluster that nobody needs any more costs the next suite its time.
        Cluster::down(&settings, DISTURBED)?;
    }
    if outcomes
        .iter()
        .any(|o| matches!(o.suite.kind, Kind::Stories(..)))
    {
        for name in stages(CLUSTER) {
            Cluster::down(&settings, &name)?;
        }
    }
    println!("\n{}", table(&outcomes, full));
    if full {
        keep(&outcomes)?;
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
    let failed = lines(suite, full)
        .iter()
        .find_map(|line| cargo(suite, line, full).err());
    Outcome {
        suite,
        took: started.elapsed(),
        failed,
    }
}

/// cargo's words, one line for each run.
#[expect(clippy::print_stdout, reason = "the reader of a test run reads this")]
fn lines(suite: &Suite, full: bool) -> Vec<String> {
    match suite.kind {
        Kind::Cargo(lines) => lines.iter().map(|line| (*line).to_owned()).collect(),
        Kind::Fuzz(targets) => {
            let [reduced, all] = FUZZED;
            let seconds = if full { all } else { reduced };
            println!("{seconds} of {all} seconds of each fuzz target");
            let words = |target: &&str| {
                // A small input must not make its reader take much memory.
                format!(
                    "run --quiet --release --locked --bin {target} -- -max_total_time={seconds} \
                     -malloc_limit_mb=16 -rss_limit_mb=512 -verbosity=0 -print_final_stats=1 \
                     -artifact_prefix=../../../target/fuzz/"
                )
            };
            targets.iter().map(words).collect()
        }
        Kind::Stories(target, threads) => vec![format!(
            "test --quiet --package mooncake-e2e --locked --test {target} \
             -- --include-ignored --nocapture --test-threads={threads}"
        )],
    }
}

fn cargo(suite: &Suite, line: &str, full: bool) -> Result<(), Failure> {
    let minutes = if full {
        24 * 60
    } else {
        suite.budget * PATIENCE
    };
    let directory = match suite.kind {
        // Its own workspace, with compiler flags of its own.
        Kind::Fuzz(_) => &product::source().join("engine/proto/fuzz"),
        Kind::Cargo(_) | Kind::Stories(..) => product::source(),
    };
    let mut run = Run::cargo()
        .args(line.split_whitespace())
        .env("MOONCAKE_K8S_CLUSTER", CLUSTER)
        .env("MOONCAKE_STAGES", stages_at_a_time().to_string())
        .directory(directory)
        .deadline(Duration::from_secs(u64::from(minutes) * 60));
    if full {
        run = run
            .env("MOONCAKE_STORIES", "full")
            .env("PROPTEST_CASES", "100000");
    }
    let mut heard = words::Listener::default();
    run.shown(|line| heard.hear(line)).map_err(|error| Failure {
        command: error.to_string(),
        words: heard.heard(),
    })
}

/// As many as there is memory for; the stories that have one alone mostly wait, so cores do not matter.
fn stages_at_a_time() -> u64 {
    needs::available_memory().map_or(1, |bytes| (bytes / STAGE_MEMORY).clamp(1, 3))
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
    for Failure { command, words } in outcomes
        .iter()
        .filter_map(|outcome| outcome.failed.as_ref())
    {
        let _ = writeln!(table, "\n{command}");
        for words in words {
            let _ = writeln!(table, "\n{words}");
        }
    }
    table
}

/// Writes the results into the page that keeps the last one of each suite.
fn keep(outcomes: &[Outcome]) -> Result<(), Box<dyn std::error::Error>> {
    let git = |words: &[&str]| {
        Run::new("git")
            .args(words)
            .directory(product::source())
            .output()
    };
    let commit = git(&["log", "-1", "--format=%h of %cs"])?;
    let changed = !git(&["status", "--porcelain"])?.is_empty();
    let state = if changed { ", with changes" } else { "" };
    let ran = outcomes.iter().map(|outcome| {
        let minutes = outcome.took.as_secs_f64() / 60.0;
        let result = if outcome.failed.is_some() {
            "FAILED"
        } else {
            "passed"
        };
        let row = format!("{result} | {minutes:.1} | {}{state}", commit.trim());
        (outcome.suite.name, row)
    });
    let path = product::source().join("docs/soak.md");
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    std::fs::write(path, page::page(&before, &ran.collect()))?;
    Ok(())
}
