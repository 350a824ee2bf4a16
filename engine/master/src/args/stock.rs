//! What this program does with each flag of the stock master. One that this program has is passed on, one at a value without effect here is left
//! out, every other one is refused by name. Pure.

use std::ffi::OsString;

/// Flags of the stock master for which the same holds.
struct Group {
    rule: Rule,
    /// Name and default of each.
    flags: &'static [(&'static str, &'static str)],
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    /// `Args` has it, with the same meaning.
    Here,
    /// Every value has the same effect here, for this reason.
    Any(&'static str),
    /// Every value, because the stock master reads it only beside one of these flags at a value that is refused.
    Beside(&'static str),
    /// Only this value; of others the text states what to do instead.
    Only(&'static str, &'static str),
    /// Only the default of each; of others the text states what to do instead.
    Default(&'static str),
}
use Rule::{Any, Beside, Default, Here, Only};

const fn group(rule: Rule, flags: &'static [(&'static str, &'static str)]) -> Group {
    Group { rule, flags }
}

const GROUPS: &[Group] = &[
    group(
        Here,
        &[
            ("allocation_strategy", "random"),
            ("allow_evict_soft_pinned_objects", "true"),
            ("client_ttl", "10"),
            ("default_kv_lease_ttl", "10000"),
            ("default_kv_soft_pin_ttl", "1800000"),
            ("enable_http_metadata_server", "false"),
            ("enable_multi_tenants", "false"),
            ("eviction_high_watermark_ratio", "0.9"),
            ("eviction_ratio", "0.05"),
            ("http_metadata_server_host", "0.0.0.0"),
            ("http_metadata_server_port", "8080"),
            ("max_kv_soft_pin_ttl", "86400000"),
            ("max_threads", "16"),
            ("metrics_host", "0.0.0.0"),
            ("metrics_port", "9003"),
            ("port", "50051"),
            ("put_start_discard_timeout_sec", "30"),
            ("put_start_release_timeout_sec", "600"),
            ("rpc_address", "0.0.0.0"),
            ("rpc_conn_timeout_seconds", "0"),
            ("rpc_enable_tcp_no_delay", "true"),
            ("rpc_port", "0"),
            ("rpc_thread_num", "0"),
            ("tenant_quota_connector_type", "file"),
            ("tenant_quota_connector_uri", ""),
            ("logtostderr", "false"),
            ("help", "false"),
            ("version", "false"),
        ],
    ),
    group(
        Only(
            "offset",
            "this master has no other allocator; remove the flag",
        ),
        &[("memory_allocator", "offset")],
    ),
    group(
        Only(
            "false",
            "this master writes no metrics to its log; read /metrics or /metrics/summary on --metrics_port",
        ),
        &[("enable_metric_reporting", "true")],
    ),
    group(
        Default("this master keeps no objects on disk; remove the flag, or use the stock master"),
        &[
            ("enable_offload", "false"),
            ("offload_on_evict", "false"),
            ("promotion_on_hit", "false"),
            ("root_fs_dir", ""),
        ],
    ),
    group(
        Beside("enable_offload, offload_on_evict or promotion_on_hit"),
        &[
            ("offload_cap_ratio", "0.5"),
            ("offload_force_evict", "false"),
            ("offloading_queue_limit", "50000"),
            ("promotion_admission_threshold", "2"),
            ("promotion_max_per_heartbeat", "1"),
            ("promotion_queue_limit", "50000"),
        ],
    ),
    group(
        Beside("root_fs_dir"),
        &[
            ("enable_disk_eviction", "true"),
            ("global_file_segment_size", "9223372036854775807"),
            ("quota_bytes", "0"),
        ],
    ),
    group(
        Default(
            "two masters are elected by --elector_socket; the operator does this with spec.master.replicas",
        ),
        &[("enable_ha", "false"), ("enable_oplog", "false")],
    ),
    group(
        Beside("enable_ha, enable_oplog or root_fs_dir"),
        &[
            ("batch_oplog_retry_timeout_sec", "180"),
            ("cluster_id", "mooncake_cluster"),
            ("etcd_endpoints", ""),
            ("ha_backend_connstring", ""),
            ("ha_backend_type", "etcd"),
            ("oplog_batch_max_entries", "1024"),
            ("oplog_poll_interval_ms", "1000"),
            ("pod_name", ""),
            ("pod_namespace", ""),
        ],
    ),
    group(
        Default("keys are kept by the ledgers of pool pods; remove the flag"),
        &[
            ("enable_snapshot", "false"),
            ("enable_snapshot_restore", "false"),
        ],
    ),
    group(
        Beside("enable_snapshot or enable_snapshot_restore"),
        &[
            ("snapshot_backup_dir", ""),
            ("snapshot_catalog_backend_connstring", ""),
            ("snapshot_catalog_backend_type", ""),
            ("snapshot_catalog_store_connstring", ""),
            ("snapshot_catalog_store_type", ""),
            ("snapshot_child_timeout_seconds", "300"),
            ("snapshot_interval_seconds", "600"),
            ("snapshot_object_store_type", ""),
            ("snapshot_payload_backend_type", ""),
            ("snapshot_payload_store_type", ""),
            ("snapshot_retention_count", "2"),
        ],
    ),
    group(
        Default("this master publishes no events of keys; remove the flag"),
        &[("enable_kv_events", "false")],
    ),
    group(
        Beside("enable_kv_events"),
        &[
            ("kv_events_additional_salt", ""),
            ("kv_events_backend_id", ""),
            ("kv_events_bind_endpoint", ""),
            ("kv_events_block_size", "0"),
            ("kv_events_dp_rank", "0"),
            ("kv_events_emit_legacy_compat", "true"),
            ("kv_events_emit_object_key", "true"),
            ("kv_events_lora_name", ""),
            ("kv_events_model_name", ""),
            ("kv_events_queue_capacity", "65536"),
            ("kv_events_tenant_id", "default"),
        ],
    ),
    group(
        Default("this master makes no replicas by itself; remove the flag"),
        &[("dynamic_replication_mode", "off")],
    ),
    group(
        Beside("dynamic_replication_mode"),
        &[
            ("dynamic_replication_admission_qps_threshold", "0.8"),
            ("dynamic_replication_heat_window_seconds", "10"),
            ("dynamic_replication_max_memory_replicas", "2"),
        ],
    ),
    group(
        Default("this master has no CXL memory; remove the flag"),
        &[("enable_cxl", "false")],
    ),
    group(
        Beside("enable_cxl"),
        &[("cxl_path", "/dev/dax0.0"), ("cxl_size", "8589934592")],
    ),
    group(
        Default("copy and move tasks have these limits; remove the flag"),
        &[
            ("max_retry_attempts", "10"),
            ("max_total_finished_tasks", "10000"),
            ("max_total_pending_tasks", "10000"),
            ("max_total_processing_tasks", "10000"),
            ("pending_task_timeout_sec", "300"),
            ("processing_task_timeout_sec", "300"),
        ],
    ),
    group(
        Default("this master has no NoF segments; remove the flag"),
        &[
            ("nof_eviction_high_watermark_ratio", "0.9"),
            ("nof_eviction_ratio", "0.05"),
            ("nof_heartbeat_failures_threshold", "3"),
            ("nof_heartbeat_interval_sec", "10"),
            ("nof_heartbeat_probe_timeout_ms", "1000"),
        ],
    ),
    group(
        Default(
            "the metadata server removes keys of pods that are gone only with --admitted_file; remove the flag",
        ),
        &[("enable_metadata_cleanup_on_timeout", "false")],
    ),
    group(
        Default("this master reads no other source of flags; write them on the command line"),
        &[
            ("config_path", ""),
            ("flagfile", ""),
            ("fromenv", ""),
            ("tryfromenv", ""),
            ("undefok", ""),
        ],
    ),
    group(
        Default("set --rpc_address to the address of the interface"),
        &[("rpc_interface", "")],
    ),
    group(
        Default("the log goes to standard error; set its level by the variable RUST_LOG"),
        &[
            ("alsologtoemail", ""),
            ("log_backtrace_at", ""),
            ("log_dir", ""),
            ("log_link", ""),
            ("minloglevel", "0"),
            ("v", "0"),
            ("vmodule", ""),
        ],
    ),
    group(
        Any("the log goes to standard error in a form of its own"),
        &[
            ("alsologtostderr", "false"),
            ("colorlogtostderr", "false"),
            ("drop_log_memory", "true"),
            ("log_prefix", "true"),
            ("logbuflevel", "0"),
            ("logbufsecs", "30"),
            ("logemaillevel", "999"),
            ("logfile_mode", "436"),
            ("logmailer", "/bin/mail"),
            ("max_log_size", "1800"),
            ("stderrthreshold", "2"),
            ("stop_logging_if_full_disk", "false"),
            ("symbolize_stacktrace", "true"),
        ],
    ),
    group(
        Any("only clients have such buffers"),
        &[
            ("mmap_arena_pool_size", "8589934592"),
            ("use_mmap_arena_allocator", "false"),
        ],
    ),
    group(
        Default("use --help"),
        &[
            ("helpfull", "false"),
            ("helpmatch", ""),
            ("helpon", ""),
            ("helppackage", "false"),
            ("helpshort", "false"),
            ("helpxml", "false"),
            ("tab_completion_columns", "80"),
            ("tab_completion_word", ""),
        ],
    ),
];

#[derive(Debug, Clone, Copy)]
struct Flag {
    name: &'static str,
    default: &'static str,
    rule: Rule,
}

fn flag(name: &str) -> Option<Flag> {
    flags().find(|flag| flag.name == name)
}

fn flags() -> impl Iterator<Item = Flag> {
    GROUPS.iter().flat_map(|group| {
        let flags = group.flags.iter();
        flags.map(|&(name, default)| Flag {
            name,
            default,
            rule: group.rule,
        })
    })
}

impl Flag {
    fn is_switch(self) -> bool {
        matches!(self.default, "true" | "false")
    }

    /// Why the value is refused.
    fn refusal(self, value: &str) -> Option<String> {
        let (accepted, remedy) = match self.rule {
            Here | Any(_) | Beside(_) => return None,
            Only(accepted, remedy) => (accepted, remedy),
            Default(remedy) => (self.default, remedy),
        };
        let same = match self.is_switch() {
            true => switch(value) == switch(accepted),
            false => value == accepted || is_number(value, accepted),
        };
        (!same).then(|| format!("--{}={value}: {remedy}", self.name))
    }
}

/// Reads a switch as the stock master does.
fn switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "t" | "true" | "y" | "yes" => Some(true),
        "0" | "f" | "false" | "n" | "no" => Some(false),
        _ => None,
    }
}

/// Whether both are the same number: 0.90 is 0.9.
fn is_number(text: &str, number: &str) -> bool {
    let numbers = text.parse::<f64>().ok().zip(number.parse::<f64>().ok());
    numbers.is_some_and(|(one, other)| (one - other).abs() <= f64::EPSILON)
}

/// Returns the arguments for this program: stock flags with two dashes, and without those that have no effect here. Of a flag that
/// is repeated the last value counts.
///
/// # Errors
/// The stock flags that are refused, one a line, each with what to do.
pub(super) fn translate(
    arguments: impl IntoIterator<Item = OsString>,
) -> Result<Vec<OsString>, String> {
    let mut arguments = arguments.into_iter().peekable();
    let mut kept: Vec<OsString> = arguments.next().into_iter().collect();
    let mut refused: Vec<(&str, String)> = Vec::new();
    while let Some(argument) = arguments.next() {
        let Some((name, value)) = argument.to_str().and_then(split) else {
            kept.push(argument);
            continue;
        };
        // The stock master reads `--nofoo` as `--foo=false`.
        let negated = name.strip_prefix("no").and_then(flag);
        let negated = negated.filter(|flag| flag.is_switch() && value.is_none());
        let (flag, value) = match (flag(name), negated) {
            (Some(flag), _) => (flag, value.map(str::to_owned)),
            (None, Some(flag)) => (flag, Some("false".to_owned())),
            (None, None) => {
                kept.push(format!("--{}", name_and(name, value)).into());
                continue;
            }
        };
        let value = value.or_else(|| {
            // A switch needs none. Where one follows it, that is meant, although the stock master reads it after `=` only.
            let is_value =
                |next: &OsString| !flag.is_switch() || next.to_str().and_then(switch).is_some();
            match arguments.next_if(is_value) {
                Some(next) => next.to_str().map(str::to_owned),
                None => flag.is_switch().then(|| "true".to_owned()),
            }
        });
        if flag.rule == Here {
            kept.extend(here(flag, value).map(OsString::from));
            continue;
        }
        let refusal = match value {
            Some(value) => flag.refusal(&value),
            None => Some(format!("--{}: it needs a value", flag.name)),
        };
        refused.retain(|(name, _)| *name != flag.name);
        refused.extend(refusal.map(|refusal| (flag.name, refusal)));
    }
    if refused.is_empty() {
        return Ok(kept);
    }
    let refused: Vec<_> = refused.into_iter().map(|(_, refusal)| refusal).collect();
    Err(format!(
        "this program does not have what these flags of the stock master set:\n  {}",
        refused.join("\n  ")
    ))
}

/// A flag that this program has, in its form. None where it has no effect.
fn here(flag: Flag, value: Option<String>) -> Option<String> {
    let value = match value {
        Some(value) if flag.is_switch() => {
            Some(switch(&value).map_or(value, |value| value.to_string()))
        }
        value => value,
    };
    match (flag.name, value.as_deref()) {
        ("help" | "version", Some("false")) | ("tenant_quota_connector_uri", Some("")) => None,
        // These two end the program, and take no value.
        ("help" | "version", _) => Some(format!("--{}", flag.name)),
        (name, value) => Some(format!("--{}", name_and(name, value))),
    }
}

fn name_and(name: &str, value: Option<&str>) -> String {
    value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}"))
}

/// Name and value of a flag; one dash or two begin it. A short flag of one letter is none, except that of the stock master.
fn split(argument: &str) -> Option<(&str, Option<&str>)> {
    let flag = argument
        .strip_prefix("--")
        .or_else(|| argument.strip_prefix('-'))?;
    let (name, value) = match flag.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (flag, None),
    };
    let is_short = name.len() == 1 && name != "v";
    (name.starts_with(|first: char| first.is_ascii_lowercase()) && !is_short)
        .then_some((name, value))
}

#[cfg(test)]
mod tests;
