//! Plays a recording against the API server, with names unique to the recording: the driver's
//! controller, plugin and daemons, the claims' controllers, the nodes.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::recording::Op;
use crate::harness::{SYSTEM, make_namespace};

const PRESENT: &str = "nvidia.com/gpu.present";
pub(crate) const NODES: [&str; 2] = ["n1", "n2"];
const NAMESPACES: [&str; 3] = ["team-a", "team-b", "nvidia-dra"];

pub(crate) struct Player {
    client: Client,
    /// Prefix of names that other recordings use too.
    prefix: String,
    /// UIDs from the API server, by recorded UID.
    uids: BTreeMap<String, String>,
    /// IMEX runs on the host, without daemon pods.
    host_managed: bool,
}

impl Player {
    pub(crate) async fn new(client: &Client, recording: &str) -> anyhow::Result<Self> {
        let number = recording.split('-').next().unwrap_or_default();
        let player = Self {
            client: client.clone(),
            prefix: format!("r{number}"),
            uids: BTreeMap::new(),
            host_managed: recording.contains("host-managed"),
        };
        for name in NAMESPACES {
            make_namespace(client, &player.own(name)).await?;
        }
        Ok(player)
    }

    /// The prefixed form of a recorded name.
    pub(crate) fn own(&self, recorded: &str) -> String {
        format!("{}-{recorded}", self.prefix)
    }

    pub(crate) async fn play(&mut self, op: Op, recorded: &Value) -> anyhow::Result<()> {
        let object = self.translated(recorded)?;
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let name = name.to_owned();
        let what = format!("{op:?} {kind} {name}");
        let api = self.api(&kind, object["metadata"]["namespace"].as_str())?;
        match op {
            Op::Added => self.add(&api, &kind, recorded, object).await,
            Op::Modified => self.modify(&api, &kind, &name, object).await,
            Op::Deleted => {
                remove(&api, &name).await?;
                if kind == "Node" {
                    // No garbage collector follows its owner reference.
                    remove(&self.api("MooncakeNode", None)?, &name).await?;
                }
                Ok(())
            }
        }
        .context(what)
    }

    fn translated(&self, recorded: &Value) -> anyhow::Result<Value> {
        let mut text = recorded.to_string();
        for (recorded, given) in &self.uids {
            text = text.replace(recorded, given);
        }
        let mut object = serde_json::from_str(&text)?;
        self.rename(&mut object);
        Ok(object)
    }

    fn rename(&self, value: &mut Value) {
        match value {
            Value::String(text) => {
                if NODES.contains(&text.as_str()) || NAMESPACES.contains(&text.as_str()) {
                    *text = self.own(text);
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.rename(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.rename(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn api(&self, kind: &str, namespace: Option<&str>) -> anyhow::Result<Api<DynamicObject>> {
        let (group, version, plural) = match kind {
            "Node" => ("", "v1", "nodes"),
            "Pod" => ("", "v1", "pods"),
            "ComputeDomain" => ("resource.nvidia.com", "v1beta1", "computedomains"),
            "ComputeDomainClique" => ("resource.nvidia.com", "v1beta1", "computedomaincliques"),
            "ResourceClaim" => ("resource.k8s.io", "v1", "resourceclaims"),
            "ResourceClaimTemplate" => ("resource.k8s.io", "v1", "resourceclaimtemplates"),
            "ResourceSlice" => ("resource.k8s.io", "v1", "resourceslices"),
            "MooncakeNode" => ("mooncake.io", "v1alpha1", "mooncakenodes"),
            other => bail!("{other} is not played"),
        };
        let gvk = GroupVersionKind::gvk(group, version, kind);
        let resource = ApiResource::from_gvk_with_plural(&gvk, plural);
        Ok(match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        })
    }

    async fn add(
        &mut self,
        api: &Api<DynamicObject>,
        kind: &str,
        recorded: &Value,
        mut object: Value,
    ) -> anyhow::Result<()> {
        let status = object.as_object_mut().and_then(|o| o.remove("status"));
        let meta = object["metadata"].as_object_mut().context("no metadata")?;
        meta.remove("uid");
        let leaving = meta.remove("deletionTimestamp").is_some();
        // The recorded UIDs of owners do not exist here; no garbage collector runs.
        for owner in meta
            .get_mut("ownerReferences")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            owner["uid"] = json!("00000000-0000-0000-0000-000000000000");
        }
        if kind == "Pod" {
            object["spec"]["containers"] = json!([{"name": "daemon", "image": "d"}]);
        }
        let made = api
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?;
        let uid = recorded["metadata"]["uid"].as_str().unwrap_or_default();
        self.uids
            .insert(uid.to_owned(), made.uid().unwrap_or_default());
        let name = made.name_any();
        if let Some(status) = status {
            patch_status(api, &name, status).await?;
        }
        if leaving {
            api.delete(&name, &DeleteParams::default()).await?;
        }
        if kind == "Node" {
            self.make_agent(&name).await?;
            if made.labels().contains_key(PRESENT) {
                self.start_plugin(&name).await?;
            }
        }
        Ok(())
    }

    async fn modify(
        &self,
        api: &Api<DynamicObject>,
        kind: &str,
        name: &str,
        mut object: Value,
    ) -> anyhow::Result<()> {
        let fields = object.as_object_mut().context("no object")?;
        let status = fields.remove("status");
        if let Some(spec) = fields.remove("spec")
            && let Some(node) = spec["nodeName"].as_str()
        {
            bind(api, name, node).await?;
        }
        for known in ["apiVersion", "kind"] {
            fields.remove(known);
        }
        let meta = fields["metadata"].as_object_mut().context("no metadata")?;
        let leaving = meta.remove("deletionTimestamp").is_some();
        let labels = meta.get("labels").cloned().unwrap_or_default();
        for known in ["name", "namespace", "uid"] {
            meta.remove(known);
        }
        if meta.is_empty() {
            fields.remove("metadata");
        }
        if !fields.is_empty() {
            let patch = Patch::Merge(object);
            api.patch(name, &PatchParams::default(), &patch).await?;
        }
        if let Some(status) = status {
            patch_status(api, name, status).await?;
        }
        if leaving {
            match api.delete(name, &DeleteParams::default()).await {
                // The object may be gone already.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => drop(other?),
            }
        }
        if kind == "Node" && labels.get(PRESENT).is_some_and(|label| label == "true") {
            self.start_plugin(name).await?;
        }
        Ok(())
    }

    async fn start_plugin(&self, node: &str) -> anyhow::Result<()> {
        let device = |kind: &str| {
            json!({"name": format!("{kind}-0"), "attributes": {
                "type": {"string": kind}, "id": {"int": 0},
            }})
        };
        let devices = if self.host_managed {
            json!([device("channel")])
        } else {
            json!([device("daemon"), device("channel")])
        };
        let slice = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": slice_name(node)},
            "spec": {
                "driver": "compute-domain.nvidia.com",
                "nodeName": node,
                "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
                "devices": devices,
            },
        });
        self.api("ResourceSlice", None)?
            .create(&PostParams::default(), &serde_json::from_value(slice)?)
            .await?;
        Ok(())
    }

    /// Deletes the ResourceSlices of this recording's nodes.
    pub(crate) async fn stop_plugins(&self) -> anyhow::Result<()> {
        let slices = self.api("ResourceSlice", None)?;
        for node in NODES {
            remove(&slices, &slice_name(&self.own(node))).await?;
        }
        Ok(())
    }

    /// Creates an agent pod: only nodes with an agent have a MooncakeNode.
    async fn make_agent(&self, node: &str) -> anyhow::Result<()> {
        let api = self.api("Pod", Some(SYSTEM))?;
        let name = format!("agent-{node}");
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"mooncake.io/component": "agent"}},
            "spec": {"nodeName": node, "containers": [{"name": "agent", "image": "a"}]},
        });
        api.create(&PostParams::default(), &serde_json::from_value(pod)?)
            .await?;
        let ready =
            json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
        patch_status(&api, &name, ready).await
    }
}

fn slice_name(node: &str) -> String {
    format!("compute-domain-{node}")
}

async fn patch_status(api: &Api<DynamicObject>, name: &str, status: Value) -> anyhow::Result<()> {
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(name, &PatchParams::default(), &patch)
        .await?;
    Ok(())
}

async fn bind(api: &Api<DynamicObject>, name: &str, node: &str) -> anyhow::Result<()> {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let _: Value = api
        .create_subresource("binding", name, &PostParams::default(), &binding)
        .await?;
    Ok(())
}

/// Removes the finalizers and deletes the object, if it exists.
async fn remove(api: &Api<DynamicObject>, name: &str) -> anyhow::Result<()> {
    let gone = |outcome: kube::Result<()>| match outcome {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other,
    };
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let freed = api.patch(name, &PatchParams::default(), &free).await;
    gone(freed.map(drop))?;
    let now = DeleteParams::default().grace_period(0);
    gone(api.delete(name, &now).await.map(drop))?;
    Ok(())
}
