//! A device without resources, by the rdma cgroup limit of the agent: it is reported, no new pod gets it, and it is
//! allocated again after it recovers.

use anyhow::{Context, ensure};
use crds::check::CheckFinding;
use crds::condition::find;
use crds::{CheckId, ConditionType, Reason};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::ResourceExt;
use kube::api::Api;
use local_cluster::images;
use mooncake_e2e::scenario::{Metrics, Policy, Seen, eventually};
use serde_json::json;

use super::rdma_device_claims;
use super::vm_node::{SLOW, VmNode};

const DEVICE: &str = "rxe1";
const POD: &str = "wants";

/// The second device is healthy before and afterwards.
pub(super) async fn is_not_allocated_until_it_recovers(vm: &VmNode) -> anyhow::Result<()> {
    let policy = Policy::of(&vm.node, "unhealthy-devices");
    let template = rdma_device_claims::template("unhealthy", "rxe1");
    vm.namespace.apply(&template.to_string()).await?;
    policy
        .apply("unhealthyDevices: {cordonWhen: AnyUnhealthy, afterSeconds: 1}")
        .await?;
    let outcome = from_fault_to_repair(vm, &policy).await;
    // The limit is not removed with the namespace.
    let lifted = limit_objects(vm, "max").await;
    policy.delete_after(outcome.and(lifted)).await
}

async fn from_fault_to_repair(vm: &VmNode, policy: &Policy) -> anyhow::Result<()> {
    let place = (CheckId::MemoryKey, DEVICE);
    let is = |found: &CheckFinding| found.reason == Reason::MkeyExhausted;
    // A protection domain, but no memory region: the errno of a device without memory keys.
    limit_objects(vm, "1").await?;
    let found = vm.node.finding(place, SLOW, is).await?;
    println!("{}", found.message);
    ensure!(found.message.contains("EAGAIN"), "{found:?}");
    let metrics = Metrics::reader(&vm.product, &vm.namespace).await?;
    let labels = (place.0, found.verdict.severity(), Reason::MkeyExhausted);
    metrics.findings(&vm.node.name, labels, true, SLOW).await?;
    published(vm, false).await?;
    println!("{DEVICE} is published as unusable, rxe0 as usable");
    let doctor = vm.product.doctor().await;
    ensure!(
        doctor.contains(DEVICE) && doctor.contains("MkeyExhausted"),
        "{doctor}"
    );
    // Most nodes with devices under this policy are unhealthy, so none is cordoned.
    condition(policy, Reason::MostNodesUnhealthy).await?;

    vm.namespace.apply(&pod(&vm.node.name).to_string()).await?;
    let pods: Api<Pod> = vm.namespace.api();
    eventually("the pod to be unschedulable", SLOW, || async {
        let status = pods.get(POD).await?.status.unwrap_or_default();
        let refused = status.conditions.iter().flatten().any(|condition| {
            condition.type_ == "PodScheduled"
                && condition.reason.as_deref() == Some("Unschedulable")
                && condition
                    .message
                    .as_ref()
                    .is_some_and(|message| message.contains("claim"))
        });
        Ok(Seen::when(refused.then_some(()), format!("{status:?}")))
    })
    .await?;
    println!("a pod that claims {DEVICE} waits");

    limit_objects(vm, "max").await?;
    vm.node.no_finding(place, SLOW, is).await?;
    metrics.findings(&vm.node.name, labels, false, SLOW).await?;
    published(vm, true).await?;
    eventually("the pod to get the device", SLOW, || async {
        let status = pods.get(POD).await?.status.unwrap_or_default();
        let ended = status.phase.as_deref() == Some("Succeeded");
        Ok(Seen::when(ended.then_some(()), format!("{status:?}")))
    })
    .await?;
    condition(policy, Reason::AsExpected).await?;
    println!("{DEVICE} recovered: the waiting pod got it");
    Ok(())
}

/// Limits the verbs objects of the device that the agent's pod may have.
async fn limit_objects(vm: &VmNode, objects: &str) -> anyhow::Result<()> {
    let agent = vm.agent().await?;
    let uid = agent.uid().context("the agent pod has no UID")?;
    // The cgroup drivers cgroupfs and systemd write the UID differently.
    let names = [uid.clone(), uid.replace('-', "_")].map(|uid| format!("-name '*{uid}*'"));
    let script = format!(
        "set -e; folder=$(find /sys/fs/cgroup -type d \\( {} \\) | head -n 1); \
         echo '{DEVICE} hca_handle=max hca_object={objects}' > \"$folder/rdma.max\"",
        names.join(" -o ")
    );
    vm.run(&script).await?;
    Ok(())
}

/// Waits until every slot of the device is published as `usable`, and every other slot as usable.
async fn published(vm: &VmNode, usable: bool) -> anyhow::Result<()> {
    let slices: Api<ResourceSlice> = Api::all(vm.product.cluster.client.clone());
    let name = format!("{}-hca.mooncake.io", vm.node.name);
    eventually(
        format!("{DEVICE} to be published as usable: {usable}"),
        SLOW,
        || async {
            let slice = slices.get(&name).await?;
            let devices = slice.spec.devices.unwrap_or_default();
            let (own, others): (Vec<&Device>, Vec<&Device>) = devices
                .iter()
                .partition(|device| attribute(device, "rdmaDevice").as_deref() == Some(DEVICE));
            let reason = Reason::MkeyExhausted.as_str();
            let as_wanted = !own.is_empty()
                && !others.is_empty()
                && own.iter().all(|device| {
                    is_usable(device) == usable && has_attribute(device, reason) != usable
                })
                && others.iter().all(|device| is_usable(device));
            let seen = format!("{own:?}");
            Ok(Seen::when(as_wanted.then_some(()), seen))
        },
    )
    .await
}

fn attribute(device: &Device, name: &str) -> Option<String> {
    let attributes = device.attributes.as_ref()?;
    attributes.get(name)?.string.clone()
}

/// Whether an attribute of the device has this text.
fn has_attribute(device: &Device, text: &str) -> bool {
    let mut attributes = device.attributes.iter().flat_map(|all| all.values());
    attributes.any(|attribute| attribute.string.as_deref() == Some(text))
}

fn is_usable(device: &Device) -> bool {
    let attributes = device.attributes.as_ref();
    attributes.and_then(|attributes| attributes.get("usable")?.bool) == Some(true)
}

/// Waits until the policy's condition for unhealthy nodes has this reason.
async fn condition(policy: &Policy, wanted: Reason) -> anyhow::Result<()> {
    eventually(format!("the policy to report {wanted}"), SLOW, || async {
        let status = policy.object().await?.status.unwrap_or_default();
        let found = find(&status.conditions, ConditionType::UnhealthyNodesCordoned);
        let matches = found.is_some_and(|found| found.reason == wanted.as_str());
        Ok(Seen::when(matches.then_some(()), format!("{found:?}")))
    })
    .await
}

fn pod(node: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "resourceClaims": [{"name": "hca", "resourceClaimTemplateName": "unhealthy"}],
            "containers": [{
                "name": "engine", "image": images::DEBIAN,
                "command": ["sh", "-c", "ls /dev/infiniband/uverbs*"],
                "resources": {"claims": [{"name": "hca"}]},
                "securityContext": {"runAsUser": 1000, "runAsNonRoot": true},
            }],
        },
    })
}
