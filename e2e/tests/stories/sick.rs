//! A device that gives no more resources, by the kernel's own limit for the agent's cgroup: who hears of it, who
//! gets the device no more, and how all of it ends by itself when the device gives again.

use anyhow::{Context, ensure};
use crds::check::CheckFinding;
use crds::condition::find;
use crds::{CheckId, ConditionType, Reason};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::ResourceExt;
use kube::api::Api;
use mooncake_e2e::images;
use mooncake_e2e::story::{Policy, Seen, eventually};
use serde_json::json;

use super::devices;
use super::machine::{Machine, SLOW};

const DEVICE: &str = "rxe1";
const POD: &str = "wants";

/// The second device of the machine is there and well; so it is again at the end.
pub(super) async fn told(machine: &Machine) -> anyhow::Result<()> {
    let policy = Policy::of(&machine.node, "sick-devices");
    let template = devices::template("sick", "rxe1");
    machine.namespace.apply(&template.to_string()).await?;
    policy
        .apply("sickDevices: {cordonWhen: AnyIsSick, afterSeconds: 1}")
        .await?;
    let told = from_fault_to_repair(machine, &policy).await;
    // It does not go with the namespace either.
    let lifted = give(machine, "max").await;
    policy.after(told.and(lifted)).await
}

async fn from_fault_to_repair(machine: &Machine, policy: &Policy) -> anyhow::Result<()> {
    let place = (CheckId::MemoryKey, DEVICE);
    let is = |told: &CheckFinding| told.reason == Reason::MkeyExhausted;
    // A protection domain, and nothing in it: the errno of a card without memory keys.
    give(machine, "1").await?;
    let words = machine.node.finding(place, SLOW, is).await?.message;
    println!("{words}");
    ensure!(words.contains("EAGAIN"), "{words}");
    offered(machine, false).await?;
    println!("{DEVICE} is offered as unusable, rxe0 as it was");
    let doctor = machine.product.doctor().await;
    ensure!(
        doctor.contains(DEVICE) && doctor.contains("MkeyExhausted"),
        "{doctor}"
    );
    // The only node of its policy that has devices: that may be the fault of something else.
    condition(policy, Reason::MostNodesSick).await?;

    machine
        .namespace
        .apply(&pod(&machine.node.name).to_string())
        .await?;
    let pods: Api<Pod> = machine.namespace.api();
    eventually("the pod to find no device", SLOW, || async {
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
    println!("a pod that claims {DEVICE} waits for one that is well");

    give(machine, "max").await?;
    machine.node.no_finding(place, SLOW, is).await?;
    offered(machine, true).await?;
    eventually("the pod to have got the device", SLOW, || async {
        let status = pods.get(POD).await?.status.unwrap_or_default();
        let ended = status.phase.as_deref() == Some("Succeeded");
        Ok(Seen::when(ended.then_some(()), format!("{status:?}")))
    })
    .await?;
    condition(policy, Reason::AsExpected).await?;
    println!("{DEVICE} gives again: the pod that waited has got it");
    Ok(())
}

/// How many verbs objects of the device the agent's pod may have.
async fn give(machine: &Machine, objects: &str) -> anyhow::Result<()> {
    let agent = machine.agent().await?;
    let uid = agent.uid().context("an agent pod without UID")?;
    // As the drivers cgroupfs and systemd write it.
    let names = [uid.clone(), uid.replace('-', "_")].map(|uid| format!("-name '*{uid}*'"));
    let script = format!(
        "set -e; folder=$(find /sys/fs/cgroup -type d \\( {} \\) | head -n 1); \
         echo '{DEVICE} hca_handle=max hca_object={objects}' > \"$folder/rdma.max\"",
        names.join(" -o ")
    );
    machine.run(&script).await?;
    Ok(())
}

/// Waits until every slot of the device is offered so, and every other as usable.
async fn offered(machine: &Machine, usable: bool) -> anyhow::Result<()> {
    let slices: Api<ResourceSlice> = Api::all(machine.product.stage.client.clone());
    let name = format!("{}-hca.mooncake.io", machine.node.name);
    eventually(
        format!("{DEVICE} to be offered as usable: {usable}"),
        SLOW,
        || async {
            let slice = slices.get(&name).await?;
            let devices = slice.spec.devices.unwrap_or_default();
            let (own, others): (Vec<&Device>, Vec<&Device>) = devices
                .iter()
                .partition(|device| word(device, "rdmaDevice").as_deref() == Some(DEVICE));
            let sick = (!usable).then(|| "MkeyExhausted".to_owned());
            let as_wanted = !own.is_empty()
                && !others.is_empty()
                && own
                    .iter()
                    .all(|device| of_use(device) == usable && word(device, "sick") == sick)
                && others.iter().all(|device| of_use(device));
            let seen = format!("{own:?}");
            Ok(Seen::when(as_wanted.then_some(()), seen))
        },
    )
    .await
}

fn word(device: &Device, name: &str) -> Option<String> {
    let attributes = device.attributes.as_ref()?;
    attributes.get(name)?.string.clone()
}

fn of_use(device: &Device) -> bool {
    let attributes = device.attributes.as_ref();
    attributes.and_then(|attributes| attributes.get("usable")?.bool) == Some(true)
}

/// Waits for what the policy says of its sick nodes.
async fn condition(policy: &Policy, wanted: Reason) -> anyhow::Result<()> {
    eventually(format!("the policy to say {wanted}"), SLOW, || async {
        let status = policy.object().await?.status.unwrap_or_default();
        let told = find(&status.conditions, ConditionType::SickNodesCordoned);
        let found = told.is_some_and(|told| told.reason == wanted.as_str());
        Ok(Seen::when(found.then_some(()), format!("{told:?}")))
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
            "resourceClaims": [{"name": "hca", "resourceClaimTemplateName": "sick"}],
            "containers": [{
                "name": "engine", "image": images::DEBIAN,
                "command": ["sh", "-c", "ls /dev/infiniband/uverbs*"],
                "resources": {"claims": [{"name": "hca"}]},
                "securityContext": {"runAsUser": 1000, "runAsNonRoot": true},
            }],
        },
    })
}
