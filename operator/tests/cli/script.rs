//! An API server that answers by a script: pages of a list, an object of another release, a refusal.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use serde_json::{Value, json};

/// One cluster a page; the second is of a release that is yet to come.
fn clusters(page: usize) -> Value {
    let (name, spec) = match page {
        0 => ("old", json!({})),
        1 => ("new", json!({"pools": [{"name": "a", "pageSize": "16Gi"}]})),
        _ => ("last", json!({})),
    };
    let item = json!({"metadata": {"name": name, "namespace": "team"}, "spec": spec});
    let next = if page < 2 {
        format!("{}", page + 1)
    } else {
        String::new()
    };
    json!({
        "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeClusterList",
        "metadata": {"continue": next}, "items": [item],
    })
}

fn answer(path: &str) -> (u16, Value) {
    if path.starts_with("/version") {
        let words = [
            "gitVersion",
            "gitCommit",
            "gitTreeState",
            "buildDate",
            "goVersion",
            "compiler",
            "platform",
        ];
        let mut version = json!({"major": "1", "minor": "35"});
        for word in words {
            version[word] = json!("");
        }
        return (200, version);
    }
    if path.contains("/mooncakeclusters") {
        let page = path.split_once("continue=").map_or("0", |(_, token)| {
            token.split('&').next().unwrap_or_default()
        });
        return (200, clusters(page.parse().unwrap()));
    }
    let words = json!({"kind": "Status", "code": 403, "message": "no", "reason": "Forbidden"});
    (403, words)
}

fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let (code, body) = answer(path);
    let body = body.to_string();
    write!(
        stream,
        "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn every_page_is_read_and_an_object_that_is_not_understood_hides_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = crate::binary::kubeconfig(&folder, listener.local_addr().unwrap().port());
    // It ends with the process of the tests.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kubectl-mooncake"))
            .args(words)
            .arg(&config)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), text)
    };
    let (code, text) = run(&["status", "-A"]);
    assert_eq!(code, 2, "{text}");
    for words in [
        "old",
        "last",
        "(team/new): NotUnderstood",
        "16Gi",
        "of the release",
    ] {
        assert!(text.contains(words), "no {words}: {text}");
    }
    let (code, text) = run(&["doctor", "-A", "-o", "json"]);
    let found: Value = serde_json::from_str(&text).unwrap();
    // Old clusters that no operator has looked at fail; what was refused is named.
    assert_eq!((code, &found["summary"]["clusters"]), (1, &json!(2)));
    let unseen = found["unseen"].as_array().unwrap().iter();
    let causes: Vec<&str> = unseen.map(|not| not["cause"].as_str().unwrap()).collect();
    assert_eq!(
        causes.iter().filter(|cause| **cause == "Forbidden").count(),
        8
    );
    assert!(causes.contains(&"NotUnderstood"), "{causes:?}");
}
