//! The configuration loaders of the pinned stacks, as they stand in their wheels, read what
//! injection gives a pod, and arrive at the same `setup()`.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use json_patch::Patch;
use k8s_openapi::api::core::v1::{Container, Pod};
use mooncake_operator::admission::{Decision, Surroundings, inject};
use mooncake_stock::{LMCACHE, MOONCAKE, SGLANG, VLLM};
use serde_json::{Value, json};

const ADDRESS: &str = "10.0.0.7";
const MASTER: &str = "kv-master.team.svc:50051";
/// Where the webhook mounts the files.
const MOUNTED: &str = "/run/mooncake-gate";

/// The containers of a pod that was injected: the gate, then the only one of the user.
fn injected(env: &Value) -> (Container, Container) {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "server", "labels": {"mooncake.io/inject": "kv"}},
        "spec": {"containers": [{"name": "server", "image": "server:1", "env": env}]},
    });
    let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
    let decision = inject(&typed, "team", None, &Surroundings::default(), "gate:1");
    let Decision::Patch { patch, .. } = decision else {
        panic!("the pod is not injected");
    };
    json_patch::patch(&mut pod, &Patch(patch)).unwrap();
    let spec = serde_json::from_value::<Pod>(pod).unwrap().spec.unwrap();
    let gate = spec.init_containers.unwrap().remove(0);
    (gate, spec.containers.into_iter().next().unwrap())
}

/// What the kubelet and the gate make of it: files in `directory`, and the environment.
fn start(gate: &Container, server: &Container, directory: &Path) -> BTreeMap<String, String> {
    for argument in gate.args.iter().flatten() {
        if let Some((name, text)) = argument
            .strip_prefix("--file=")
            .and_then(|file| file.split_once('='))
        {
            let text = text.replace("$(POD_IP)", ADDRESS).replace("$$", "$");
            fs::write(directory.join(name), text).unwrap();
        }
    }
    let mounted = directory.to_str().unwrap();
    let vars = server.env.iter().flatten();
    vars.map(|var| {
        let value = var.value.as_deref().unwrap_or(ADDRESS);
        (var.name.clone(), value.replace(MOUNTED, mounted))
    })
    .collect()
}

/// The file (or, for Mooncake's own wheel, the folder) that holds a stack's modules.
fn modules(stack: &str) -> PathBuf {
    let wheel = match stack {
        "wheel" => return MOONCAKE.site().unwrap(),
        "lmcache" => LMCACHE,
        "sglang" => SGLANG,
        "vllm" => VLLM,
        other => panic!("no stack is called {other}"),
    };
    wheel.file().unwrap()
}

/// The arguments of `setup()` at which a stack arrives in a pod with these variables of its own.
fn setup(stack: &str, own: &Value) -> Value {
    let (gate, server) = injected(own);
    let directory = tempfile::tempdir().unwrap();
    let environment = start(&gate, &server, directory.path());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/loaders/load.py");
    let output = Command::new("python3")
        .args([script, stack])
        .arg(modules(stack))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("POD_IP", ADDRESS)
        .envs(environment)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stack}: {words}");
    let text = String::from_utf8(output.stdout).unwrap();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

fn expected(global_segment_size: u64, local_buffer_size: u64, protocol: &str) -> Value {
    json!([
        ADDRESS,
        "P2PHANDSHAKE",
        global_segment_size,
        local_buffer_size,
        protocol,
        "",
        MASTER
    ])
}

#[test]
fn the_wheels_own_loader_arrives_at_the_cluster() {
    assert_eq!(setup("wheel", &json!([]))[0], expected(0, 64 << 20, "tcp"));
}

#[test]
fn the_wheels_own_loader_gets_what_the_user_said_in_the_environment() {
    let own = json!([
        {"name": "MOONCAKE_GLOBAL_SEGMENT_SIZE", "value": "1gb"},
        {"name": "MOONCAKE_PROTOCOL", "value": "rdma"},
    ]);
    assert_eq!(setup("wheel", &own)[0], expected(1 << 30, 64 << 20, "rdma"));
}

#[test]
fn vllm_arrives_at_the_cluster_as_a_client_that_lends_nothing() {
    assert_eq!(setup("vllm", &json!([]))[0], expected(0, 64 << 20, "tcp"));
}

#[test]
fn vllm_lends_what_the_user_says() {
    let own = json!([{"name": "MOONCAKE_GLOBAL_SEGMENT_SIZE", "value": "1073741824"}]);
    assert_eq!(setup("vllm", &own)[0], expected(1 << 30, 64 << 20, "tcp"));
}

#[test]
fn sglang_arrives_at_the_cluster() {
    let arguments = setup("sglang", &json!([]));
    // SGLang has a buffer size of its own and hands over an engine, here none.
    let mut wanted = expected(0, 16 << 20, "tcp");
    wanted.as_array_mut().unwrap().push(Value::Null);
    assert_eq!(arguments[0], wanted);
    assert_eq!(arguments[1], json!({}));
}

#[test]
fn lmcache_arrives_at_the_cluster_by_the_file() {
    let fields = &setup("lmcache", &json!([]))[0][0];
    let wanted = json!({
        "device_name": "",
        "global_segment_size": "0",
        "local_buffer_size": (64 << 20).to_string(),
        "local_hostname": ADDRESS,
        "master_server_address": MASTER,
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "tcp",
    });
    assert_eq!(*fields, wanted);
}

#[test]
fn lmcache_with_a_configuration_of_its_own_gets_no_file() {
    let own = json!([{"name": "LMCACHE_CONFIG_FILE", "value": "/etc/lmcache.yaml"}]);
    let (_, server) = injected(&own);
    let mut vars = server.env.iter().flatten();
    assert!(vars.all(|var| var.name != "MOONCAKE_CONFIG_PATH"));
}
