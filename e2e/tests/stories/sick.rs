//! A device that gives no more resources, by the kernel's own limit for the agent's cgroup: who hears of it, who
//! gets the device no more, and how all of it ends by itself when the device gives again.

use anyhow::{Context, ensure};
use crds::{CheckId, ConditionType, MooncakeNode, MooncakeNodePolicy, Reason};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{Device, ResourceSlice};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use mooncake_e2e::images;
use mooncake_e2e::story::{Seen, eventually};
use serde_json::json;

use super::devices;
use super::machine::{Machine, SLOW};

const DEVICE: &str = "rxe1";
const POLICY: &str = "sick-devices";
const POD: &str = "wants";

/// The second device of the machine is there and well; so it is again at the end.
pub(super) async fn told(machine: &Machine) -> anyhow::Result<()> {
    let policies: Api<MooncakeNodePolicy> = Api::all(machine.product.stage.client.clone());
    let template = devices::template("sick", "rxe1");
    machine.namespace.apply(&template.to_string()).await?;
    machine
        .namespace
        .apply(&policy(&machine.node).to_string())
        .await?;
    let told = from_fault_to_repair(machine, &policies).await;
    // Of the whole cluster, so it does not go with the namespace; nor does what the cgroup may have.
    let lifted = give(machine, "max").await;
    policies.delete(POLICY, &DeleteParams::default()).await?;
    told.and(lifted)
}

async fn from_fault_to_repair(
    machine: &Machine,
    policies: &Api<MooncakeNodePolicy>,
) -> anyhow::Result<()> {
    // A protection domain, and nothing in it: the errno of a card without memory keys.
    give(machine, "1").await?;
    let words = finding(machine, |words| words.is_some()).await?;
    let words = words.context("no finding")?;
    println!("{words}");
    ensure!(words.contains("EAGAIN"), "{words}");
    offered(machine, false).await?;
    println!("{DEVICE} is offered as unusable, rxe0 as it was");
    let doctor = machine.doctor().await;
    ensure!(
        doctor.contains(DEVICE) && doctor.contains("MkeyExhausted"),
        "{doctor}"
    );
    // The only node of its policy that has devices: that may be the fault of something else.
    condition(policies, Reason::MostNodesSick).await?;

    machine
        .namespace
        .apply(&pod(&machine.node).to_string())
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
    finding(machine, |words| words.is_none()).await?;
    offered(machine, true).await?;
    eventually("the pod to have got the device", SLOW, || async {
        let status = pods.get(POD).await?.status.unwrap_or_default();
        let ended = status.phase.as_deref() == Some("Succeeded");
        Ok(Seen::when(ended.then_some(()), format!("{status:?}")))
    })
    .await?;
    condition(policies, Reason::AsExpected).await?;
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

/// What is said of the device's memory keys, once it is as wanted.
async fn finding(
    machine: &Machine,
    wanted: impl Fn(Option<&String>) -> bool,
) -> anyhow::Result<Option<String>> {
    let nodes: Api<MooncakeNode> = Api::all(machine.product.stage.client.clone());
    eventually(
        format!("a word on {DEVICE}'s memory keys"),
        SLOW,
        || async {
            let status = nodes.get(&machine.node).await?.status.unwrap_or_default();
            let told = status.findings.iter().find(|finding| {
                finding.check == CheckId::MemoryKey
                    && finding.subject == DEVICE
                    && finding.reason == Reason::MkeyExhausted
            });
            let words = told.map(|finding| finding.message.clone());
            let seen = format!("{:?}", status.findings);
            Ok(Seen::when(wanted(words.as_ref()).then_some(words), seen))
        },
    )
    .await
}

/// Waits until every slot of the device is offered so, and every other as usable.
async fn offered(machine: &Machine, usable: bool) -> anyhow::Result<()> {
    let slices: Api<ResourceSlice> = Api::all(machine.product.stage.client.clone());
    let name = format!("{}-hca.mooncake.io", machine.node);
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
async fn condition(policies: &Api<MooncakeNodePolicy>, wanted: Reason) -> anyhow::Result<()> {
    eventually(
        format!("{POLICY} to say {}", wanted.as_str()),
        SLOW,
        || async {
            let status = policies.get(POLICY).await?.status.unwrap_or_default();
            let kind = ConditionType::SickNodesCordoned.as_str();
            let told = status.conditions.iter().find(|told| told.type_ == kind);
            let found = told.is_some_and(|told| told.reason == wanted.as_str());
            Ok(Seen::when(found.then_some(()), format!("{told:?}")))
        },
    )
    .await
}

fn policy(node: &str) -> serde_json::Value {
    json!({
        "apiVersion": "mooncake.io/v1alpha1", "kind": "MooncakeNodePolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "sickDevices": {"cordonWhen": "AnyIsSick", "afterSeconds": 1},
        },
    })
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
