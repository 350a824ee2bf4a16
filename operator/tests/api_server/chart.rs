//! ValidatingAdmissionPolicies as the chart renders them.

use anyhow::ensure;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::Value;

/// With default values.
pub(crate) const DEFAULT: &str = include_str!("../../../charts/install.yaml");
/// With other ones, among them `injection.denyUninjected`.
pub(crate) const STRICT: &str = include_str!("../../../charts/cases/registry/rendered.yaml");

/// Creates the policies of a rendered chart whose names begin so, with their bindings; `count` objects.
pub(crate) async fn install_policies(
    client: &Client,
    rendered: &str,
    prefix: &str,
    count: usize,
) -> anyhow::Result<()> {
    let policies = Api::<ValidatingAdmissionPolicy>::all(client.clone());
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(client.clone());
    let mut created = 0;
    for document in serde_yaml_ng::Deserializer::from_str(rendered) {
        let object: Value = serde::Deserialize::deserialize(document)?;
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if !name.starts_with(prefix) {
            continue;
        }
        created += 1;
        let new = PostParams::default();
        if object["kind"] == "ValidatingAdmissionPolicy" {
            policies
                .create(&new, &serde_json::from_value(object)?)
                .await?;
        } else {
            bindings
                .create(&new, &serde_json::from_value(object)?)
                .await?;
        }
    }
    ensure!(created == count, "{created} policies and bindings");
    Ok(())
}

/// The message with which a policy refuses a request; `None` if it succeeds.
pub(crate) fn refusal<T>(answer: Result<T, kube::Error>) -> anyhow::Result<Option<String>> {
    match answer {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => {
            Ok(Some(status.message.clone()))
        }
        Err(error) => Err(error.into()),
    }
}
