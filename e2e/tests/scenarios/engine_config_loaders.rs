//! Runs the configuration loaders of the pinned engines in injected pods and compares the arguments of `setup()`.

use anyhow::{Context, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::PostParams;
use local_cluster::command::Run;
use mooncake_e2e::scenario::pool::ip;
use mooncake_e2e::scenario::{Namespace, Pool, Product};
use mooncake_stock::{LMCACHE, MOONCAKE, SGLANG, VLLM, Wheel};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const LOAD: &str = include_str!("../../../operator/tests/loaders/load.py");
/// Prints a module from a wheel.
const UNPACK: &str = "import sys, zipfile
print(zipfile.ZipFile(sys.argv[1]).read(sys.argv[2]).decode(), end='')";
const WAIT: Duration = Duration::from_secs(120);
const FOLDER: &str = "/stack";

/// An engine, its wheel, and the modules of its loader. Mooncake's own wheel is in the pod's image.
type Stack = (&'static str, Wheel, &'static [&'static str]);

const STACKS: [Stack; 4] = [
    ("wheel", MOONCAKE, &[]),
    (
        "sglang",
        SGLANG,
        &[
            "sglang/srt/environ.py",
            "sglang/srt/mem_cache/storage/mooncake_store/mooncake_store.py",
        ],
    ),
    ("vllm", VLLM, &["vllm/distributed/mooncake_store.py"]),
    (
        "lmcache",
        LMCACHE,
        &["lmcache/v1/storage_backend/connector/mooncakestore_connector.py"],
    ),
];

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn config_loaders_of_sglang_vllm_and_lmcache_read_the_injected_settings() -> anyhow::Result<()>
{
    let product = Product::shared().await?;
    product
        .run("loaders", async move |_, namespace| {
            Pool::small(&namespace).await?;
            for stack in STACKS {
                start(&namespace, stack).await?;
            }
            let master = crds::names::master_endpoint("kv", &namespace.name);
            for (stack, ..) in STACKS {
                let (address, arguments) = loaded(&namespace, stack).await?;
                println!("{stack}: {arguments}");
                let expected = expected(stack, &address, &master);
                ensure!(
                    arguments == expected,
                    "{stack} calls setup() with {arguments}, not with {expected}"
                );
            }
            Ok(())
        })
        .await
}

/// Positional and named arguments that the engine passes to `setup()`.
fn expected(stack: &str, address: &str, master: &str) -> Value {
    let buffer = 64 << 20;
    let positional = |buffer: u64| {
        vec![
            json!(address),
            json!("P2PHANDSHAKE"),
            json!(0),
            json!(buffer),
            json!("tcp"),
            json!(""),
            json!(master),
        ]
    };
    match stack {
        // It sets its own buffer size and passes an engine, here None.
        "sglang" => {
            let mut arguments = positional(16 << 20);
            arguments.push(Value::Null);
            json!([arguments, {}])
        }
        "lmcache" => json!([[{
            "device_name": "",
            "global_segment_size": "0",
            "local_buffer_size": buffer.to_string(),
            "local_hostname": address,
            "master_server_addr": master,
            "master_server_address": master,
            "metadata_server": "P2PHANDSHAKE",
            "protocol": "tcp",
        }], {}]),
        _ => json!([positional(buffer), {}]),
    }
}

/// Starts an injected pod with the engine's own modules as files.
async fn start(namespace: &Namespace, (stack, wheel, modules): Stack) -> anyhow::Result<()> {
    let texts = tokio::task::spawn_blocking(move || unpacked(wheel, modules)).await??;
    // A key of a ConfigMap cannot contain a slash.
    let key = |path: &str| path.replace('/', "-");
    let mut data: BTreeMap<String, String> = texts
        .iter()
        .map(|(path, text)| (key(path), text.clone()))
        .collect();
    data.insert("load.py".to_owned(), LOAD.to_owned());
    let mut items: Vec<Value> = modules
        .iter()
        .map(|path| json!({"key": key(path), "path": path}))
        .collect();
    items.push(json!({"key": "load.py", "path": "load.py"}));
    let files: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": stack}, "data": data,
    }))?;
    namespace
        .api::<ConfigMap>()
        .create(&PostParams::default(), &files)
        .await?;
    let run = format!(
        "exec python3 {FOLDER}/load.py {stack} {FOLDER} /usr/local/lib/python3.11/dist-packages"
    );
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": stack, "labels": {(crds::names::LABEL_INJECT): "kv"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "main",
                "image": local_cluster::images::MOONCAKE_STOCK,
                "command": ["sh", "-c", run],
                // vLLM reads the host's address from its environment.
                "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "volumeMounts": [{"name": "stack", "mountPath": FOLDER}],
                "resources": {"requests": {"cpu": "100m"}},
            }],
            "volumes": [{"name": "stack", "configMap": {"name": stack, "items": items}}],
        },
    }))?;
    namespace
        .api::<Pod>()
        .create(&PostParams::default(), &pod)
        .await
        .with_context(|| format!("creating pod {stack}"))?;
    Ok(())
}

/// The texts of the modules, from the engine's wheel.
fn unpacked(wheel: Wheel, modules: &[&str]) -> anyhow::Result<Vec<(String, String)>> {
    let unpack = |path: &&str| {
        let run = Run::new("python3").args(["-c", UNPACK]).arg(wheel.file()?);
        Ok(((*path).to_owned(), run.arg(path).output()?))
    };
    modules.iter().map(unpack).collect()
}

/// The pod's address and the arguments that its loader printed.
async fn loaded(namespace: &Namespace, stack: &str) -> anyhow::Result<(String, Value)> {
    namespace.pod_succeeded(stack, WAIT).await?;
    let address = ip(&namespace.api::<Pod>().get(stack).await?)?;
    let log = namespace.logs(stack, "main").await?;
    let arguments = log
        .lines()
        .rev()
        .find_map(|line| serde_json::from_str(line).ok())
        .with_context(|| format!("{stack} printed no arguments of setup():\n{log}"))?;
    Ok((address, arguments))
}
