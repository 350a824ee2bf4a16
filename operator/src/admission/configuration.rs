//! The JSON file that vLLM, LMCache and the wheel's own loader read, one per container that has
//! values of its own.

use crds::stock::{GLOBAL_SEGMENT_SIZE, LOCAL_BUFFER_SIZE, OWN_CONFIGURATION, is_ours};
use k8s_openapi::api::core::v1::{Container, EnvVar};
use serde_json::{Map, Value, json};

use super::environment::{LOCAL_HOSTNAME, MASTER, METADATA_SERVER, P2P, PROTOCOL, literal, own};
use super::target::Target;
use super::volume;

/// File of all containers that say nothing themselves.
const SHARED_FILE: &str = "config.json";
/// The kubelet puts the pod's address here when it starts the gate.
const POD_ADDRESS: &str = "$(POD_IP)";

/// A file overrides the environment in the wheel's loader, so what the user has said in the
/// environment must stand in the file: variable, then field.
const FIELDS: [(&str, &str); 12] = [
    (MASTER, "master_server_address"),
    (METADATA_SERVER, "metadata_server"),
    (LOCAL_HOSTNAME, "local_hostname"),
    (PROTOCOL, "protocol"),
    (GLOBAL_SEGMENT_SIZE, "global_segment_size"),
    (LOCAL_BUFFER_SIZE, "local_buffer_size"),
    ("MOONCAKE_DEVICE", "device_name"),
    ("MOONCAKE_TENANT_ID", "tenant_id"),
    ("MOONCAKE_OFFLOAD_ENABLED", "enable_ssd_offload"),
    ("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "ssd_offload_path"),
    (
        "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER",
        "enable_client_http_server",
    ),
    ("MOONCAKE_CLIENT_HTTP_PORT", "client_http_port"),
];

/// A file that the gate is to write.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct File {
    pub name: String,
    /// Its text, as an argument of a container: the kubelet expands `$(POD_IP)`.
    pub text: String,
}

impl File {
    /// Path at which the container finds it.
    pub(super) fn path(&self) -> String {
        format!("{}/{}", volume::DIRECTORY, self.name)
    }
}

/// The file of a container; `None` where it must be left alone: it has a configuration of its own,
/// something else at our path, or a value that only the kubelet knows.
pub(super) fn file(container: &Container, target: &Target) -> Option<File> {
    // LMCache would take our file instead of its own configuration. A second call sees the path that the
    // first one gave.
    let is_own = |var: &EnvVar| !var.value.as_deref().is_some_and(is_ours);
    let configured = OWN_CONFIGURATION
        .iter()
        .any(|name| own(container, name).is_some_and(is_own));
    let taken = container
        .volume_mounts
        .iter()
        .flatten()
        .any(|mount| mount.mount_path == volume::DIRECTORY && mount.name != volume::NAME);
    if configured || taken {
        return None;
    }
    let mut fields = defaults(target);
    let mut name = SHARED_FILE.to_owned();
    for (variable, field) in FIELDS {
        let Some(var) = own(container, variable) else {
            continue;
        };
        let Some(literal) = literal(var) else {
            if is_pod_address(var) && field == "local_hostname" {
                continue;
            }
            return None;
        };
        let value = typed(field, literal);
        if fields.get(field) != Some(&value) {
            name = format!("config-{}.json", container.name);
            fields.insert(field.to_owned(), value);
        }
    }
    fields.insert("mode".to_owned(), mode(&fields));
    let text = escape(&Value::Object(fields).to_string());
    Some(File { name, text })
}

fn defaults(target: &Target) -> Map<String, Value> {
    [
        ("device_name", json!("")),
        ("global_segment_size", json!(0)),
        ("local_buffer_size", json!(target.local_buffer_size)),
        ("local_hostname", json!(POD_ADDRESS)),
        ("master_server_address", json!(target.master)),
        ("metadata_server", json!(P2P)),
        ("protocol", json!(target.transport.protocol())),
    ]
    .into_iter()
    .map(|(field, value)| (field.to_owned(), value))
    .collect()
}

fn is_pod_address(var: &EnvVar) -> bool {
    let field = var.value_from.as_ref().and_then(|s| s.field_ref.as_ref());
    field.is_some_and(|f| f.field_path == "status.podIP")
}

/// Sizes and ports are integers where the user wrote one; vLLM refuses some texts that others take.
fn typed(field: &str, text: &str) -> Value {
    let numeric = [
        "global_segment_size",
        "local_buffer_size",
        "client_http_port",
    ];
    match text.trim().parse::<u64>() {
        Ok(number) if numeric.contains(&field) => json!(number),
        _ => json!(text),
    }
}

/// vLLM's word for whether the pod lends memory; it refuses a word that contradicts the size.
fn mode(fields: &Map<String, Value>) -> Value {
    if fields.get("global_segment_size") == Some(&json!(0)) {
        json!("standalone-store")
    } else {
        json!("embedded")
    }
}

/// Doubles every `$` except that of the pod's address: the kubelet halves them again.
fn escape(text: &str) -> String {
    text.replace('$', "$$")
        .replace(&format!("${POD_ADDRESS}"), POD_ADDRESS)
}
