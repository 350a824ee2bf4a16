//! The JSON file that SGLang's store, vLLM, LMCache and the wheel's own loader read, one per container that has
//! values of its own.

use crds::stock::{
    CONFIG_PATH, GLOBAL_SEGMENT_SIZE, LOCAL_BUFFER_SIZE, OWN_CONFIGURATION, flag, is_ours,
};
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod};
use serde_json::{Map, Value, json};

use super::environment::{LOCAL_HOSTNAME, MASTER, METADATA_SERVER, literal, own};
use super::target::Target;
use super::volume;
use crate::pod::gate;

/// File of all containers without a setting of their own.
const SHARED_FILE: &str = "config.json";
/// The kubelet puts the pod's address here when it starts the gate.
const POD_ADDRESS: &str = "$(POD_IP)";

/// File of SGLang's store. Unlike `MOONCAKE_PROTOCOL`, no other engine of SGLang reads it.
const SGLANG_PATH: &str = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH";
/// Flag of SGLang with a configuration that it prefers to the file if it names a server.
const SGLANG_FLAG: &str = "--hicache-storage-backend-extra-config";

/// A file overrides the environment in the loaders of SGLang and the wheel, so the user's environment variables are
/// copied into the file: variable, then field. The last five are SGLang's only. `MOONCAKE_PROTOCOL` is not copied: other
/// engines of the container may have any transport, the store has that of the pools.
const FIELDS: [(&str, &str); 16] = [
    (MASTER, "master_server_address"),
    (METADATA_SERVER, "metadata_server"),
    (LOCAL_HOSTNAME, "local_hostname"),
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
    ("MOONCAKE_ENABLE_SSD_OFFLOAD", "enable_ssd_offload"),
    ("MOONCAKE_CHECK_SERVER", "check_server"),
    ("MOONCAKE_STANDALONE_STORAGE", "standalone_storage"),
    ("MOONCAKE_CLIENT", "client_server_address"),
    ("MOONCAKE_MASTER_METRICS_PORT", "master_metrics_port"),
];

/// LMCache removes the prefix and hands the rest to the wheel's `setup(dict)`, which reads `master_server_addr`
/// only. Without it the wheel connects to 127.0.0.1.
const LMCACHE_MASTER: &str = "mooncake_master_server_addr";

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

/// The file of a container; `None` where it must be left alone: each loader has a configuration of the user,
/// something else is at our path, or a value is known only to the kubelet.
pub(super) fn file(container: &Container, target: &Target) -> Option<File> {
    let taken = container
        .volume_mounts
        .iter()
        .flatten()
        .any(|mount| mount.mount_path == volume::DIRECTORY && mount.name != volume::NAME);
    if taken || variables(container).next().is_none() {
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
    if let Some(master) = fields.get("master_server_address").cloned() {
        fields.insert(LMCACHE_MASTER.to_owned(), master);
    }
    let text = escape(&Value::Object(fields).to_string());
    Some(File { name, text })
}

/// The variables by which the container's loaders find the file: those of loaders without a configuration of the user.
pub(super) fn variables(container: &Container) -> impl Iterator<Item = &'static str> {
    let is_free = |name: &&str| configured(container, name).is_none();
    // LMCache would take our file instead of its own configuration.
    let shared = OWN_CONFIGURATION.iter().all(is_free);
    let shared = shared.then_some(CONFIG_PATH);
    let sglang = Some(SGLANG_PATH).filter(is_free);
    shared.into_iter().chain(sglang)
}

/// The user's value of a variable by which a loader finds its configuration. A second call of the webhook sees the path
/// that the first one gave, which is none.
fn configured<'a>(container: &'a Container, name: &str) -> Option<&'a EnvVar> {
    own(container, name).filter(|var| !var.value.as_deref().is_some_and(is_ours))
}

/// Why SGLang's store does not read its transport from our file.
pub(super) fn without_file(container: &Container, file: Option<&File>) -> Option<String> {
    if configured(container, SGLANG_PATH).is_some() {
        return Some(format!("{SGLANG_PATH} names a file of its own"));
    }
    if file.is_none() {
        return Some("no configuration file can be injected into the container".to_owned());
    }
    let command = container.command.iter().flatten();
    let arguments = command.chain(container.args.iter().flatten());
    let words: Vec<&str> = arguments.flat_map(|word| word.split_whitespace()).collect();
    let given = flag(&words, SGLANG_FLAG)?;
    // JSON with spaces is several words.
    let has = |text: &str| words.iter().any(|word| word.contains(text));
    let server = has("master_server_address") || has("client_server_address");
    let unseen = given.trim_start_matches(['"', '\'']).starts_with('@');
    (unseen || (server && !has("\"protocol\""))).then(|| {
        format!(
            "{SGLANG_FLAG} replaces the configuration file and sets no protocol that is known here"
        )
    })
}

/// Transport in the file that injection gave to a container of an injected pod.
pub fn injected_protocol(pod: &Pod, container: &Container) -> Option<String> {
    let paths = [CONFIG_PATH, SGLANG_PATH];
    let mut paths = paths
        .iter()
        .filter_map(|name| own(container, name)?.value.as_deref());
    let (_, name) = paths.find(|path| is_ours(path))?.rsplit_once('/')?;
    let prefix = format!("--file={name}=");
    let mut arguments = gate(pod)?.args.iter().flatten();
    let text = arguments.find_map(|argument| argument.strip_prefix(&prefix))?;
    let file: Value = serde_json::from_str(text).ok()?;
    file.get("protocol")?.as_str().map(str::to_owned)
}

fn defaults(target: &Target) -> Map<String, Value> {
    [
        ("device_name", json!("")),
        ("global_segment_size", json!(0)),
        ("local_buffer_size", json!(target.local_buffer_size)),
        ("local_hostname", json!(POD_ADDRESS)),
        ("master_server_address", json!(target.master)),
        ("metadata_server", json!(target.metadata)),
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

/// Sizes and ports are integers where the user wrote one; vLLM refuses some texts that others take. SGLang takes any
/// text of a switch for true.
fn typed(field: &str, text: &str) -> Value {
    let word = text.trim().to_ascii_lowercase();
    match field {
        "global_segment_size"
        | "local_buffer_size"
        | "client_http_port"
        | "master_metrics_port" => word
            .parse::<u64>()
            .map_or_else(|_| json!(text), |number| json!(number)),
        "enable_ssd_offload"
        | "enable_client_http_server"
        | "check_server"
        | "standalone_storage" => match word.as_str() {
            "true" | "1" | "yes" | "y" | "on" => json!(true),
            "false" | "0" | "no" | "n" | "off" => json!(false),
            _ => json!(text),
        },
        _ => json!(text),
    }
}

/// vLLM's mode: whether the pod contributes memory. vLLM rejects a mode that contradicts the size.
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
