//! A scripted API server: a list in chunks, an object of another release, forbidden lists.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use serde_json::{Value, json};

/// One cluster in each chunk; the second is of a later release.
fn clusters(chunk: usize) -> Value {
    let (name, spec) = match chunk {
        0 => ("old", json!({})),
        1 => ("new", json!({"pools": [{"name": "a", "pageSize": "16Gi"}]})),
        _ => ("last", json!({})),
    };
    let item = json!({"metadata": {"name": name, "namespace": "team"}, "spec": spec});
    let next = if chunk < 2 {
        format!("{}", chunk + 1)
    } else {
        String::new()
    };
    json!({
        "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeClusterList",
        "metadata": {"continue": next}, "items": [item],
    })
}

fn response(path: &str) -> (u16, Value) {
    if path.starts_with("/version") {
        return (200, version());
    }
    if path.contains("/mooncakeclusters") {
        let chunk = path.split_once("continue=").map_or("0", |(_, token)| {
            token.split('&').next().unwrap_or_default()
        });
        return (200, clusters(chunk.parse().unwrap()));
    }
    let fields = json!({"kind": "Status", "code": 403, "message": "no", "reason": "Forbidden"});
    (403, fields)
}

pub(crate) fn version() -> Value {
    let fields = [
        "gitVersion",
        "gitCommit",
        "gitTreeState",
        "buildDate",
        "goVersion",
        "compiler",
        "platform",
    ];
    let mut version = json!({"major": "1", "minor": "35"});
    for word in fields {
        version[word] = json!("");
    }
    version
}

/// Answers one request. A text is sent as it is, any other value as JSON.
pub(crate) fn serve(
    mut stream: TcpStream,
    response: fn(&str) -> (u16, Value),
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().transpose()?.unwrap_or_default();
    for line in lines {
        if line?.is_empty() {
            break;
        }
    }
    let path = first.split(' ').nth(1).unwrap_or_default();
    let (code, body) = response(path);
    let body = match body {
        Value::String(text) => text,
        body => body.to_string(),
    };
    write!(
        stream,
        "HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn all_chunks_are_read_and_an_invalid_object_does_not_hide_others() {
    let folder = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = crate::binary::kubeconfig(&folder, listener.local_addr().unwrap().port());
    // The thread ends with the test process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, response));
        }
    });
    let run = |fields: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kubectl-mooncake"))
            .args(fields)
            .arg(&config)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), text)
    };
    let (code, text) = run(&["status", "-A"]);
    assert_eq!(code, 2, "{text}");
    for fields in [
        "old",
        "last",
        "(team/new): DecodeFailed",
        "16Gi",
        "of the release",
    ] {
        assert!(text.contains(fields), "no {fields}: {text}");
    }
    let (code, text) = run(&["doctor", "-A", "-o", "json"]);
    let found: Value = serde_json::from_str(&text).unwrap();
    // Clusters that no operator has observed are errors; forbidden lists are read errors.
    assert_eq!((code, &found["summary"]["clusters"]), (1, &json!(2)));
    let errors = found["readErrors"].as_array().unwrap().iter();
    let causes: Vec<&str> = errors
        .map(|error| error["cause"].as_str().unwrap())
        .collect();
    assert_eq!(
        causes.iter().filter(|cause| **cause == "Forbidden").count(),
        8
    );
    assert!(causes.contains(&"DecodeFailed"), "{causes:?}");
}
