//! Pods that claim RDMA devices, across restarts of agent, container and kubelet. The agents read a recorded machine, so
//! opening a device fails with ENXIO where the container has access, and with EPERM where it has none.

use anyhow::{Context, ensure};
use crds::Reason;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use local_cluster::Part;
use mooncake_e2e::scenario::{Namespace, Node, Pool, Product, Seen, eventually, processes};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::Duration;

use super::recorded_hardware_faults;

const SOON: Duration = Duration::from_secs(180);
/// The kubelet retries a failed preparation after 70 to 90 s.
const PREPARED: Duration = Duration::from_secs(240);
const COMMAND: Duration = Duration::from_secs(30);

/// Two devices on one node and none on the other.
const MACHINES: [(&str, &str); 2] = [
    (
        "n1",
        include_str!("../../../node-agent/host/machines/vm-soft-roce.txt"),
    ),
    (
        "n2",
        include_str!("../../../node-agent/host/machines/vm-without-devices.txt"),
    ),
];
/// Path of the recording, in the folder that outlives agents.
const MACHINE: &str = "/var/lib/mooncake/machine.txt";

const SLICE: &str = "n1-hca.mooncake.io";
/// 8 slots of each device.
const SLOTS: usize = 16;

/// A ResourceClaimTemplate by which each pod claims a slot of the device.
pub(super) fn template(name: &str, device: &str) -> Value {
    let expression = format!("device.attributes['hca.mooncake.io'].rdmaDevice == '{device}'");
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{
            "name": "hca",
            "exactly": {
                "deviceClassName": "hca.mooncake.io",
                "selectors": [{"cel": {"expression": expression}}],
            },
        }]}}},
    })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster: root and 4 GiB of memory"]
async fn a_pod_keeps_its_claimed_rdma_device_across_agent_and_kubelet_restarts()
-> anyhow::Result<()> {
    let product = Product::exclusive().await?;
    let scenario = async {
        for (node, machine) in MACHINES {
            set_recording(&Node::new(&product.cluster, node), machine).await?;
        }
        let values = [
            format!("agent.recording={MACHINE}"),
            "agent.maxUnavailable=100%".to_owned(),
        ];
        install(&product, &values).await?;
        product
            .run("devices", async move |product, namespace| {
                claims(&product, &namespace).await
            })
            .await
    };
    let outcome = scenario.await;
    product
        .cluster
        .with(|cluster| cluster.start(Part::Kubelet(1)))
        .await?;
    install(&product, &[]).await?;
    outcome
}

async fn claims(product: &Product, namespace: &Namespace) -> anyhow::Result<()> {
    let slices: Api<ResourceSlice> = Api::all(product.cluster.client.clone());
    let offered = offer(&slices, None).await?;
    ensure!(
        slices.get_opt("n2-hca.mooncake.io").await?.is_none(),
        "a node without devices has a slice"
    );
    own_slices_only(product).await?;

    // Two pods share a device.
    namespace
        .apply(&template("rxe1", "rxe1").to_string())
        .await?;
    for pod in ["one", "two"] {
        namespace.apply(&pod_that_claims(pod).to_string()).await?;
    }
    for pod in ["one", "two"] {
        namespace.pod_ready(pod, PREPARED).await?;
        unprivileged(namespace, pod).await?;
        no_unclaimed_device(namespace, pod).await?;
    }
    println!("two pods share rxe1");

    let (_, machine) = MACHINES[0];
    recorded_hardware_faults::are_reported_and_cleared(
        product,
        namespace,
        machine,
        &["one", "two"],
    )
    .await?;

    lost_file(product, namespace).await?;
    println!("a lost CDI file was restored, and the container restarted");

    let kubelet = Part::Kubelet(1);
    product
        .cluster
        .with(move |cluster| cluster.stop(kubelet).and_then(|()| cluster.start(kubelet)))
        .await?;
    offer(&slices, Some(&offered)).await?;
    println!("after a kubelet restart the devices are published again");

    delete_without_agent(product, namespace).await?;
    println!("a pod that was deleted without agent is gone");
    // The kubelet deleted the slice at its start; allocated devices stay usable.
    unprivileged(namespace, "two").await?;
    namespace
        .api::<Pod>()
        .delete("two", &DeleteParams::default())
        .await?;
    gone(product, namespace, "two").await?;
    injected_pod_gets_a_device(product, namespace).await
}

/// A pod without claims of a cluster that requires RDMA gets a device, on the only node with devices. The cluster never
/// becomes Ready, because no port is proved; the pod starts at the deadline of its gate.
async fn injected_pod_gets_a_device(
    product: &Product,
    namespace: &Namespace,
) -> anyhow::Result<()> {
    let spec = "{transports: {rdma: Require}, injection: {deadlineSeconds: 10},
        pools: [{name: default, size: 64Mi, drainSeconds: 2}]}";
    let pool = Pool::apply(namespace, "kv", spec).await?;
    let why = pool.unready(Some(Reason::NoUsableTransport), SOON).await?;
    ensure!(!why.contains("given no RDMA device"), "{why}");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "injected", "labels": {"mooncake.io/inject": "kv"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "user", "image": local_cluster::images::DEBIAN,
                "command": ["sh", "-c", WAIT], "securityContext": restricted(),
            }],
        },
    });
    namespace.apply(&pod.to_string()).await?;
    let pod = namespace.pod_ready("injected", PREPARED).await?;
    let node = pod.spec.and_then(|spec| spec.node_name);
    ensure!(
        node.as_deref() == Some("n1"),
        "the pod runs on {node:?}, which has no device"
    );
    let output = namespace
        .exec("injected", "user", &["sh", "-c", SHOW], COMMAND)
        .await?;
    let words: Vec<&str> = output.split_whitespace().collect();
    let given = [["uverbs0", "rxe0"], ["uverbs1", "rxe1"]]
        .into_iter()
        .find(|[file, device]| words == ["1000", "rdma_cm", file, device]);
    let [file, device] = given.with_context(|| format!("injected: {output}"))?;
    let output = opened(
        namespace,
        "injected",
        "user",
        &format!("/dev/infiniband/{file}"),
    )
    .await?;
    ensure!(is_allowed(&output), "injected: {output}");
    println!("an injected pod without claims has {device}");
    namespace
        .api::<Pod>()
        .delete("injected", &DeleteParams::default())
        .await?;
    gone(product, namespace, "injected").await
}

/// Waits for the slice of the node with devices, other than `before`, and returns it.
async fn offer(
    slices: &Api<ResourceSlice>,
    before: Option<&ResourceSlice>,
) -> anyhow::Result<ResourceSlice> {
    eventually("the devices to be published", SOON, || async {
        let Some(slice) = slices.get_opt(SLICE).await? else {
            return Ok(Seen::NotYet("no slice".to_owned()));
        };
        let count = slice.spec.devices.as_ref().map_or(0, Vec::len);
        let new = before.is_none_or(|before| before.uid() != slice.uid());
        let seen = format!("{count} slots, new: {new}");
        Ok(Seen::when((new && count == SLOTS).then_some(slice), seen))
    })
    .await
}

/// Runs until /tmp/end exists.
const WAIT: &str = "until [ -e /tmp/end ]; do sleep 0.2; done";

/// Prints the user and the devices of a container.
const SHOW: &str = "id -u; ls -x /dev/infiniband; echo $MOONCAKE_HCA_DEVICES";

/// A pod with three containers: `user` is restricted, `root` can create device nodes and open what its device cgroup
/// allows, `bystander` claims nothing.
fn pod_that_claims(name: &str) -> Value {
    let container = |name: &str, claims: Value, security: Value| {
        json!({
            "name": name, "image": local_cluster::images::DEBIAN,
            "command": ["sh", "-c", WAIT], "securityContext": security,
            "resources": {"claims": claims},
        })
    };
    let claim = json!([{"name": "hca"}]);
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "resourceClaims": [{"name": "hca", "resourceClaimTemplateName": "rxe1"}],
            "containers": [
                container("user", claim.clone(), restricted()),
                container("root", claim, json!({})),
                container("bystander", json!([]), restricted()),
            ],
        },
    })
}

/// The security context of an unprivileged container.
fn restricted() -> Value {
    json!({
        "runAsUser": 1000, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// Opens a device file and prints the result.
const OPEN: &str = r#"
import errno, os, sys
try:
    os.close(os.open(sys.argv[1], os.O_RDWR))
    print("opened")
except OSError as error:
    print(errno.errorcode[error.errno])
"#;

async fn opened(
    namespace: &Namespace,
    pod: &str,
    container: &str,
    path: &str,
) -> anyhow::Result<String> {
    let command = ["python3", "-c", OPEN, path];
    let output = namespace.exec(pod, container, &command, COMMAND).await?;
    Ok(output.trim().to_owned())
}

/// Whether the device cgroup allowed the open. It succeeds where this machine has such a device.
fn is_allowed(result: &str) -> bool {
    ["ENXIO", "ENODEV", "opened"].contains(&result)
}

async fn unprivileged(namespace: &Namespace, pod: &str) -> anyhow::Result<()> {
    let output = namespace
        .exec(pod, "user", &["sh", "-c", SHOW], COMMAND)
        .await?;
    let words: Vec<&str> = output.split_whitespace().collect();
    ensure!(
        words == ["1000", "rdma_cm", "uverbs1", "rxe1"],
        "{pod}: {output}"
    );
    let output = opened(namespace, pod, "user", "/dev/infiniband/uverbs1").await?;
    ensure!(is_allowed(&output), "{pod}: {output}");
    let show = "ls /dev/infiniband 2>/dev/null; echo \"<$MOONCAKE_HCA_DEVICES>\"";
    let output = namespace
        .exec(pod, "bystander", &["sh", "-c", show], COMMAND)
        .await?;
    ensure!(
        output.trim() == "<>",
        "a container that claims nothing has {output}"
    );
    Ok(())
}

/// Checks that the container cannot open a device that it has not claimed, not even with a device node of its own.
async fn no_unclaimed_device(namespace: &Namespace, pod: &str) -> anyhow::Result<()> {
    let make = "mknod /tmp/own c 231 193 && mknod /tmp/other c 231 192";
    namespace
        .exec(pod, "root", &["sh", "-c", make], COMMAND)
        .await?;
    let own = opened(namespace, pod, "root", "/tmp/own").await?;
    let other = opened(namespace, pod, "root", "/tmp/other").await?;
    ensure!(
        is_allowed(&own) && other == "EPERM",
        "{pod}: claimed {own}, unclaimed {other}"
    );
    Ok(())
}

/// Kills the agent and removes its CDI files, which the next agent must restore.
async fn lost_file(product: &Product, namespace: &Namespace) -> anyhow::Result<()> {
    let files = files(product).await?;
    ensure!(files.len() == 2, "{files:?}");
    let node = Node::new(&product.cluster, "n1");
    node.shell("rm /var/run/cdi/mooncake.io-hca-*", COMMAND)
        .await?;
    let agent = product.agent_on("n1").await?;
    for worker in processes::of_pod(&agent, "worker")? {
        worker.recorded.signal(Signal::KILL);
    }
    let what = "the lost files to be restored";
    eventually(what, SOON, || async {
        let now = self::files(product).await?;
        Ok(Seen::when((now == files).then_some(()), format!("{now:?}")))
    })
    .await?;
    namespace
        .exec("one", "user", &["touch", "/tmp/end"], COMMAND)
        .await?;
    let pods: Api<Pod> = namespace.api();
    eventually("the container to start again", SOON, || async {
        let pod = pods.get("one").await?;
        let statuses = pod.status.and_then(|status| status.container_statuses);
        let again = statuses
            .iter()
            .flatten()
            .any(|status| status.name == "user" && status.restart_count > 0 && status.ready);
        Ok(Seen::when(again.then_some(()), format!("{statuses:?}")))
    })
    .await?;
    unprivileged(namespace, "one").await
}

async fn delete_without_agent(product: &Product, namespace: &Namespace) -> anyhow::Result<()> {
    let agent = product.agent_on("n1").await?;
    let all = processes::of_pod(&agent, "--state-dir")?;
    let (workers, supervisors): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|process| process.command.contains("worker"));
    ensure!(!workers.is_empty() && !supervisors.is_empty(), "no agent");
    // A stopped supervisor starts no new worker.
    let to_supervisors = |signal| {
        for supervisor in &supervisors {
            supervisor.recorded.signal(signal);
        }
    };
    to_supervisors(Signal::STOP);
    for worker in &workers {
        worker.recorded.signal(Signal::KILL);
    }
    let pods: Api<Pod> = namespace.api();
    pods.delete("one", &DeleteParams::default()).await?;
    // The test is that the pod does not end.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let held = pods.get_opt("one").await?;
    to_supervisors(Signal::CONT);
    ensure!(
        held.is_some(),
        "the pod was gone before its device was unprepared"
    );
    gone(product, namespace, "one").await
}

/// Waits until a pod and its CDI file are gone.
async fn gone(product: &Product, namespace: &Namespace, pod: &str) -> anyhow::Result<()> {
    let left = usize::from(pod == "one");
    let pods: Api<Pod> = namespace.api();
    eventually(format!("{pod} to go"), SOON, || async {
        let exists = pods.get_opt(pod).await?.is_some();
        let files = files(product).await?;
        let seen = format!("exists: {exists}, CDI files: {files:?}");
        Ok(Seen::when(
            (!exists && files.len() == left).then_some(()),
            seen,
        ))
    })
    .await
}

/// Names of our CDI files on the node.
async fn files(product: &Product) -> anyhow::Result<Vec<String>> {
    let node = Node::new(&product.cluster, "n1");
    let found = node.shell("ls /var/run/cdi", COMMAND).await?;
    let ours = found
        .lines()
        .filter(|name| name.starts_with("mooncake.io-hca-"));
    Ok(ours.map(str::to_owned).collect())
}

/// Checks that an agent, whose token names its node, can only write slices of that node and of our driver.
async fn own_slices_only(product: &Product) -> anyhow::Result<()> {
    let write =
        |agent: &'static str, of: &'static str, pool: &'static str, driver: &'static str| {
            let slice = json!({
                "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
                "metadata": {"name": "scenario"},
                "spec": {
                    "driver": driver, "nodeName": of, "devices": [],
                    "pool": {"name": pool, "generation": 1, "resourceSliceCount": 1},
                },
            });
            async move {
                let node =
                    format!("--as-user-extra=authentication.kubernetes.io/node-name={agent}");
                let account = "--as=system:serviceaccount:mooncake-system:mooncake-agent";
                let create = move |cluster: &local_cluster::Cluster| {
                    let words = ["create", "--dry-run=server", "-f", "-", account, &node];
                    cluster
                        .kubectl()
                        .command(words)
                        .input(slice.to_string())
                        .output()
                };
                product.cluster.with(create).await
            }
        };
    write("n2", "n2", "n2", "hca.mooncake.io").await?;
    for (of, pool, driver, words) in [
        ("n1", "n1", "hca.mooncake.io", "its own node (n2)"),
        ("n2", "n1", "hca.mooncake.io", "its own node (n2), not n1"),
        ("n2", "n2", "gpu.example.org", "not of gpu.example.org"),
    ] {
        let refused = write("n2", of, pool, driver).await.err();
        let refused = refused.context("a foreign slice was accepted")?.to_string();
        ensure!(refused.contains(words), "{refused}");
    }
    Ok(())
}

/// Replaces the recording that the agent of a node reads, atomically.
pub(super) async fn set_recording(node: &Node, machine: &str) -> anyhow::Result<()> {
    let write = format!("cat > {MACHINE}.new <<'END'\n{machine}\nEND\nmv {MACHINE}.new {MACHINE}");
    node.shell(&write, COMMAND).await?;
    Ok(())
}

/// Installs with further values, and waits until all agents use them.
async fn install(product: &Product, values: &[String]) -> anyhow::Result<()> {
    product.install(values).await?;
    product.wait_ready(SOON).await
}
