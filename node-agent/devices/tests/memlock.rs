//! Starts the memlock hook as a container runtime does: it lifts the limit, and no input fails the container.
#![allow(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

/// Started with a soft limit of 64 KiB; it ends with the test.
struct Container(Child);

impl Container {
    fn start() -> Self {
        let script = "ulimit -S -l 64; exec sleep 600";
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        Self(child)
    }

    /// Soft and hard.
    fn limits(&self) -> [String; 2] {
        let path = format!("/proc/{}/limits", self.0.id());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text
            .lines()
            .find(|line| line.starts_with("Max locked memory"));
        let words = line.unwrap().split_whitespace().collect::<Vec<_>>();
        [words[3].to_owned(), words[4].to_owned()]
    }

    fn has_started(&self) -> bool {
        self.limits()[0] == (64 << 10).to_string()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hook(arguments: &[&str], state: &str) -> Output {
    let mut hook = Command::new(env!("CARGO_BIN_EXE_memlock"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let written = hook.stdin.take().unwrap().write_all(state.as_bytes());
    let output = hook.wait_with_output().unwrap();
    // The hook may exit before it has read its input.
    written.ok();
    output
}

/// Whether this process may lift limits: it has no hard limit, or a trial succeeds.
fn may_lift() -> bool {
    getrlimit(Resource::Memlock).maximum.is_none() || hook(&["trial"], "").status.success()
}

#[test]
fn the_hook_lifts_the_limit_if_permitted_and_keeps_it_otherwise() {
    let container = Container::start();
    let began = Instant::now();
    while !container.has_started() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "no shell has started"
        );
        std::thread::yield_now();
    }
    let state = format!(
        r#"{{"ociVersion": "1.2.0", "id": "x", "pid": {}}}"#,
        container.0.id()
    );
    let before = container.limits();
    let output = hook(&[], &state);
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    if may_lift() {
        assert_eq!(container.limits(), ["unlimited", "unlimited"], "{words}");
    } else {
        assert_eq!(container.limits(), before);
        assert!(words.contains("Operation not permitted"), "{words}");
        assert!(!hook(&["trial"], "").status.success());
    }
}

#[test]
fn a_container_starts_with_any_state() {
    for state in [
        "",
        "no JSON",
        "{}",
        r#"{"pid": 0}"#,
        r#"{"pid": -1}"#,
        r#"{"pid": "1"}"#,
        r#"{"pid": 99999999999}"#,
        r#"{"pid": 2147483647}"#,
    ] {
        let output = hook(&[], state);
        assert!(output.status.success(), "{state}");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(
            words.starts_with("Cannot lift the memlock limit: "),
            "{state}: {words}"
        );
    }
}
