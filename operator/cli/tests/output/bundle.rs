//! `bundle` against a scripted API server with a secret in every place where one may be: none of them is in the archive, an
//! agent that does not answer costs the deadline only, and what is missing is named.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::script::{serve, version};

/// In every secret.
const PLANTED: &str = "PLANTED";
/// The paths that were requested.
static REQUESTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn list(items: Value) -> (u16, Value) {
    (200, json!({"metadata": {}, "items": items}))
}

fn planted_annotations() -> Value {
    json!({
        "mooncake.io/injected": "kv",
        "vault.example/token": PLANTED,
        "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"env\": \"{PLANTED}\"}}"),
    })
}

/// A pod with secrets in its annotations, environment, arguments, volumes and the message of its container.
fn pod(name: &str, component: Option<&str>) -> Value {
    let labels = match component {
        Some(component) => json!({"mooncake.io/component": component}),
        None => json!({"mooncake.io/inject": "kv", "customer": PLANTED}),
    };
    let namespace = component.map_or("team", |_| "mooncake-system");
    let mut container =
        json!({"name": "c", "ready": false, "restartCount": 0, "image": "i", "imageID": ""});
    if component.is_none() {
        container["state"] = json!({"terminated": {"exitCode": 1, "message": PLANTED}});
    }
    json!({
        "metadata": {
            "name": name, "namespace": namespace, "uid": format!("uid-{name}"), "labels": labels,
            "annotations": planted_annotations(),
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{
                "name": "c", "image": "i", "args": [PLANTED],
                "env": [{"name": "HF_TOKEN", "value": PLANTED}],
            }],
            "volumes": [{"name": "v", "configMap": {"name": PLANTED}}],
        },
        "status": {"phase": "Running", "containerStatuses": [container]},
    })
}

fn event(name: &str, component: &str, message: &str) -> Value {
    json!({
        "metadata": {"name": format!("{name}.{component}"), "namespace": "team"},
        "involvedObject": {"kind": "Pod", "name": name, "uid": format!("uid-{name}"), "apiVersion": "v1"},
        "reason": "R", "message": message, "reportingComponent": component, "reportingInstance": "",
    })
}

fn objects(path: &str) -> (u16, Value) {
    let object = |name: &str, spec: Value| {
        json!({
            "apiVersion": "mooncake.io/v1alpha1",
            "metadata": {"name": name, "namespace": "team", "annotations": planted_annotations()},
            "spec": spec,
        })
    };
    if path.contains("/mooncakeclusters") {
        let template = json!({"annotations": {"note": PLANTED}});
        let pools = json!([{"name": "default", "podTemplate": template}]);
        return list(json!([object("kv", json!({ "pools": pools }))]));
    }
    if path.contains("/mooncakenodepolicies") {
        // Of a later release.
        let fixes = json!({"fixes": [{"id": "OfTheNextRelease", "mode": "Apply"}]});
        return list(json!([object("rules", fixes)]));
    }
    if path.contains("/events") {
        return list(json!([
            event(
                "user",
                "kubelet",
                &format!("Readiness probe failed: {PLANTED}")
            ),
            event("user", "mooncake-operator", "GateTimedOut"),
            event("agent-a", "kubelet", "Started container c"),
        ]));
    }
    match path.contains("/mooncakenodes") || path.contains("/mooncakeinventories") {
        true => list(json!([])),
        false => pods(path),
    }
}

fn pods(path: &str) -> (u16, Value) {
    let selected = |words: [&str; 2]| words.iter().all(|word| path.contains(word));
    if selected(["/pods", "agent"]) {
        return list(json!([
            pod("operator-1", Some("operator")),
            pod("agent-a", Some("agent")),
            pod("agent-slow", Some("agent")),
        ]));
    }
    if selected(["/pods", "inject"]) {
        return list(json!([pod("user", None)]));
    }
    list(json!([]))
}

fn response(path: &str) -> (u16, Value) {
    REQUESTS.lock().push(path.to_owned());
    if path.starts_with("/version") {
        return (200, version());
    }
    if path.contains("/agent-slow/log") {
        std::thread::park_timeout(Duration::from_secs(60));
    }
    if path.contains("/log") {
        let log = format!(
            "started\nAuthorization: Bearer {PLANTED}-abcdef\npassword={PLANTED}-9999\n\
             eyJ{PLANTED}.eyJ{PLANTED}.{PLANTED}\nhttps://me:{PLANTED}@registry\n\
             -----BEGIN PRIVATE KEY-----\n{PLANTED}\n-----END PRIVATE KEY-----\nended\n"
        );
        return (200, json!(log));
    }
    objects(path)
}

struct Run {
    code: i32,
    report: Value,
    stderr: String,
    took: Duration,
}

fn run(folder: &TempDir, file: &Path, words: &[&str]) -> Run {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = crate::binary::kubeconfig(folder, listener.local_addr().unwrap().port());
    // The thread ends with the test process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, response));
        }
    });
    let started = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_kubectl-mooncake"))
        .args(["bundle", "-A", "-o", "json", &config, "--file"])
        .arg(file)
        .args(words)
        .output()
        .unwrap();
    Run {
        code: output.status.code().unwrap(),
        report: serde_json::from_slice(&output.stdout).unwrap_or_default(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        took: started.elapsed(),
    }
}

/// Path and content of each file of the archive.
fn files(archive: &Path) -> Vec<(String, String)> {
    let mut archive = tar::Archive::new(GzDecoder::new(std::fs::File::open(archive).unwrap()));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (path, text)
    });
    entries.collect()
}

fn file<'a>(files: &'a [(String, String)], name: &str) -> &'a str {
    let path = format!("mooncake-bundle/{name}");
    let found = files.iter().find(|(found, _)| *found == path);
    let names = || files.iter().map(|(name, _)| name.clone());
    &found
        .unwrap_or_else(|| panic!("no {name}: {:?}", names().collect::<Vec<_>>()))
        .1
}

fn left_out(report: &Value) -> Vec<&str> {
    let listed = report["leftOut"].as_array().unwrap().iter();
    listed.map(|one| one["what"].as_str().unwrap()).collect()
}

#[test]
fn no_planted_secret_is_in_the_archive_and_a_silent_agent_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let archive: PathBuf = folder.path().join("bundle.tar.gz");
    let words = ["--deadline=6s", "--timeout=60s"];
    let found = run(&folder, &archive, &words);
    assert_eq!(found.code, 2, "{}", found.stderr);
    assert!(found.took < Duration::from_secs(30), "{:?}", found.took);
    assert_eq!(
        left_out(&found.report),
        ["logs/agent-slow.log"],
        "{}",
        found.report
    );
    let mode = std::fs::metadata(&archive).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "others could read it");

    let files = files(&archive);
    for (path, text) in &files {
        assert!(!text.contains(PLANTED), "{path}: {text}");
    }
    // What a support request needs is there, also a policy of a later release.
    for (name, words) in [
        ("mooncakeclusters.jsonl", "\"name\":\"kv\""),
        ("mooncakenodepolicies.jsonl", "OfTheNextRelease"),
        ("pods.jsonl", "agent-slow"),
        ("injected-pods.jsonl", "\"name\":\"user\""),
        ("events.jsonl", "GateTimedOut"),
        ("events.jsonl", "Started container c"),
        ("logs/agent-a.log", "ended"),
        ("logs/operator-1.log", "password=(redacted)"),
        ("doctor.txt", "OperatorMissing"),
        ("versions.json", env!("CARGO_PKG_VERSION")),
        ("manifest.json", "logs/agent-slow.log"),
    ] {
        assert!(file(&files, name).contains(words), "no {words} in {name}");
    }
    let requests = REQUESTS.lock();
    let of_secrets = |path: &&String| path.contains("secrets") || path.contains("configmaps");
    assert_eq!(requests.iter().find(of_secrets), None);
    drop(requests);

    // An existing file is kept.
    let before = std::fs::read(&archive).unwrap();
    let again = run(&folder, &archive, &words);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("--file"), "{}", again.stderr);
    assert_eq!(std::fs::read(&archive).unwrap(), before);
}

#[test]
fn what_exceeds_a_limit_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let limited = folder.path().join("limited.tar.gz");
    let found = run(&folder, &limited, &["--agents=1", "--max-size=3kb"]);
    assert_eq!(found.code, 2, "{}", found.stderr);
    let left_out = left_out(&found.report);
    assert!(left_out.contains(&"logs of 1 agents"), "{left_out:?}");
    assert!(left_out.contains(&"doctor.json"), "{left_out:?}");
    let kept: u64 = found.report["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["bytes"].as_u64().unwrap())
        .sum();
    assert!(kept <= 3 << 10, "{kept}");
    assert!(file(&files(&limited), "manifest.json").contains("--max-size"));
}
