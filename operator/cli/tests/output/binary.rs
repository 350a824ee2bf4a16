//! The binary without a usable API server: it ends within the deadline, and the error names the server, the context
//! and what to do.

use std::net::TcpListener;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tempfile::TempDir;

fn run(arguments: &[&str], folder: &TempDir) -> (Output, Duration) {
    let started = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-mooncake"))
        .args(arguments)
        .env_clear()
        .env("HOME", folder.path())
        .output()
        .unwrap();
    (output, started.elapsed())
}

fn stderr(output: &Output) -> String {
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The flag of a kubeconfig for that port, plain HTTP.
pub(crate) fn kubeconfig(folder: &TempDir, port: u16) -> String {
    let path = folder.path().join("kubeconfig");
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: far, users: [], \
         clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}], \
         contexts: [{{name: far, context: {{cluster: c, user: ''}}}}]}}"
    );
    std::fs::write(&path, text).unwrap();
    format!("--kubeconfig={}", path.display())
}

#[test]
fn server_that_does_not_respond_is_named_within_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let config = kubeconfig(&folder, port);
    let (output, took) = run(&["doctor", &config, "--timeout=1s"], &folder);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    for words in [
        &format!("127.0.0.1:{port}"),
        "context far",
        "1 s",
        "--timeout",
    ] {
        assert!(text.contains(words), "{text}");
    }
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn refused_connection_names_the_server_and_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|gone| gone.local_addr())
        .unwrap()
        .port();
    let config = kubeconfig(&folder, port);
    let (output, _) = run(&["status", &config], &folder);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    for words in ["Connection refused", "context far", "--context"] {
        assert!(text.contains(words), "{text}");
    }
    assert!(!text.contains("proxy"), "{text}");
}

#[test]
fn missing_kubeconfig_or_context_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (output, _) = run(&["doctor"], &folder);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--kubeconfig"));

    let config = kubeconfig(&folder, 1);
    let (output, _) = run(&["doctor", &config, "--context=near"], &folder);
    assert_eq!(output.status.code(), Some(2));
    let text = stderr(&output);
    assert!(
        text.contains("near") && text.contains("get-contexts"),
        "{text}"
    );
}

#[test]
fn proxy_of_the_environment_is_ignored_and_one_of_the_kubeconfig_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig(&folder, 1);
    let run = |config: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_kubectl-mooncake"))
            .args(["doctor", config])
            .env("HTTPS_PROXY", "http://proxy.example:3128")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2));
        stderr(&output)
    };
    let text = run(&config);
    for words in ["Connection refused", "HTTPS_PROXY is set", "kubectl proxy"] {
        assert!(text.contains(words), "{text}");
    }
    let path = folder.path().join("kubeconfig");
    let text = std::fs::read_to_string(&path).unwrap();
    let named = text.replace(
        "{server:",
        "{proxy-url: 'http://proxy.example:3128', server:",
    );
    std::fs::write(&path, named).unwrap();
    let text = run(&config);
    for words in ["proxy.example", "proxy-url is set", "kubectl proxy"] {
        assert!(text.contains(words), "{text}");
    }
}

#[test]
fn wrong_usage_has_its_own_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    for wrong in [vec!["doctr"], vec!["sizing"], vec!["doctor", "--timeout=0"]] {
        let (output, _) = run(&wrong, &folder);
        assert_eq!(output.status.code(), Some(64), "{wrong:?}");
    }
}

#[test]
fn sizing_by_flags_needs_no_server_and_has_the_exit_status_of_mooncakes_script() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = [
        "sizing",
        "--tp-size=8",
        "--hicache-size=64gb",
        "--global-segment-size=4gb",
        "--arena-pool-size=8gb",
    ];
    for (available, word, code) in [
        ("543gb", "insufficient_for_baseline", 2),
        ("544gb", "baseline_fits_arena_may_fallback", 1),
        ("608gb", "clean_arena_budget_available", 0),
    ] {
        let available = format!("--available-hugetlb={available}");
        let words: Vec<&str> = sizes.into_iter().chain([available.as_str()]).collect();
        let (output, _) = run(&words, &folder);
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains(word), "{text}");
        // Not a terminal.
        assert!(!text.contains('\u{1b}'));
    }
    let (output, _) = run(&sizes, &folder);
    assert_eq!(output.status.code(), Some(0), "planning_only");
}

#[test]
fn sizing_of_a_node_that_cannot_be_read_has_its_own_exit_status() {
    let folder = tempfile::tempdir().unwrap();
    let config = kubeconfig(&folder, 1);
    let words = [
        "sizing",
        "--tp-size=1",
        "--hicache-size=1gb",
        "--global-segment-size=0",
        "--node=n1",
        &config,
    ];
    let (output, _) = run(&words, &folder);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}
