//! Writes the report to the status of the node's own MooncakeNode: by server-side apply, only when it has changed.

use std::time::{Duration, Instant};

use crds::MooncakeNode;
use crds::node::MooncakeNodeStatus;
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams};
use tokio::sync::watch;

use super::declared_fields::UndeclaredFields;
use super::report::Report;
use crate::assignments::Assignments;
use devices::backoff::{WATCH_LONGEST, WriteBackoff};
use devices::deadline::answered;

mod compose;
pub(crate) mod findings;

use compose::{compose, is_published, set_by_operator};

/// Field manager of what the agent writes.
pub(crate) const FIELD_MANAGER: &str = "mooncake-agent";

/// Least time between two writes.
const WRITE_PERIOD: Duration = Duration::from_millis(500);
/// Time until a status that the API server rejects as invalid is sent again without a change: another CRD may have been
/// installed.
const REJECTED_PERIOD: Duration = Duration::from_secs(10 * 60);

/// Writes the status whenever it differs from what was written last. Ends when the report or the assignments end.
pub(crate) async fn write(
    client: kube::Client,
    node_name: String,
    boot_id: String,
    mut report: watch::Receiver<Report>,
    mut assignments: watch::Receiver<Assignments>,
) {
    let api: Api<MooncakeNode> = Api::all(client);
    let mut written: Option<MooncakeNodeStatus> = None;
    let mut written_to = None;
    let mut undeclared = UndeclaredFields::default();
    let mut undeclared_since = Instant::now();
    let mut backoff = WriteBackoff::new(2 * WRITE_PERIOD, WATCH_LONGEST);
    loop {
        let object = assignments.borrow_and_update().node.clone();
        let report_now = report.borrow_and_update().clone();
        let mut failed = false;
        let mut rejected = false;
        if let Some(object) = object {
            if written_to != object.metadata.uid {
                // A new object of that name starts without a status.
                written = None;
                written_to.clone_from(&object.metadata.uid);
            }
            let published = object.status.unwrap_or_default();
            let before = written.as_ref().unwrap_or(&published);
            let foreign = set_by_operator(&published.conditions);
            let now = Timestamp::now();
            let status = compose(&object.spec, &boot_id, &report_now, before, &foreign, now);
            if written.as_ref() != Some(&status) || !is_published(&status, &published.conditions) {
                // A newer CRD may have been installed.
                if undeclared_since.elapsed() > REJECTED_PERIOD {
                    undeclared = UndeclaredFields::default();
                    undeclared_since = Instant::now();
                }
                match apply(&api, &node_name, &status, &mut undeclared).await {
                    Ok(()) => written = Some(status),
                    Err(error) if is_invalid(&error) => {
                        tracing::warn!(%error, "the API server rejects the status of the MooncakeNode. Install the CRDs of this release.");
                        rejected = true;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot write the status of the MooncakeNode; retrying");
                        failed = true;
                    }
                }
            }
        }
        let now = tokio::time::Instant::now();
        if failed {
            tokio::time::sleep_until(backoff.failed(now)).await;
            continue;
        }
        backoff.succeeded(now);
        tokio::time::sleep(WRITE_PERIOD).await;
        tokio::select! {
            changed = report.changed() => if changed.is_err() { return },
            changed = assignments.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(REJECTED_PERIOD), if rejected => {}
        }
    }
}

/// Writes the status without the fields that an older CRD does not declare.
async fn apply(
    api: &Api<MooncakeNode>,
    name: &str,
    status: &MooncakeNodeStatus,
    undeclared: &mut UndeclaredFields,
) -> kube::Result<()> {
    let mut patch = serde_json::json!({
        "apiVersion": "mooncake.io/v1alpha1",
        "kind": "MooncakeNode",
        "metadata": {"name": name},
        "status": status,
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    loop {
        undeclared.remove_from(&mut patch);
        let applied = answered(api.patch_status(name, &params, &Patch::Apply(&patch))).await;
        match applied {
            Ok(_) => return Ok(()),
            // Ends, as each turn removes a field.
            Err(kube::Error::Api(status)) if undeclared.note(&status.message) => {
                tracing::warn!(
                    ?undeclared,
                    "the installed CRD is older than this agent: fields that it does not declare are not written"
                );
            }
            Err(error) => return Err(error),
        }
    }
}

/// True if the same status would be rejected again.
fn is_invalid(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 422)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_write_without_an_answer_fails_so_that_it_is_tried_again() {
        // Connections are accepted by the kernel, and nothing reads them.
        let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", silent.local_addr().unwrap());
        let config = kube::Config::new(url.parse().unwrap());
        let api: Api<MooncakeNode> = Api::all(kube::Client::try_from(config).unwrap());
        let status = MooncakeNodeStatus::default();
        let mut undeclared = UndeclaredFields::default();
        let write = apply(&api, "n1", &status, &mut undeclared);
        let written = tokio::time::timeout(Duration::from_secs(60), write).await;
        let error = written.expect("it waits for ever").unwrap_err();
        assert!(!is_invalid(&error), "{error}");
    }
}
