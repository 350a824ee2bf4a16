//! The gate: the native sidecar that holds an injected pod's start until the pool answers.

use std::collections::BTreeSet;

use crds::cluster::OnDeadline;
use crds::names;
use k8s_openapi::api::core::v1::{
    Container, DownwardAPIVolumeFile, DownwardAPIVolumeSource, ExecAction, Probe,
    ResourceRequirements, Volume, VolumeMount,
};

use super::configuration::File;
use super::environment::P2P;
use super::target::Target;
use super::transport::StockTransport;
use super::volume;
use crate::pod::{GATE_CONTAINER, GATE_OVER_RDMA};
use crate::pod_parts::{amounts, env_from_field, field, memory_dir, mount, own_container_security};

/// Lies where a token would be mounted: the gate does not use the API server.
const NO_TOKEN_VOLUME: &str = "mooncake-gate-no-token";
/// Downward API volume with the preflight annotation.
const PREFLIGHT_VOLUME: &str = "mooncake-gate-preflight";
const PREFLIGHT_DIRECTORY: &str = "/run/mooncake-preflight";
const PREFLIGHT_FILE: &str = "word";
const TOKEN_DIRECTORY: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Requests and limits are equal, so that a Guaranteed pod stays Guaranteed.
const CPU: &str = "50m";
const MEMORY: &str = "32Mi";
/// Nodes that are tried besides the pod's own.
const SAMPLES: u32 = 3;
/// Seconds between two looks of the kubelet at the gate.
const PROBE_PERIOD: i32 = 1;
const PROBE_TIMEOUT: i32 = 5;
/// Looks that the kubelet grants beyond the deadline, so that it is the gate that ends the wait,
/// with its reason.
const PROBE_SLACK: i32 = 30;

/// The gate's container for a pod whose containers need `files`.
pub(super) fn container(target: &Target, image: &str, files: &BTreeSet<File>) -> Container {
    Container {
        name: GATE_CONTAINER.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec!["/gate".to_owned()]),
        args: Some(arguments(target, files)),
        env: Some(vec![
            env_from_field("NODE_NAME", "spec.nodeName"),
            env_from_field("POD_IP", "status.podIP"),
        ]),
        resources: Some(resources()),
        restart_policy: Some("Always".to_owned()),
        // The gate is admitted wherever the user's pod is.
        security_context: Some(own_container_security()),
        startup_probe: Some(startup_probe(target)),
        termination_message_policy: Some("File".to_owned()),
        volume_mounts: Some(mounts(target)),
        ..Container::default()
    }
}

fn mounts(target: &Target) -> Vec<VolumeMount> {
    let mut mounts = vec![
        mount(volume::NAME, volume::DIRECTORY, false),
        mount(NO_TOKEN_VOLUME, TOKEN_DIRECTORY, true),
    ];
    if target.preflight {
        mounts.push(mount(PREFLIGHT_VOLUME, PREFLIGHT_DIRECTORY, true));
    }
    mounts
}

/// Arguments of `gate hold`. A second call compares them with those in the pod.
pub(super) fn arguments(target: &Target, files: &BTreeSet<File>) -> Vec<String> {
    let Target {
        cluster,
        namespace: _,
        master,
        elected_for: _,
        metadata,
        metadata_cluster,
        transport,
        local_buffer_size: _,
        deadline_seconds,
        on_deadline,
        preflight,
        host_ports: _,
        rdma_class: _,
        pull_secrets: _,
    } = target;
    let on_deadline = match on_deadline {
        OnDeadline::Start => "start",
        OnDeadline::Fail => "fail",
    };
    let mut arguments = vec![
        "hold".to_owned(),
        format!("--cluster={cluster}"),
        format!("--master={master}"),
        format!("--admin-port={}", names::MASTER_ADMIN_PORT),
        "--node=$(NODE_NAME)".to_owned(),
        format!("--directory={}", volume::DIRECTORY),
        format!("--deadline-seconds={deadline_seconds}"),
        format!("--on-deadline={on_deadline}"),
        format!("--samples={SAMPLES}"),
    ];
    if metadata != P2P {
        arguments.push(format!("--metadata={metadata}"));
    }
    if let Some(cluster) = metadata_cluster {
        arguments.push(format!("--metadata-cluster={cluster}"));
    }
    // The default of the gate is TCP.
    if *transport == StockTransport::Rdma {
        arguments.push(GATE_OVER_RDMA.to_owned());
    }
    if *preflight {
        arguments.push(format!(
            "--preflight={PREFLIGHT_DIRECTORY}/{PREFLIGHT_FILE}"
        ));
    }
    arguments.extend(
        files
            .iter()
            .map(|File { name, text }| format!("--file={name}={text}")),
    );
    arguments
}

/// The volumes that the gate's mounts name.
pub(super) fn volumes(target: &Target) -> Vec<Volume> {
    let empty = [volume::NAME, NO_TOKEN_VOLUME].map(|name| memory_dir(name, "1Mi"));
    let mut volumes = empty.to_vec();
    if target.preflight {
        volumes.push(preflight());
    }
    volumes
}

/// Names of volumes that no pod may have of its own.
pub(super) const VOLUMES: [&str; 3] = [volume::NAME, NO_TOKEN_VOLUME, PREFLIGHT_VOLUME];

fn preflight() -> Volume {
    let path = format!("metadata.annotations['{}']", names::ANNOTATION_PREFLIGHT);
    Volume {
        name: PREFLIGHT_VOLUME.to_owned(),
        downward_api: Some(DownwardAPIVolumeSource {
            items: Some(vec![DownwardAPIVolumeFile {
                path: PREFLIGHT_FILE.to_owned(),
                field_ref: Some(field(&path)),
                ..DownwardAPIVolumeFile::default()
            }]),
            ..DownwardAPIVolumeSource::default()
        }),
        ..Volume::default()
    }
}

/// The mount by which a user's container reads its file.
pub(super) fn files_mount() -> VolumeMount {
    mount(volume::NAME, volume::DIRECTORY, true)
}

/// Resources of the gate.
pub(super) fn resources() -> ResourceRequirements {
    let amounts = amounts([("cpu", CPU), ("memory", MEMORY)]);
    ResourceRequirements {
        requests: Some(amounts.clone()),
        limits: Some(amounts),
        ..ResourceRequirements::default()
    }
}

fn startup_probe(target: &Target) -> Probe {
    let looks = i32::try_from(target.deadline_seconds).unwrap_or(i32::MAX - PROBE_SLACK);
    Probe {
        exec: Some(ExecAction {
            command: Some(vec![
                "/gate".to_owned(),
                "probe".to_owned(),
                format!("--directory={}", volume::DIRECTORY),
            ]),
        }),
        failure_threshold: Some(looks / PROBE_PERIOD + PROBE_SLACK),
        period_seconds: Some(PROBE_PERIOD),
        timeout_seconds: Some(PROBE_TIMEOUT),
        ..Probe::default()
    }
}
