//! RDMA on Soft-RoCE: tests of other crates, run in a virtual machine, because this machine's kernel may have no RDMA.

use anyhow::Context;
use local_cluster::command::Run;
use local_cluster::guest::Guest;
use local_cluster::{Error, Settings};
use mooncake_e2e::product;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BUILD: Duration = Duration::from_secs(15 * 60);
/// The guest is 10 to 20 times slower, and shares the processors with other suites.
const GUEST: Duration = Duration::from_secs(10 * 60);

/// Builds a test program of a package, chosen by arguments of cargo, and returns its path. For the whole workspace, as the other
/// suites: for one package, what it depends on would be built again.
fn test_program(package: &str, chosen: &[&str], name: &str) -> anyhow::Result<PathBuf> {
    let messages = Run::cargo()
        .args(["test", "--quiet", "--locked", "--no-run", "--workspace"])
        .args(chosen)
        .arg("--message-format=json")
        .directory(product::source())
        .deadline(BUILD)
        .output()?;
    let program = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let of_package = message["package_id"]
            .as_str()?
            .contains(&format!("#{package}@"));
        let is_it = message["target"]["name"] == name && message["profile"]["test"] == true;
        let path = message["executable"]
            .as_str()
            .filter(|_| is_it && of_package)?;
        Some(PathBuf::from(path))
    });
    program.with_context(|| format!("cargo has built no test program {name} of {package}"))
}

/// The version of Python in the guest, whose release of Debian is not always that of this machine.
const PYTHON: &str = "3.11";

/// The commands by which the stock wheel for the guest's Python is where tests look for the one of this machine's.
fn placed(wheel: &Path) -> anyhow::Result<String> {
    let name = wheel.file_name().and_then(|name| name.to_str());
    let name = name.and_then(|name| name.strip_suffix(&format!("-python{PYTHON}")));
    let name = name.with_context(|| format!("{} is for another Python", wheel.display()))?;
    Ok(format!(
        "mkdir -p ~/.cache/mooncake-k8s\nln -s '{}' ~/.cache/mooncake-k8s/{name}\n",
        wheel.display()
    ))
}

/// The number of passed tests in each summary of libtest.
fn passed(output: &str) -> Vec<usize> {
    let summaries = output.lines().filter_map(|line| {
        let counts = line.strip_prefix("test result: ok. ")?;
        counts.split_once(" passed")?.0.parse().ok()
    });
    summaries.collect()
}

/// Runs test programs in one guest, one test at a time, on its Soft-RoCE devices.
fn in_guest(programs: &[(&Path, &str)], setup: &str, shares: &[&Path]) -> anyhow::Result<()> {
    let guest = Guest::get(&Settings::read())?;
    let mut script = format!("set -e\nexport MOONCAKE_TEST_VERBS=real\n{setup}");
    let mut shares = shares.to_vec();
    for (program, tests) in programs {
        let arguments = "--include-ignored --test-threads=1 --color=never";
        script.push_str(&format!("'{}' {tests} {arguments}\n", program.display()));
        let folder = program.parent().context("the program is in a folder")?;
        if !shares.contains(&folder) {
            shares.push(folder);
        }
    }
    // Marked, so that whoever reads this program's output takes no test in it for a test of this program.
    let marked = |text: &str| -> String {
        text.lines()
            .map(|line| format!("guest| {line}\n"))
            .collect()
    };
    let output = match guest.run(&script, &shares, GUEST) {
        Ok(output) => output,
        Err(error) => anyhow::bail!("in the guest:\n{}", marked(&error.to_string())),
    };
    println!("{}", marked(&output));
    // A program without a matching test exits with 0, too.
    let passed = passed(&output);
    anyhow::ensure!(
        passed.len() == programs.len() && passed.iter().all(|count| *count > 0),
        "of {} programs, these numbers of tests passed: {passed:?}",
        programs.len()
    );
    Ok(())
}

#[test]
fn a_program_that_ran_no_test_is_seen_in_its_summary() {
    let output = "running 3 tests\ntest result: ok. 3 passed; 0 failed; 0 ignored\n\n\
                  running 0 tests\ntest result: ok. 0 passed; 0 failed; 9 filtered out\n";
    assert_eq!(passed(output), [3, 0]);
    assert!(passed("Segmentation fault").is_empty());
}

#[test]
#[ignore = "needs a virtual machine: root and 2 GiB of memory"]
fn the_verbs_layer_and_the_transport_work_on_soft_roce_also_with_a_stock_engine()
-> anyhow::Result<()> {
    let layer = test_program("mooncake-sys", &["--test", "verbs"], "verbs")?;
    let engine = "mooncake-engine";
    let transport = test_program(engine, &["--lib"], "mooncake_engine")?;
    let stock = test_program(engine, &["--test", "rdma"], "rdma")?;
    let process = test_program("mooncake-engine-process", &["--test", "rdma"], "rdma")?;
    // The program that it starts is beside its folder.
    let programs = process.ancestors().nth(2).context("a folder of cargo")?;
    let wheel = mooncake_stock::MOONCAKE.for_python(PYTHON).site()?;
    let sources = product::source().join("engine");
    in_guest(
        &[
            (&layer, ""),
            (&transport, "transport::conformance::r"),
            (&stock, ""),
            (&process, ""),
        ],
        &placed(&wheel)?,
        &[&wheel, &sources, programs],
    )
}

#[test]
#[ignore = "needs a virtual machine: root and 2 GiB of memory"]
fn a_command_that_fails_in_a_guest_is_an_error_with_its_output() -> anyhow::Result<()> {
    let guest = Guest::get(&Settings::read())?;
    let error = guest
        .run("echo it is here; exit 3", &[], GUEST)
        .err()
        .context("the command fails")?;
    let Error::Command { status, stderr, .. } = &error else {
        return Err(error.into());
    };
    anyhow::ensure!(
        status == "exit status 3" && stderr.contains("it is here"),
        "{error}"
    );
    Ok(())
}
