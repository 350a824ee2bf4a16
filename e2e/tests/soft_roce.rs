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

/// Runs test programs in one guest, one test at a time, on its Soft-RoCE devices.
fn in_guest(programs: &[(&Path, &str)], shares: &[&Path]) -> anyhow::Result<()> {
    let guest = Guest::get(&Settings::read())?;
    let mut script = "set -e\nexport MOONCAKE_TEST_VERBS=real\n".to_owned();
    let mut shares = shares.to_vec();
    for (program, tests) in programs {
        let arguments = "--include-ignored --test-threads=1 --color=never";
        script.push_str(&format!("{} {tests} {arguments}\n", program.display()));
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
    match guest.run(&script, &shares, GUEST) {
        Ok(output) => println!("{}", marked(&output)),
        Err(error) => anyhow::bail!("in the guest:\n{}", marked(&error.to_string())),
    }
    Ok(())
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
    let wheel = mooncake_stock::MOONCAKE.site()?;
    let sources = product::source().join("engine");
    in_guest(
        &[
            (&layer, ""),
            (&transport, "transport::conformance::r"),
            (&stock, ""),
            (&process, ""),
        ],
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
