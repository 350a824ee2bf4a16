//! RDMA devices of a node that is a machine of its own, by Soft-RoCE: limits as verbs tell them, memory locked by who claims one,
//! what is broken on purpose named until it is repaired, a device that gives no more resources lent to nobody until it does.
//! Told in the soak alone: the machine's processor is emulated.

use anyhow::{Context, ensure};
use crds::inventory::{HcaLimits, PortState};
use crds::{ByteSize, CheckId, MooncakeInventory};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use mooncake_e2e::images;
use mooncake_e2e::product::NAMESPACE;
use mooncake_e2e::story::{Seen, eventually};
use serde_json::json;

use super::devices;
use super::machine::{Machine, SLOW, with_a_machine};
use super::{faults, ipv6, sick};

/// A second device, whose interface is nobody else's.
const ADD: &str = "modprobe dummy && ip link add rail0 type dummy && \
                   ip addr add 198.19.254.1/24 dev rail0 && ip link set rail0 up && \
                   rdma link add rxe1 type rxe netdev rail0";

/// The first act of a program: what may it lock, and does 1 GiB lock?
const LOCK: &str = r#"
import ctypes, mmap, os, resource
limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)
size = 1 << 30
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
library = ctypes.CDLL(None, use_errno=True)
failed = library.mlock(ctypes.c_void_p(address), ctypes.c_size_t(size))
print(os.getuid(), *limit, os.strerror(ctypes.get_errno()) if failed else "locked")
"#;

const REMOVE: &str = "rdma link delete rxe1; ip link delete rail0";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a local cluster and a virtual machine: root and 8 GiB of memory"]
async fn s03_s07_s09_s12_s13_a_node_tells_of_its_rdma_devices_what_verbs_tell_and_of_each_fault_until_it_is_repaired()
-> anyhow::Result<()> {
    with_a_machine("rails", async |machine: Machine| {
        machine.run(ADD).await?;
        let told = told(&machine).await;
        machine.run(REMOVE).await?;
        told
    })
    .await
}

async fn told(machine: &Machine) -> anyhow::Result<()> {
    // The second came after the agent's container, whose own /dev does not have it.
    for device in ["rxe0", "rxe1"] {
        let printed = machine.run(&format!("ibv_devinfo -v -d {device}")).await?;
        let wanted = limits(&printed)?;
        let published = published(machine, device, wanted).await?;
        println!("{device}: {published:?}, as ibv_devinfo tells");
    }
    tried(machine).await?;
    locked(machine).await?;

    faults::repaired(machine).await?;
    ipv6::set_right(machine).await?;
    tried(machine).await?;
    sick::told(machine).await?;
    faults::logged(machine).await
}

/// A pod that is not root locks 1 GiB where it claims the device, and cannot where it does not.
async fn locked(machine: &Machine) -> anyhow::Result<()> {
    let template = devices::template("rail", "rxe0");
    machine.namespace.apply(&template.to_string()).await?;
    for (name, claims, wanted) in [
        ("claims", true, "1000 -1 -1 locked"),
        ("claims-not", false, "Cannot allocate memory"),
    ] {
        machine
            .namespace
            .apply(&pod_that_locks(name, &machine.node.name, claims).to_string())
            .await?;
        let pods: Api<Pod> = machine.namespace.api();
        eventually(format!("{name} to end"), SLOW, || async {
            let status = pods.get(name).await?.status.unwrap_or_default();
            let ended = ["Succeeded", "Failed"].contains(&status.phase.as_deref().unwrap_or(""));
            Ok(Seen::when(ended.then_some(()), format!("{status:?}")))
        })
        .await?;
        let said = machine.namespace.logs(name, "engine").await?;
        println!("{name}: {}", said.trim());
        ensure!(said.trim().ends_with(wanted), "{name}: {said}");
    }
    Ok(())
}

fn pod_that_locks(name: &str, node: &str, claims: bool) -> serde_json::Value {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "engine", "image": images::DEBIAN,
                "command": ["python3", "-c", LOCK],
                "resources": {"requests": {"memory": "1100Mi"}, "limits": {"memory": "1200Mi"}},
                "securityContext": {
                    "runAsUser": 1000, "runAsNonRoot": true, "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
                },
            }],
        },
    });
    if claims {
        pod["spec"]["resourceClaims"] =
            json!([{"name": "hca", "resourceClaimTemplateName": "rail"}]);
        pod["spec"]["containers"][0]["resources"]["claims"] = json!([{"name": "hca"}]);
    }
    pod
}

/// The limits in what `ibv_devinfo -v` prints.
fn limits(printed: &str) -> anyhow::Result<HcaLimits> {
    let number = |name: &str| {
        let value = printed
            .lines()
            .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
            .with_context(|| format!("no {name} in {printed}"))?
            .trim();
        let number = match value.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => value.parse(),
        };
        number.with_context(|| format!("{name}: {value}"))
    };
    Ok(HcaLimits {
        max_mr_size: ByteSize(number("max_mr_size")?),
        max_mr: u32::try_from(number("max_mr")?)?,
        max_qp: u32::try_from(number("max_qp")?)?,
        max_cqe: u32::try_from(number("max_cqe")?)?,
    })
}

/// Waits until the node's inventory has these limits, with a port that is active.
async fn published(
    machine: &Machine,
    device: &str,
    wanted: HcaLimits,
) -> anyhow::Result<HcaLimits> {
    let inventories: Api<MooncakeInventory> = Api::all(machine.product.stage.client.clone());
    eventually(format!("the limits of {device}"), SLOW, || async {
        let status = inventories.get(&machine.node.name).await?.status;
        let hca = status
            .iter()
            .flat_map(|status| &status.hcas)
            .find(|hca| hca.name == device);
        let active = hca.is_some_and(|hca| {
            let mut ports = hca.ports.iter();
            ports.all(|port| port.state == Some(PortState::Active))
        });
        let found = hca.and_then(|hca| hca.limits);
        let as_told = found.filter(|found| *found == wanted && active);
        Ok(Seen::when(as_told, format!("{found:?}, wanted {wanted:?}")))
    })
    .await
}

/// Both devices register memory and write to themselves, as the agent's own command tells.
async fn tried(machine: &Machine) -> anyhow::Result<()> {
    let agent = machine.agent().await?.name_any();
    eventually("both rails to carry a write", SLOW, || async {
        let words = [
            "exec",
            agent.as_str(),
            "--namespace",
            NAMESPACE,
            "--",
            "/agent",
            "checks",
            "--json",
            "--root=/host",
            "--network=/proc/1/ns/net",
        ];
        // It ends with 1 where anything fails.
        let told = match machine.product.stage.kubectl(words).await {
            Ok(told) => told,
            Err(error) => return Ok(Seen::when(None, format!("{error:#}"))),
        };
        let lines: Vec<serde_json::Value> = serde_json::from_str(&told)?;
        let of = |check: CheckId| {
            let mut lines = lines.iter();
            lines.find(|line| line["check"] == check.as_str())
        };
        let passed = [CheckId::RailLoop, CheckId::MemoryKey].map(of);
        let both = passed
            .iter()
            .flatten()
            .filter(|line| line["verdict"] == "Pass" && line["words"] == "2 looked at");
        Ok(Seen::when(
            (both.count() == 2).then_some(()),
            format!("{passed:?}"),
        ))
    })
    .await
}
