//! `suites`: runs the test suites and prints their results beside their time budgets.

mod args;
mod failures;
mod scenario_times;
mod soak_results;
mod suite;

use args::{Args, Command};
use clap::Parser;
use local_cluster::binaries::Binaries;
use local_cluster::cache::{Cache, lock_within};
use local_cluster::command::Run;
use local_cluster::images::Images;
use local_cluster::needs::{self, Needs, go, packages};
use local_cluster::wait::wait_until;
use local_cluster::{Cluster, Settings, cluster};
use mooncake_e2e::{clusters, product};
use rustix::process::{WaitOptions, wait};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use suite::{Kind, SUITES, Suite};

/// Exit status after a signal, as shells have it for SIGINT.
const INTERRUPTED: u8 = 130;
/// Time for the programs of an interrupted run to end.
const ENDING: Duration = Duration::from_secs(60);
/// Nodes of a cluster.
const NODES: u8 = 2;
/// Memory of a cluster with scenarios, in bytes.
const CLUSTER_MEMORY: u64 = 4 << 30;
/// Seconds of each fuzz target with reduced counts.
const FUZZ_SECONDS: u32 = 10;
/// A suite is ended after this many times its budget.
const BUDGETS: u32 = 3;
/// With reduced counts, at most this many failed tests of a command get a second attempt. More are not an accident.
const SECOND_ATTEMPTS: usize = 2;

/// The result of one suite.
struct Outcome {
    suite: &'static Suite,
    took: Duration,
    failed: Option<Failure>,
    /// Tests that only the soak runs.
    skipped: usize,
    /// Times of its scenarios.
    times: Vec<String>,
    /// First attempts that failed, of tests that passed at the second.
    unstable: Vec<Failure>,
}

impl Outcome {
    /// `passed` or `FAILED`, with the number of tests that needed a second attempt, and of those that did not run.
    fn result(&self) -> String {
        if self.failed.is_some() {
            return "FAILED".to_owned();
        }
        let repeated: usize = self.unstable.iter().map(|first| first.tests.len()).sum();
        let mut result = "passed".to_owned();
        for (count, what) in [
            (repeated, "at the second attempt"),
            (self.skipped, "skipped"),
        ] {
            if count > 0 {
                result.push_str(&format!(", {count} {what}"));
            }
        }
        result
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
    let Args { cluster, command } = Args::parse();
    let outcome = match command {
        Command::Test { only } => run(&only, false, &cluster),
        Command::Soak { only } => run(&only, true, &cluster),
        Command::Clean { interrupted } => clean(&cluster, interrupted),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("suites: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the suites; the exit status shows whether all passed. The next suite runs also after a failed one.
#[expect(clippy::print_stdout, reason = "the table is the answer")]
fn run(only: &[String], full: bool, base: &str) -> Result<ExitCode, Box<dyn std::error::Error>> {
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
    // Before the first suite, not minutes later.
    equip(&settings, &chosen)?;
    let names: BTreeSet<_> = chosen
        .iter()
        .flat_map(|suite| clusters_of(suite, base))
        .collect();
    let _lock = if names.is_empty() {
        None
    } else {
        let lock = only_run(&settings)?;
        remove_at_a_signal(base)?;
        // A run that was killed may have left them with cut links, patched objects and labels.
        for name in &names {
            Cluster::down(&settings, name)?;
        }
        Some(lock)
    };
    let needed = chosen.iter().any(|suite| suite.product);
    let mut outcomes = Vec::new();
    let mut left = Vec::new();
    let mut remove = |names: &[String]| {
        for name in names {
            if let Err(error) = Cluster::down(&settings, name) {
                left.push(format!("cluster {name} is not removed: {error}"));
            }
        }
    };
    thread::scope(|scope| {
        let mut build = needed.then(|| scope.spawn(|| build_beside(&settings)));
        for suite in chosen {
            if suite.product {
                show_end(build.take());
            }
            outcomes.push(run_suite(suite, full, base));
            let own = clusters_of(suite, base);
            // Those of scenarios are for the next suites too. Others would slow these down.
            if !own.iter().any(|name| name == base) {
                remove(&own);
            }
        }
    });
    remove(&names.into_iter().collect::<Vec<_>>());
    println!("\n{}", table(&outcomes, full));
    for text in &left {
        println!("{text}");
    }
    save_times(&outcomes)?;
    if full {
        save(&outcomes)?;
    }
    let passed = left.is_empty() && outcomes.iter().all(|outcome| outcome.failed.is_none());
    Ok(if passed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The local clusters that a suite creates.
fn clusters_of(suite: &Suite, base: &str) -> Vec<String> {
    match suite.kind {
        Kind::Scenarios { target, .. } => clusters::of_target(target, base),
        Kind::Cargo(_) | Kind::Fuzz(_) => Vec::new(),
    }
}

/// Checks what the chosen suites need, lists what will be installed, and installs it.
#[expect(clippy::print_stdout, reason = "shows what will be installed")]
fn equip(settings: &Settings, chosen: &[&Suite]) -> Result<(), Box<dyn std::error::Error>> {
    let has = |name: &str| chosen.iter().any(|suite| suite.name == name);
    if has("lint") {
        for component in ["fmt", "clippy"] {
            Run::cargo().args([component, "--version"]).done().map_err(|error| {
                format!("suite lint needs rustfmt and clippy (`rustup component add rustfmt clippy`): {error}")
            })?;
        }
    }
    if has("cluster") || has("install") {
        needs::check_ipv6()?;
    }
    if !chosen.iter().any(|suite| suite.machine) {
        return Ok(());
    }
    let cached = Binaries::cached(settings) && Images::cached(settings);
    let mut wanted = vec![packages::RUN, packages::STOCK, packages::FUZZ];
    if !cached || chosen.iter().any(|suite| suite.product) {
        wanted.push(packages::BUILD);
    }
    if has("rdma") || has("scenarios") {
        wanted.push(packages::MACHINE);
    }
    let missing = packages::to_install(&wanted);
    if !missing.is_empty() {
        println!("will install Debian packages: {}", missing.join(" "));
    }
    if let Some(package) = go::to_install(&Cache::new(&settings.cache)).filter(|_| !cached) {
        println!(
            "will install {package} from PyPI into {}",
            settings.cache.display()
        );
    }
    cluster::equip(settings, Needs::cluster(NODES))?;
    wanted.into_iter().try_for_each(packages::install)?;
    Ok(())
}

/// The lock of the suites: two runs would remove each other's clusters.
fn only_run(settings: &Settings) -> Result<File, String> {
    // Not a queue: the other run takes the better part of an hour. `NAME.lock` is the lock of the cluster NAME, which cannot
    // begin with a dot.
    lock_within(&settings.state.join(".suites.lock"), Duration::ZERO).map_err(|error| {
        format!(
            "another run of the suites uses this state folder: {error}. Wait for its end, or set MOONCAKE_K8S_STATE and \
             MOONCAKE_K8S_CLUSTER to other values"
        )
    })
}

/// At SIGINT or SIGTERM this process becomes `suites clean`. The kernel ends the programs that its threads have started.
fn remove_at_a_signal(base: &str) -> Result<(), Box<dyn std::error::Error>> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let program = std::env::current_exe()?;
    let base = base.to_owned();
    // Registered before the first suite, not when the thread comes to it.
    let (mut interrupt, mut terminate) = runtime.block_on(async {
        Ok::<_, std::io::Error>((
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
        ))
    })?;
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        let failed = std::process::Command::new(program)
            .args(["--cluster", &base, "clean", "--interrupted"])
            .exec();
        eprintln!(
            "suites: cannot remove the clusters: {failed}. `cargo run --bin suites -- clean` does it"
        );
        std::process::exit(INTERRUPTED.into());
    });
    Ok(())
}

/// Removes the clusters of all suites. `interrupted`: after the programs that this process started before.
#[expect(clippy::print_stdout, reason = "shows progress")]
fn clean(base: &str, interrupted: bool) -> Result<ExitCode, Box<dyn std::error::Error>> {
    let settings = Settings::read();
    println!("== removing the clusters of the suites");
    if interrupted {
        wait_until("the interrupted programs to end", ENDING, || {
            // An error: there is none left.
            Ok(match wait(WaitOptions::NOHANG) {
                Err(_) => Ok(()),
                Ok(_) => Err("one runs".to_owned()),
            })
        })?;
    }
    let _lock = only_run(&settings)?;
    let names: BTreeSet<_> = SUITES
        .iter()
        .flat_map(|suite| clusters_of(suite, base))
        .collect();
    let downs = names.iter().map(|name| Cluster::down(&settings, name));
    // All of them, also when one stays.
    let removed: Vec<_> = downs.collect();
    removed.into_iter().collect::<Result<(), _>>()?;
    Ok(if interrupted {
        ExitCode::from(INTERRUPTED)
    } else {
        ExitCode::SUCCESS
    })
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
fn run_suite(suite: &'static Suite, full: bool, base: &str) -> Outcome {
    println!(
        "== {}: {} (budget {} min)",
        suite.name, suite.about, suite.budget
    );
    let started = Instant::now();
    let mut unstable = Vec::new();
    let mut skipped = 0;
    let mut times = Vec::new();
    let failed = lines(suite, full).iter().find_map(|line| {
        let (first, mut output) = cargo(suite, line, full, base);
        skipped += output.skipped();
        times.append(&mut output.times());
        let first = first.err()?;
        if full || !first.repeatable() {
            return Some(first);
        }
        let again = only_tests(line, &first.tests);
        println!("== {}: second attempt of {:?}", suite.name, first.tests);
        let (second, mut output) = cargo(suite, &again, full, base);
        times.append(&mut output.times());
        let second = second.err();
        if second.is_none() {
            unstable.push(first);
        }
        second
    });
    Outcome {
        suite,
        took: started.elapsed(),
        failed,
        skipped,
        times,
        unstable,
    }
}

/// The arguments of cargo that run only these tests.
fn only_tests(line: &str, tests: &BTreeSet<String>) -> String {
    let separator = if line.contains(" -- ") { "" } else { " --" };
    let exact = if line.contains(" --exact ") {
        ""
    } else {
        " --exact"
    };
    let names: Vec<_> = tests.iter().map(String::as_str).collect();
    format!("{line}{separator}{exact} {}", names.join(" "))
}

/// Arguments of cargo, one line per run.
#[expect(clippy::print_stdout, reason = "the reader of a test run reads this")]
fn lines(suite: &Suite, full: bool) -> Vec<String> {
    match suite.kind {
        Kind::Cargo(lines) => lines.iter().map(|line| (*line).to_owned()).collect(),
        Kind::Fuzz(targets) => {
            let words = |(target, inputs): &(&str, u32)| {
                let limit = if full {
                    format!("-runs={inputs}")
                } else {
                    println!("{FUZZ_SECONDS} s instead of {inputs} inputs of {target}");
                    format!("-max_total_time={FUZZ_SECONDS}")
                };
                // Fails on an input that allocates too much memory.
                format!(
                    "run --quiet --release --locked --bin {target} -- {limit} \
                     -malloc_limit_mb=16 -rss_limit_mb=512 -verbosity=0 -print_final_stats=1 \
                     -artifact_prefix=../../../target/fuzz/"
                )
            };
            targets.iter().map(words).collect()
        }
        Kind::Scenarios {
            target,
            threads,
            alone,
        } => {
            let common = format!(
                "test --quiet --workspace --locked --test {target} -- --include-ignored --nocapture"
            );
            let skipped: String = alone.iter().map(|test| format!(" --skip {test}")).collect();
            let together = format!("{common} --test-threads={threads}{skipped}");
            let alone = alone.iter().map(|test| format!("{common} --exact {test}"));
            std::iter::once(together).chain(alone).collect()
        }
    }
}

/// The workspace of the fuzz targets. libFuzzer writes inputs that fail only into a folder that exists, and cargo makes it
/// only without CARGO_TARGET_DIR.
fn fuzz_workspace() -> PathBuf {
    let source = product::source();
    // Without the folder libFuzzer fails, with its path.
    fs::create_dir_all(source.join("target/fuzz")).ok();
    source.join("engine/proto/fuzz")
}

/// Runs cargo, and collects what its output states.
fn cargo(
    suite: &Suite,
    line: &str,
    full: bool,
    base: &str,
) -> (Result<(), Failure>, failures::Collector) {
    let minutes = if full {
        24 * 60
    } else {
        suite.budget * BUDGETS
    };
    let directory = match suite.kind {
        // A workspace with compiler flags of its own.
        Kind::Fuzz(_) => &fuzz_workspace(),
        Kind::Cargo(_) | Kind::Scenarios { .. } => product::source(),
    };
    let mut run = Run::cargo()
        .args(line.split_whitespace())
        .env("MOONCAKE_K8S_CLUSTER", base)
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
            .env("LEDGER_CASES", "100000")
            .env("ELECTION_RUNS", "10000")
            .env("LOOM_MAX_PREEMPTIONS", "5")
            .env("FAULTY_TRANSFERS", "1000000");
    }
    let mut collector = failures::Collector::default();
    let outcome = run.shown(|line| collector.add(line));
    let failed = outcome.map_err(|error| Failure {
        tests: collector.tests(error.exit_code()),
        command: error.to_string(),
        excerpts: collector.excerpts(),
    });
    (failed, collector)
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

/// Writes the times of the scenarios, if any ran, below `target`.
#[expect(clippy::print_stdout, reason = "shows where they are")]
fn save_times(outcomes: &[Outcome]) -> Result<(), Box<dyn std::error::Error>> {
    let lines = outcomes.iter().flat_map(|outcome| {
        let times = outcome.times.iter();
        times.map(|fields| (outcome.suite.name, fields.as_str()))
    });
    if lines.clone().next().is_some() {
        let folder = product::source().join("target");
        // Not made by cargo where CARGO_TARGET_DIR is set.
        fs::create_dir_all(&folder)?;
        let path = folder.join(scenario_times::FILE);
        fs::write(&path, scenario_times::text(lines))?;
        println!("times of the scenarios: {}", path.display());
    }
    Ok(())
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
    let before = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    fs::write(path, soak_results::updated(&before, &ran.collect()))?;
    Ok(())
}
