//! Pods that claim RDMA devices, through the ends of everything that gives them. The nodes have none:
//! their agents read a recorded machine, and of a device without a driver the kernel says ENXIO where
//! a container may open it, and EPERM where it may not.

use anyhow::{Context, ensure};
use crds::Reason;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceSlice;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use mooncake_e2e::Part;
use mooncake_e2e::story::{Namespace, Node, Pool, Product, Seen, eventually, processes};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

use super::ailing;

const SOON: Duration = Duration::from_secs(180);
/// A preparation that failed is tried again after 70 to 90 seconds.
const PREPARED: Duration = Duration::from_secs(240);
const COMMAND: Duration = Duration::from_secs(30);

/// Two devices on one node and none on the other.
const MACHINES: [(&str, &str); 2] = [
    (
        "n1",
        include_str!("../../../node-agent/tests/machines/vm-soft-roce.txt"),
    ),
    (
        "n2",
        include_str!("../../../node-agent/tests/machines/vm-without-devices.txt"),
    ),
];
/// Where the agents find it; the folder is the one that outlives them.
const MACHINE: &str = "/var/lib/mooncake/machine.txt";

const SLICE: &str = "n1-hca.mooncake.io";
/// 8 slots of each device.
const SLOTS: usize = 16;

/// A ResourceClaimTemplate, by which each pod claims a slot of its own of the device.
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
async fn a_pod_gets_the_device_that_it_claims_and_keeps_it_whatever_dies() -> anyhow::Result<()> {
    let product = Arc::new(Product::alone().await?);
    let told = Arc::clone(&product);
    let story = async {
        for (node, machine) in MACHINES {
            be(&product.stage.node(node), machine).await?;
        }
        let words = [
            format!("agent.recording={MACHINE}"),
            "agent.maxUnavailable=100%".to_owned(),
        ];
        install(&product, &words).await?;
        product
            .tell("devices", async move |namespace| {
                tale(&told, &namespace).await
            })
            .await
    };
    let outcome = story.await;
    product
        .stage
        .with(|cluster| cluster.start(Part::Kubelet(1)))
        .await?;
    install(&product, &[]).await?;
    outcome
}

async fn tale(product: &Product, namespace: &Namespace) -> anyhow::Result<()> {
    let slices: Api<ResourceSlice> = Api::all(product.stage.client.clone());
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
        no_neighbour(namespace, pod).await?;
    }
    println!("two pods share rxe1");

    let (_, machine) = MACHINES[0];
    ailing::named_and_healed(product, namespace, machine, &["one", "two"]).await?;

    lost_file(product, namespace).await?;
    println!("a lost CDI file was put back, and the container started again");

    let kubelet = Part::Kubelet(1);
    product
        .stage
        .with(move |cluster| cluster.stop(kubelet).and_then(|()| cluster.start(kubelet)))
        .await?;
    offer(&slices, Some(&offered)).await?;
    println!("the kubelet started anew, and the devices are offered again");

    deleted_while_the_agent_is_away(product, namespace).await?;
    println!("a pod went that was deleted while the agent was away");
    // What the kubelet deleted at its start the others hold still.
    unprivileged(namespace, "two").await?;
    namespace
        .api::<Pod>()
        .delete("two", &DeleteParams::default())
        .await?;
    gone(product, namespace, "two").await?;
    of_a_cluster_that_requires_rdma(product, namespace).await
}

/// Its pod says nothing of claims and has a device, on the only node that has some. The cluster itself waits
/// for a proof that nobody can give, and its pod starts when the gate has waited long enough.
async fn of_a_cluster_that_requires_rdma(
    product: &Product,
    namespace: &Namespace,
) -> anyhow::Result<()> {
    let spec = "{transports: {rdma: Require}, injection: {deadlineSeconds: 10},
        pools: [{name: default, size: 64Mi, drainSeconds: 2}]}";
    let pool = Pool::apply(namespace, "kv", spec).await?;
    let why = pool.unready(Some(Reason::NoUsableTransport), SOON).await?;
    ensure!(!why.contains("no RDMA device"), "{why}");
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "injected", "labels": {"mooncake.io/inject": "kv"}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "user", "image": mooncake_e2e::images::DEBIAN,
                "command": ["sh", "-c", WAIT], "securityContext": restricted(),
            }],
        },
    });
    namespace.apply(&pod.to_string()).await?;
    let pod = namespace.pod_ready("injected", PREPARED).await?;
    let node = pod.spec.and_then(|spec| spec.node_name);
    ensure!(node.as_deref() == Some("n1"), "{node:?} has no device");
    let said = namespace
        .exec("injected", "user", &["sh", "-c", TELL], COMMAND)
        .await?;
    let words: Vec<&str> = said.split_whitespace().collect();
    let given = [["uverbs0", "rxe0"], ["uverbs1", "rxe1"]]
        .into_iter()
        .find(|[file, device]| words == ["1000", "rdma_cm", file, device]);
    let [file, device] = given.with_context(|| format!("injected: {said}"))?;
    let said = opened(
        namespace,
        "injected",
        "user",
        &format!("/dev/infiniband/{file}"),
    )
    .await?;
    ensure!(is_allowed(&said), "injected: {said}");
    println!("an injected pod that says nothing of claims has {device}");
    namespace
        .api::<Pod>()
        .delete("injected", &DeleteParams::default())
        .await?;
    gone(product, namespace, "injected").await
}

/// The slice of the node with devices; another than `before`.
async fn offer(
    slices: &Api<ResourceSlice>,
    before: Option<&ResourceSlice>,
) -> anyhow::Result<ResourceSlice> {
    eventually("the devices to be offered", SOON, || async {
        let Some(slice) = slices.get_opt(SLICE).await? else {
            return Ok(Seen::NotYet("no slice".to_owned()));
        };
        let count = slice.spec.devices.as_ref().map_or(0, Vec::len);
        let anew = before.is_none_or(|before| before.uid() != slice.uid());
        let words = format!("{count} slots, anew: {anew}");
        Ok(Seen::when((anew && count == SLOTS).then_some(slice), words))
    })
    .await
}

/// What a container does until it is told to end.
const WAIT: &str = "until [ -e /tmp/end ]; do sleep 0.2; done";

/// Asks a container who it is and which devices it has.
const TELL: &str = "id -u; ls -x /dev/infiniband; echo $MOONCAKE_HCA_DEVICES";

/// `user` is what a user's container is; `root` could make any device node that the device cgroup lets
/// it open; `bystander` claims nothing.
fn pod_that_claims(name: &str) -> Value {
    let container = |name: &str, claims: Value, security: Value| {
        json!({
            "name": name, "image": mooncake_e2e::images::DEBIAN,
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

/// A user's container, which is not root.
fn restricted() -> Value {
    json!({
        "runAsUser": 1000, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
    })
}

/// Opens a device file, and says which error that gave.
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
    let said = namespace.exec(pod, container, &command, COMMAND).await?;
    Ok(said.trim().to_owned())
}

/// Where the machine that runs this has such a device by itself, it opens.
fn is_allowed(said: &str) -> bool {
    ["ENXIO", "ENODEV", "opened"].contains(&said)
}

async fn unprivileged(namespace: &Namespace, pod: &str) -> anyhow::Result<()> {
    let said = namespace
        .exec(pod, "user", &["sh", "-c", TELL], COMMAND)
        .await?;
    let words: Vec<&str> = said.split_whitespace().collect();
    ensure!(
        words == ["1000", "rdma_cm", "uverbs1", "rxe1"],
        "{pod}: {said}"
    );
    let said = opened(namespace, pod, "user", "/dev/infiniband/uverbs1").await?;
    ensure!(is_allowed(&said), "{pod}: {said}");
    let tell = "ls /dev/infiniband 2>/dev/null; echo \"<$MOONCAKE_HCA_DEVICES>\"";
    let said = namespace
        .exec(pod, "bystander", &["sh", "-c", tell], COMMAND)
        .await?;
    ensure!(
        said.trim() == "<>",
        "a container that claims nothing has {said}"
    );
    Ok(())
}

/// The device that the claim does not hold cannot be opened, whoever makes a file for it.
async fn no_neighbour(namespace: &Namespace, pod: &str) -> anyhow::Result<()> {
    let make = "mknod /tmp/own c 231 193 && mknod /tmp/neighbour c 231 192";
    namespace
        .exec(pod, "root", &["sh", "-c", make], COMMAND)
        .await?;
    let own = opened(namespace, pod, "root", "/tmp/own").await?;
    let neighbour = opened(namespace, pod, "root", "/tmp/neighbour").await?;
    ensure!(
        is_allowed(&own) && neighbour == "EPERM",
        "{pod}: its own {own}, the neighbour {neighbour}"
    );
    Ok(())
}

/// The agent dies and the files go, as at a crash in the midst of it all.
async fn lost_file(product: &Product, namespace: &Namespace) -> anyhow::Result<()> {
    let files = files(product).await?;
    ensure!(files.len() == 2, "{files:?}");
    let node = product.stage.node("n1");
    node.shell("rm /var/run/cdi/mooncake.io-hca-*", COMMAND)
        .await?;
    let agent = product.agent_on("n1").await?;
    for worker in processes::of_pod(&agent, "worker")? {
        worker.recorded.signal(Signal::KILL);
    }
    let what = "the lost files to be put back";
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

async fn deleted_while_the_agent_is_away(
    product: &Product,
    namespace: &Namespace,
) -> anyhow::Result<()> {
    let agent = product.agent_on("n1").await?;
    let all = processes::of_pod(&agent, "--state-dir")?;
    let (workers, supervisors): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|process| process.command.contains("worker"));
    ensure!(!workers.is_empty() && !supervisors.is_empty(), "no agent");
    // Stopped, it starts no other worker.
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
    // Nothing can be awaited here: what is tested is that it does not end.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let held = pods.get_opt("one").await?;
    to_supervisors(Signal::CONT);
    ensure!(
        held.is_some(),
        "the pod went before its device was taken back"
    );
    gone(product, namespace, "one").await
}

/// Waits until a pod is gone, and with it what it was given.
async fn gone(product: &Product, namespace: &Namespace, pod: &str) -> anyhow::Result<()> {
    let left = usize::from(pod == "one");
    let pods: Api<Pod> = namespace.api();
    eventually(format!("{pod} to go"), SOON, || async {
        let there = pods.get_opt(pod).await?.is_some();
        let files = files(product).await?;
        let words = format!("there: {there}, CDI files: {files:?}");
        Ok(Seen::when(
            (!there && files.len() == left).then_some(()),
            words,
        ))
    })
    .await
}

/// Names of the files by which the container runtime gives devices.
async fn files(product: &Product) -> anyhow::Result<Vec<String>> {
    let node = product.stage.node("n1");
    let found = node.shell("ls /var/run/cdi", COMMAND).await?;
    let ours = found
        .lines()
        .filter(|name| name.starts_with("mooncake.io-hca-"));
    Ok(ours.map(str::to_owned).collect())
}

/// As an agent of a node, with a token that names the node.
async fn own_slices_only(product: &Product) -> anyhow::Result<()> {
    let write = |agent: &'static str, of: &'static str, driver: &'static str| {
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": "story"},
            "spec": {
                "driver": driver, "nodeName": of, "devices": [],
                "pool": {"name": "story", "generation": 1, "resourceSliceCount": 1},
            },
        });
        async move {
            let node = format!("--as-user-extra=authentication.kubernetes.io/node-name={agent}");
            let account = "--as=system:serviceaccount:mooncake-system:mooncake-agent";
            let create = move |cluster: &mooncake_e2e::Cluster| {
                let words = ["create", "--dry-run=server", "-f", "-", account, &node];
                cluster
                    .kubectl()
                    .command(words)
                    .input(slice.to_string())
                    .output()
            };
            product.stage.with(create).await
        }
    };
    write("n2", "n2", "hca.mooncake.io").await?;
    for (agent, of, driver, words) in [
        ("n2", "n1", "hca.mooncake.io", "its own node (n2)"),
        ("n2", "n2", "gpu.example.org", "not of gpu.example.org"),
    ] {
        let refused = write(agent, of, driver).await.err();
        let refused = refused.context("a foreign slice was taken")?.to_string();
        ensure!(refused.contains(words), "{refused}");
    }
    Ok(())
}

/// Has the agent of a node read another machine, whole from one look to the next.
pub(super) async fn be(node: &Node, machine: &str) -> anyhow::Result<()> {
    let write = format!("cat > {MACHINE}.new <<'END'\n{machine}\nEND\nmv {MACHINE}.new {MACHINE}");
    node.shell(&write, COMMAND).await?;
    Ok(())
}

/// Installs with further settings, and waits until all agents have them.
async fn install(product: &Product, words: &[String]) -> anyhow::Result<()> {
    product.install(words).await?;
    product.whole(SOON).await
}
