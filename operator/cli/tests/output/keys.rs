//! `keys`: what is read from a built-in and from a stock master, and its output.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use clap::Parser;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use mooncake_cli::Report;
use mooncake_cli::args::{Args, Command, KeysArgs};
use mooncake_cli::keys::master::{Answer, Error, exchange};
use mooncake_cli::keys::{Inputs, keys};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::DuplexStream;

use crate::{check, plain};

/// Answers by path, and the paths that were requested.
#[derive(Debug, Default)]
pub(crate) struct Master {
    answers: BTreeMap<&'static str, String>,
    paths: Mutex<Vec<String>>,
}

impl Master {
    pub(crate) fn with(answers: &[(&'static str, String)]) -> Arc<Self> {
        Arc::new(Self {
            answers: answers.iter().cloned().collect(),
            paths: Mutex::default(),
        })
    }

    /// Serves the other end of a stream.
    pub(crate) fn serve(self: &Arc<Self>) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let master = Arc::clone(self);
        let answer = service_fn(move |request: Request<Incoming>| {
            let path = request.uri().path().to_owned();
            master.paths.lock().push(request.uri().to_string());
            let found = master.answers.get(path.as_str()).cloned();
            let status = match &found {
                None => 404,
                Some(text) if text.contains("error_message") => 400,
                Some(_) => 200,
            };
            async move {
                let body = Full::new(Bytes::from(found.unwrap_or_default()));
                Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
            }
        });
        // It ends with the stream.
        tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(theirs), answer),
        );
        ours
    }

    async fn read(self: &Arc<Self>, words: &[&str]) -> Result<Answer, Error> {
        exchange(self.serve(), &wanted(words), 5).await
    }
}

fn wanted(words: &[&str]) -> KeysArgs {
    let words = ["kubectl-mooncake", "keys", "kv"].iter().chain(words);
    match Args::try_parse_from(words).unwrap().command {
        Command::Keys(wanted) => wanted,
        other => panic!("{other:?}"),
    }
}

fn pool(node: &str, address: &str) -> Pod {
    let pod = json!({
        "metadata": {"name": format!("kv-pool-default-{node}")},
        "spec": {"nodeName": node, "containers": []},
        "status": {"podIP": address, "podIPs": [{"ip": address}]},
    });
    serde_json::from_value(pod).unwrap()
}

fn report(answer: Answer) -> Report {
    report_of(answer, &[], "default")
}

fn of_tenant(answer: Answer, tenant: &str) -> Report {
    report_of(answer, &["default", "team-a"], tenant)
}

fn report_of(answer: Answer, tenants: &[&str], tenant: &str) -> Report {
    Report::Keys(keys(Inputs {
        namespace: "team".to_owned(),
        cluster: "kv".to_owned(),
        tenants: tenants.iter().map(|&name| name.to_owned()).collect(),
        tenant: tenant.to_owned(),
        master: "kv-master-a".to_owned(),
        answer,
        pools: vec![pool("n1", "10.0.1.5"), pool("n2", "10.0.2.9")],
    }))
}

fn found(complete: bool) -> Value {
    json!({
        "success": true, "complete": complete, "objects": 4000, "bytes": 5_000_000_000_u64,
        "keys": [
            {"key": "model/a", "size": 1_250_000, "hard_pin": false, "segments": [1, 0]},
            {"key": "model/b", "size": 512, "hard_pin": true, "segments": [2]},
        ],
        "segments": [
            {"name": "kv.default.n1.0", "endpoint": "10.0.1.5:12001", "leaves": false, "objects": 100, "bytes": 4096},
            {"name": "kv.default.n2.0", "endpoint": "10.0.2.9:12001", "leaves": true, "objects": 3901, "bytes": 4_999_995_904_u64},
            {"name": "a client", "endpoint": "10.0.7.7:17000", "leaves": false, "objects": 1, "bytes": 512},
            {"name": "empty", "endpoint": "10.0.7.8:17000", "leaves": false, "objects": 0, "bytes": 0},
        ],
    })
}

#[tokio::test]
async fn keys_of_the_built_in_master_have_bytes_pool_pods_and_nodes() {
    let master = Master::with(&[("/find_keys", found(true).to_string())]);
    let words = ["--prefix=model/", "--regex=a&b", "--limit=2"];
    let answer = master.read(&words).await.unwrap();
    let paths = master.paths.lock().clone();
    assert_eq!(
        paths,
        ["/find_keys?prefix=model%2F&limit=2&seconds=5&regex=a%26b"]
    );
    let report = report(answer);
    check("found.keys.txt", &plain(&report));
    check("found.keys.json", &report.json().unwrap());
}

#[tokio::test]
async fn keys_of_a_tenant_are_found_by_its_name_and_others_are_named() {
    let master = Master::with(&[("/find_keys", found(true).to_string())]);
    let answer = master.read(&["--tenant=team-a"]).await.unwrap();
    let paths = master.paths.lock().clone();
    assert_eq!(
        paths,
        ["/find_keys?prefix=&limit=20&seconds=5&tenant_id=team%2Da"]
    );
    check("tenant.keys.txt", &plain(&of_tenant(answer, "team-a")));
    let answer = master.read(&["--tenant=unlisted"]).await.unwrap();
    let text = plain(&of_tenant(answer, "unlisted"));
    let note =
        "Tenant unlisted is not in spec.master.tenants (default, team-a): its puts are refused.";
    assert!(text.contains(note), "{text}");
    // A stock master knows no tenants.
    let stock = Master::with(&[("/get_all_keys", "a\n".to_owned())]);
    let error = stock.read(&["--tenant=team-a"]).await.unwrap_err();
    assert!(error.is_not_found(), "{error}");
}

#[tokio::test]
async fn a_search_whose_time_was_over_is_incomplete() {
    let master = Master::with(&[("/find_keys", found(false).to_string())]);
    let report = report(master.read(&[]).await.unwrap());
    assert_eq!(report.exit_code(), 2);
    let text = plain(&report);
    assert!(text.contains("Increase --timeout."), "{text}");
}

#[tokio::test]
async fn a_stock_master_lists_keys_that_are_matched_here() {
    let values = json!([{
        "size_": 2048, "buffer_address_": 1, "protocol_": "tcp", "transport_endpoint_": "10.0.2.9:12001",
    }]);
    let data = json!({"success": true, "data": {
        "b 1": {"ok": true, "values": values, "disk_values": null},
        "b2": {"ok": false, "error": "REPLICA_IS_NOT_READY", "values": null},
    }});
    let master = Master::with(&[
        ("/get_all_keys", "b2\na\nb 1\nb,3\nb4\n".to_owned()),
        ("/batch_query_keys", data.to_string()),
    ]);
    let answer = master.read(&["--prefix=b", "--limit=3"]).await.unwrap();
    let paths = master.paths.lock().clone();
    let lookup = "/batch_query_keys?keys=b%201,b2";
    assert_eq!(paths[1..], ["/get_all_keys", lookup]);
    let report = report(answer);
    check("stock.keys.txt", &plain(&report));

    let answer = master.read(&["--regex=^b.$", "--limit=0"]).await.unwrap();
    let Answer::List { count, listed } = answer else {
        panic!("{answer:?}");
    };
    assert_eq!((count, listed.len()), (2, 0));
}

#[tokio::test]
async fn a_refusal_and_another_answer_name_the_path() {
    let refusal = json!({"success": false, "error_message": "INVALID_PARAMS"});
    for (answer, words) in [
        (
            refusal.to_string(),
            "/find_keys: status 400 Bad Request: INVALID_PARAMS",
        ),
        (
            "<html>".to_owned(),
            "/find_keys: the answer cannot be decoded",
        ),
    ] {
        let master = Master::with(&[("/find_keys", answer)]);
        let error = master.read(&["--prefix=secret"]).await.unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(words) && !error.contains("secret"),
            "{error}"
        );
    }
}

#[test]
fn limits_and_patterns_are_checked_before_anything_is_read() {
    for wrong in ["--limit=10001", "--limit=-1", "--regex=("] {
        let words = ["kubectl-mooncake", "keys", "kv", wrong];
        assert!(Args::try_parse_from(words).is_err(), "{wrong}");
    }
}
