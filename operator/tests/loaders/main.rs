//! The configuration loaders of the pinned stacks, from their wheels, read what injection gives a pod and
//! call `setup()` with the expected arguments.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use json_patch::Patch;
use k8s_openapi::api::core::v1::{Container, Pod};
use mooncake_operator::admission::{Decision, InjectionContext, inject};
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
    let decision = inject(&typed, "team", None, &InjectionContext::default(), "gate:1");
    let Decision::Patch { patch, .. } = decision else {
        panic!("the pod is not injected");
    };
    json_patch::patch(&mut pod, &Patch(patch)).unwrap();
    let spec = serde_json::from_value::<Pod>(pod).unwrap().spec.unwrap();
    let gate = spec.init_containers.unwrap().remove(0);
    (gate, spec.containers.into_iter().next().unwrap())
}

/// Does the work of kubelet and gate: writes the files to `directory`, returns the environment.
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
        "sglang" | "sglang-engine" => SGLANG,
        "vllm" => VLLM,
        other => panic!("no stack is called {other}"),
    };
    wheel.file().unwrap()
}

/// The arguments of `setup()` of a stack in a pod with these variables of the user.
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
fn the_wheels_own_loader_uses_the_cluster() {
    assert_eq!(setup("wheel", &json!([]))[0], expected(0, 64 << 20, "tcp"));
}

#[test]
fn the_wheels_own_loader_reads_the_users_environment() {
    let own = json!([
        {"name": "MOONCAKE_GLOBAL_SEGMENT_SIZE", "value": "1gb"},
        {"name": "MOONCAKE_OFFLOAD_ENABLED", "value": "no"},
    ]);
    assert_eq!(setup("wheel", &own)[0], expected(1 << 30, 64 << 20, "tcp"));
}

#[test]
fn vllm_uses_the_cluster_as_a_client_without_a_segment() {
    assert_eq!(setup("vllm", &json!([]))[0], expected(0, 64 << 20, "tcp"));
}

#[test]
fn vllm_contributes_the_segment_that_the_user_sets() {
    let own = json!([{"name": "MOONCAKE_GLOBAL_SEGMENT_SIZE", "value": "1073741824"}]);
    assert_eq!(setup("vllm", &own)[0], expected(1 << 30, 64 << 20, "tcp"));
}

#[test]
fn sglang_uses_the_cluster() {
    let arguments = setup("sglang", &json!([]));
    // SGLang sets its own buffer size and passes an engine, here none.
    let mut wanted = expected(0, 16 << 20, "tcp");
    wanted.as_array_mut().unwrap().push(Value::Null);
    assert_eq!(arguments[0], wanted);
    assert_eq!(arguments[1], json!({}));
}

#[test]
fn sglang_reads_its_own_variables_from_the_file() {
    let own = json!([
        {"name": "MOONCAKE_TENANT_ID", "value": "blue"},
        {"name": "MOONCAKE_CHECK_SERVER", "value": "false"},
        {"name": "MOONCAKE_ENABLE_SSD_OFFLOAD", "value": "true"},
        {"name": "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "value": "/tmp/offload"},
    ]);
    let wanted = json!({"enable_ssd_offload": true, "ssd_offload_path": "/tmp/offload", "tenant_id": "blue"});
    assert_eq!(setup("sglang", &own)[1], wanted);
}

#[test]
fn the_prefill_engine_of_sglang_keeps_its_transport() {
    // The arguments of TransferEngine.initialize().
    assert_eq!(
        setup("sglang-engine", &json!([]))[0][2],
        "rdma",
        "its default"
    );
    let own = json!([{"name": "MOONCAKE_PROTOCOL", "value": "efa"}]);
    assert_eq!(setup("sglang-engine", &own)[0][2], "efa");
    assert_eq!(setup("sglang", &own)[0][4], "tcp", "the store's");
}

#[test]
fn sglang_with_a_file_of_its_own_gets_the_transport_by_the_variable() {
    let own = json!([{"name": "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH", "value": "/etc/sglang.json"}]);
    assert_eq!(setup("sglang-engine", &own)[0][2], "tcp");
}

#[test]
fn lmcache_uses_the_cluster_from_the_file() {
    let fields = &setup("lmcache", &json!([]))[0][0];
    let wanted = json!({
        "device_name": "",
        "global_segment_size": "0",
        "local_buffer_size": (64 << 20).to_string(),
        "local_hostname": ADDRESS,
        "master_server_addr": MASTER,
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
