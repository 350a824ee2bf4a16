//! Soft-RoCE devices of a virtual machine node: published limits, locked memory of pods that claim a device, injected
//! faults, and a device without resources. Only the soak runs this.

use anyhow::{Context, ensure};
use crds::inventory::{HcaLimits, PortState};
use crds::{ByteSize, CheckId, MooncakeInventory};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::Api;
use local_cluster::images;
use mooncake_e2e::product::NAMESPACE;
use mooncake_e2e::scenario::{Seen, eventually};
use serde_json::json;

use super::rdma_device_claims;
use super::vm_node::{SLOW, VmNode, with_vm_node};
use super::{injected_node_faults, rdma_port_ipv6, unhealthy_device};

/// Adds a second device, on an interface that nothing else uses.
const ADD: &str = "modprobe dummy && ip link add rail0 type dummy && \
                   ip addr add 198.19.254.1/24 dev rail0 && ip link set rail0 up && \
                   rdma link add rxe1 type rxe netdev rail0";

/// Prints the memlock limit and whether 1 GiB can be locked.
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
#[ignore = "needs a local cluster and a virtual vm: root and 8 GiB of memory"]
async fn soft_roce_limits_are_published_and_each_fault_is_reported_until_repaired()
-> anyhow::Result<()> {
    with_vm_node("rails", async |vm: VmNode| {
        vm.run(ADD).await?;
        let outcome = devices_and_faults(&vm).await;
        vm.run(REMOVE).await?;
        outcome
    })
    .await
}

async fn devices_and_faults(vm: &VmNode) -> anyhow::Result<()> {
    // The second device is newer than the agent's container, whose /dev does not have it.
    for device in ["rxe0", "rxe1"] {
        let printed = vm.run(&format!("ibv_devinfo -v -d {device}")).await?;
        let wanted = limits(&printed)?;
        let published = published(vm, device, wanted).await?;
        println!("{device}: {published:?}, as ibv_devinfo prints");
    }
    probes_pass(vm).await?;
    locked(vm).await?;

    injected_node_faults::repaired(vm).await?;
    rdma_port_ipv6::is_enabled_by_a_policy(vm).await?;
    probes_pass(vm).await?;
    unhealthy_device::is_not_allocated_until_it_recovers(vm).await?;
    injected_node_faults::logged(vm).await
}

/// Checks that a pod without root can lock 1 GiB only if it claims the device.
async fn locked(vm: &VmNode) -> anyhow::Result<()> {
    let template = rdma_device_claims::template("rail", "rxe0");
    vm.namespace.apply(&template.to_string()).await?;
    for (name, claims, wanted) in [
        ("claims", true, "1000 -1 -1 locked"),
        ("claims-not", false, "Cannot allocate memory"),
    ] {
        vm.namespace
            .apply(&pod_that_locks(name, &vm.node.name, claims).to_string())
            .await?;
        let pods: Api<Pod> = vm.namespace.api();
        eventually(format!("{name} to end"), SLOW, || async {
            let status = pods.get(name).await?.status.unwrap_or_default();
            let ended = ["Succeeded", "Failed"].contains(&status.phase.as_deref().unwrap_or(""));
            Ok(Seen::when(ended.then_some(()), format!("{status:?}")))
        })
        .await?;
        let log = vm.namespace.logs(name, "engine").await?;
        println!("{name}: {}", log.trim());
        ensure!(log.trim().ends_with(wanted), "{name}: {log}");
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

/// The limits in the output of `ibv_devinfo -v`.
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

/// Waits until the node's inventory has these limits and an active port, and returns the limits.
async fn published(vm: &VmNode, device: &str, wanted: HcaLimits) -> anyhow::Result<HcaLimits> {
    let inventories: Api<MooncakeInventory> = Api::all(vm.product.cluster.client.clone());
    eventually(format!("the limits of {device}"), SLOW, || async {
        let status = inventories.get(&vm.node.name).await?.status;
        let hca = status
            .iter()
            .flat_map(|status| &status.hcas)
            .find(|hca| hca.name == device);
        let active = hca.is_some_and(|hca| {
            let mut ports = hca.ports.iter();
            ports.all(|port| port.state.is_some_and(|state| state == PortState::Active))
        });
        let found = hca.and_then(|hca| hca.limits);
        let published = found.filter(|found| *found == wanted && active);
        Ok(Seen::when(
            published,
            format!("{found:?}, wanted {wanted:?}"),
        ))
    })
    .await
}

/// Whether a line's message counts two subjects.
fn counts_two(line: &serde_json::Value) -> bool {
    let mut texts = line.as_object().into_iter().flat_map(|line| line.values());
    texts.any(|text| text.as_str().is_some_and(|text| text.starts_with("2 ")))
}

/// Waits until the agent's `checks` command reports that both devices register memory and write to themselves.
async fn probes_pass(vm: &VmNode) -> anyhow::Result<()> {
    let agent = vm.agent().await?.name_any();
    eventually("both devices to pass their probes", SLOW, || async {
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
        // The command exits with 1 when a check fails.
        let output = match vm.product.cluster.kubectl(words).await {
            Ok(output) => output,
            Err(error) => return Ok(Seen::when(None, format!("{error:#}"))),
        };
        let lines: Vec<serde_json::Value> = serde_json::from_str(&output)?;
        let of = |check: CheckId| {
            let mut lines = lines.iter();
            lines.find(|line| line["check"] == check.as_str())
        };
        let passed = [CheckId::RdmaLoopback, CheckId::MemoryKey].map(of);
        let both = passed
            .iter()
            .flatten()
            .filter(|line| line["verdict"] == "Pass" && counts_two(line));
        Ok(Seen::when(
            (both.count() == 2).then_some(()),
            format!("{passed:?}"),
        ))
    })
    .await
}
