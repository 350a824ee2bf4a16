//! Logs of the operator and of some agents: those that are not ready first.

use std::io;

use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, ResourceExt};
use mooncake_operator::pod::is_ready;

use super::Deadline;
use super::archive::Archive;
use crate::args::BundleArgs;
use crate::connection::Connection;
use crate::read_error::Resources;
use crate::snapshot::{Snapshot, with_component};

/// Newest lines of one log.
const LINES: i64 = 20_000;
/// Bytes of one log that are read, and of its end that are kept.
const READ: i64 = 16 << 20;
const KEPT: usize = 4 << 20;

pub(super) async fn collect(
    archive: &mut Archive,
    connection: &Connection,
    snapshot: &Snapshot,
    args: &BundleArgs,
    deadline: Deadline,
) -> io::Result<()> {
    let operators = with_component(&snapshot.control_plane, crds::names::COMPONENT_OPERATOR);
    let agents = with_component(&snapshot.control_plane, crds::names::COMPONENT_AGENT);
    let mut agents: Vec<&Pod> = agents.map(AsRef::as_ref).collect();
    agents.sort_by_key(|pod| {
        (
            is_ready(pod),
            std::cmp::Reverse(restarts(pod)),
            pod.name_any(),
        )
    });
    if let Some(others @ 1..) = agents.len().checked_sub(args.agents) {
        let why = format!(
            "--agents {} limits them; not ready and restarted ones come first",
            args.agents
        );
        archive.leave_out(format!("logs of {others} agents"), why);
    }
    agents.truncate(args.agents);
    for pod in operators.map(AsRef::as_ref).chain(agents) {
        let previous = restarts(pod) > 0;
        for previous in [false, true].into_iter().take(1 + usize::from(previous)) {
            let pod_name = pod.name_any();
            let path = match previous {
                true => format!("logs/{pod_name}.previous.log"),
                false => format!("logs/{pod_name}.log"),
            };
            let log = read(connection, pod, previous, args);
            match deadline.bound(log).await {
                Ok(Ok(text)) => add(archive, &path, &text)?,
                Ok(Err(why)) | Err(why) => archive.leave_out(path, why),
            }
        }
    }
    Ok(())
}

fn add(archive: &mut Archive, path: &str, text: &str) -> io::Result<()> {
    let start = text.len().saturating_sub(KEPT);
    let end = &text[text.ceil_char_boundary(start)..];
    if start > 0 {
        let why = format!("{start} bytes at the start; the newest {KEPT} are kept");
        archive.leave_out(format!("a part of {path}"), why);
    }
    archive.text(path, end)
}

async fn read(
    connection: &Connection,
    pod: &Pod,
    previous: bool,
    args: &BundleArgs,
) -> Result<String, String> {
    let namespace = pod.namespace().unwrap_or_default();
    let api = Api::<Pod>::namespaced(connection.client.clone(), &namespace);
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let container = containers.map(|container| container.name.clone()).next();
    let params = LogParams {
        container,
        previous,
        limit_bytes: Some(READ),
        since_seconds: i64::try_from(args.since.as_secs()).ok(),
        tail_lines: Some(LINES),
        timestamps: true,
        ..LogParams::default()
    };
    let name = pod.name_any();
    let log = connection.request(Resources::LOGS, &name, async {
        api.logs(&name, &params).await
    });
    log.await.map_err(|error| error.to_string())
}

fn restarts(pod: &Pod) -> i32 {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let restarts = containers.into_iter().flatten();
    restarts.map(|container| container.restart_count).sum()
}
