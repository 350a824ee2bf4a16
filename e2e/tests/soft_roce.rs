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

/// Builds a test program of a package and returns its path.
fn test_program(package: &str, test: &str) -> anyhow::Result<PathBuf> {
    let messages = Run::cargo()
        .args(["test", "--quiet", "--locked", "--no-run"])
        .args(["--package", package, "--test", test])
        .arg("--message-format=json")
        .directory(product::source())
        .deadline(BUILD)
        .output()?;
    let program = messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["name"] == test && message["profile"]["test"] == true;
        let path = message["executable"].as_str().filter(|_| is_it)?;
        Some(PathBuf::from(path))
    });
    program.with_context(|| format!("cargo has built no test {test} of {package}"))
}

/// Runs a test program in a guest, one test at a time, on its Soft-RoCE devices.
fn in_guest(program: &Path) -> anyhow::Result<()> {
    let guest = Guest::get(&Settings::read())?;
    let folder = program.parent().context("the program is in a folder")?;
    let script = format!(
        "MOONCAKE_TEST_VERBS=real {} --test-threads=1\n",
        program.display()
    );
    let output = guest.run(&script, &[folder], GUEST)?;
    println!("{output}");
    Ok(())
}

#[test]
#[ignore = "needs a virtual machine: root and 2 GiB of memory"]
fn the_verbs_layer_works_on_soft_roce() -> anyhow::Result<()> {
    in_guest(&test_program("mooncake-sys", "verbs")?)
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
