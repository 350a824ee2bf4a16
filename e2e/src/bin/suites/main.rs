//! `suites`: runs the test suites and prints their results beside their time budgets.

mod args;
mod failures;
mod soak_results;
mod suite;

use args::{Args, Command};
use clap::Parser;
use local_cluster::command::Run;
use local_cluster::needs::{self, Needs, packages};
use local_cluster::{Cluster, Settings, cluster};
use mooncake_e2e::product;
use mooncake_e2e::scenario::cluster_names;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use suite::{Kind, SUITES, Suite};

/// The local cluster that the scenarios share.
const CLUSTER: &str = "suites";
/// The local cluster of the test `local_cluster`.
const DISTURBED: &str = "tool";
/// Nodes of a cluster.
const NODES: u8 = 2;
/// Memory of a cluster with scenarios, in bytes.
const CLUSTER_MEMORY: u64 = 4 << 30;
/// Seconds of each fuzz target with reduced counts.
const FUZZ_SECONDS: u32 = 10;
/// Inputs of each fuzz target in full.
const FUZZ_INPUTS: u32 = 10_000_000;
/// A suite is ended after this many times its budget.
const BUDGETS: u32 = 3;
/// With reduced counts, at most this many failed tests of a command get a second attempt. More are not an accident.
const SECOND_ATTEMPTS: usize = 2;

/// The result of one suite.
struct Outcome {
    suite: &'static Suite,
    took: Duration,
    failed: Option<Failure>,
    /// First attempts that failed, of tests that passed at the second.
    unstable: Vec<Failure>,
}

impl Outcome {
    /// `passed` or `FAILED`, with the number of tests that needed a second attempt.
    fn result(&self) -> String {
        let tests: usize = self.unstable.iter().map(|first| first.tests.len()).sum();
        match (&self.failed, tests) {
            (Some(_), _) => "FAILED".to_owned(),
            (None, 0) => "passed".to_owned(),
            (None, tests) => format!("passed, {tests} at the second attempt"),
        }
    }
}

/// The failed command of a suite, and the parts of its output that explain the failure.
struct Failure {
    command: String,
    excerpts: Vec<String>,
    tests: BTreeSet<String>,
}

impl Failure {
    /// Whether its tests get a second attempt: only if the output names them and they are few.
    fn repeatable(&self) -> bool {
        (1..=SECOND_ATTEMPTS).contains(&self.tests.len())
    }
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

/// Runs the suites and returns whether all passed. The next suite runs also after a failed one.
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
    let settings = Settings::read();
    if chosen.iter().any(|suite| suite.machine) {
        // Before the first suite, not minutes later.
        cluster::equip(&settings, Needs::cluster(NODES))?;
        packages::install(packages::STOCK)?;
        packages::install(packages::FUZZ)?;
    }
    let needed = chosen.iter().any(|suite| suite.product);
    let mut outcomes = Vec::new();
    thread::scope(|scope| {
        let mut build = needed.then(|| scope.spawn(|| build_beside(&settings)));
        for suite in chosen {
            if suite.product {
                show_end(build.take());
            }
            outcomes.push(run_suite(suite, full));
            // An unused cluster would slow down the next suite.
            Cluster::down(&settings, DISTURBED)?;
        }
        Ok::<_, local_cluster::Error>(())
    })?;
    if outcomes
        .iter()
        .any(|o| matches!(o.suite.kind, Kind::Scenarios(..)))
    {
        for name in cluster_names(CLUSTER) {
            Cluster::down(&settings, &name)?;
        }
    }
    println!("\n{}", table(&outcomes, full));
    if full {
        save(&outcomes)?;
    }
    Ok(outcomes.iter().all(|outcome| outcome.failed.is_none()))
}

/// Builds the images with what the suites leave of the processors: many tests wait.
fn build_beside(settings: &Settings) -> Result<(), local_cluster::Error> {
    product::build_beside(settings).map(drop)
}

/// Waits for the build of the images. Its failure fails no suite here: the next one builds them again, and fails with the reason.
#[expect(clippy::print_stdout, reason = "shows progress")]
fn show_end(build: Option<thread::ScopedJoinHandle<'_, Result<(), local_cluster::Error>>>) {
    let Some(build) = build else {
        return;
    };
    let waits = Instant::now();
    match build.join() {
        Ok(Ok(())) => println!("== images: built, {:.0?} waited", waits.elapsed()),
        Ok(Err(error)) => println!("== images: {error}"),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[expect(clippy::print_stdout, reason = "shows progress")]
fn run_suite(suite: &'static Suite, full: bool) -> Outcome {
    println!(
        "== {}: {} (budget {} min)",
        suite.name, suite.about, suite.budget
    );
    let started = Instant::now();
    let mut unstable = Vec::new();
    let failed = lines(suite, full).iter().find_map(|line| {
        let first = cargo(suite, line, full).err()?;
        if full || !first.repeatable() {
            return Some(first);
        }
        let again = only_tests(line, &first.tests);
        println!("== {}: second attempt of {:?}", suite.name, first.tests);
        let second = cargo(suite, &again, full).err();
        if second.is_none() {
            unstable.push(first);
        }
        second
    });
    Outcome {
        suite,
        took: started.elapsed(),
        failed,
        unstable,
    }
}

/// The arguments of cargo that run only these tests.
fn only_tests(line: &str, tests: &BTreeSet<String>) -> String {
    let separator = if line.contains(" -- ") { "" } else { " --" };
    let names: Vec<_> = tests.iter().map(String::as_str).collect();
    format!("{line}{separator} --exact {}", names.join(" "))
}

/// Arguments of cargo, one line per run.
#[expect(clippy::print_stdout, reason = "the reader of a test run reads this")]
fn lines(suite: &Suite, full: bool) -> Vec<String> {
    match suite.kind {
        Kind::Cargo(lines) => lines.iter().map(|line| (*line).to_owned()).collect(),
        Kind::Fuzz(targets) => {
            let limit = if full {
                format!("-runs={FUZZ_INPUTS}")
            } else {
                println!("{FUZZ_SECONDS} s instead of {FUZZ_INPUTS} inputs of each fuzz target");
                format!("-max_total_time={FUZZ_SECONDS}")
            };
            let words = |target: &&str| {
                // Fails on an input that allocates too much memory.
                format!(
                    "run --quiet --release --locked --bin {target} -- {limit} \
                     -malloc_limit_mb=16 -rss_limit_mb=512 -verbosity=0 -print_final_stats=1 \
                     -artifact_prefix=../../../target/fuzz/"
                )
            };
            targets.iter().map(words).collect()
        }
        Kind::Scenarios(target, threads) => vec![format!(
            "test --quiet --workspace --locked --test {target} \
             -- --include-ignored --nocapture --test-threads={threads}"
        )],
    }
}

fn cargo(suite: &Suite, line: &str, full: bool) -> Result<(), Failure> {
    let minutes = if full {
        24 * 60
    } else {
        suite.budget * BUDGETS
    };
    let directory = match suite.kind {
        // A workspace with compiler flags of its own.
        Kind::Fuzz(_) => &product::source().join("engine/proto/fuzz"),
        Kind::Cargo(_) | Kind::Scenarios(..) => product::source(),
    };
    let mut run = Run::cargo()
        .args(line.split_whitespace())
        .env("MOONCAKE_K8S_CLUSTER", CLUSTER)
        .env("MOONCAKE_TEST_CLUSTERS", clusters_at_a_time().to_string())
        .env("RUST_TEST_THREADS", tests_at_a_time().to_string())
        // An earlier line has built all programs, or this one does.
        .env("MOONCAKE_TEST_PROGRAMS", "built")
        .directory(directory)
        .deadline(Duration::from_secs(u64::from(minutes) * 60));
    if full {
        run = run
            .env("MOONCAKE_SCENARIOS", "full")
            .env("PROPTEST_CASES", "100000")
            .env("MASTER_CALLS", "1000000")
            .env("LOOM_MAX_PREEMPTIONS", "5")
            .env("FAULTY_TRANSFERS", "1000000");
    }
    let mut collector = failures::Collector::default();
    run.shown(|line| collector.add(line))
        .map_err(|error| Failure {
            command: error.to_string(),
            tests: collector.tests(),
            excerpts: collector.excerpts(),
        })
}

/// Number of clusters that fit into memory. Scenarios with exclusive use mostly wait, so cores do not matter.
fn clusters_at_a_time() -> u64 {
    needs::available_memory().map_or(1, |bytes| (bytes / CLUSTER_MEMORY).clamp(1, 3))
}

/// Number of tests of a program at a time, unless its line has another one: many of them wait for timers and other processes.
fn tests_at_a_time() -> usize {
    2 * thread::available_parallelism().map_or(1, usize::from)
}

fn table(outcomes: &[Outcome], full: bool) -> String {
    let mut table =
        String::from("| suite | shows | result | minutes | budget |\n|---|---|---|---|---|\n");
    for outcome in outcomes {
        let Outcome { suite, took, .. } = outcome;
        let minutes = took.as_secs_f64() / 60.0;
        let result = outcome.result();
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
    for Failure {
        command, excerpts, ..
    } in outcomes
        .iter()
        .flat_map(|outcome| outcome.unstable.iter().chain(&outcome.failed))
    {
        let _ = writeln!(table, "\n{command}");
        for excerpt in excerpts {
            let _ = writeln!(table, "\n{excerpt}");
        }
    }
    table
}

/// Writes the results to docs/soak.md, which keeps the last result of each suite.
fn save(outcomes: &[Outcome]) -> Result<(), Box<dyn std::error::Error>> {
    let git = |arguments: &[&str]| {
        Run::new("git")
            .args(arguments)
            .directory(product::source())
            .output()
    };
    let commit = git(&["log", "-1", "--format=%h of %cs"])?;
    let changed = !git(&["status", "--porcelain"])?.is_empty();
    let state = if changed { ", with changes" } else { "" };
    let ran = outcomes.iter().map(|outcome| {
        let minutes = outcome.took.as_secs_f64() / 60.0;
        let result = outcome.result();
        let row = format!("{result} | {minutes:.1} | {}{state}", commit.trim());
        (outcome.suite.name, row)
    });
    let path = product::source().join("docs/soak.md");
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    std::fs::write(path, soak_results::updated(&before, &ran.collect()))?;
    Ok(())
}
