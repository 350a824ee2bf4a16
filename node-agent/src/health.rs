//! Runs the checks whenever the snapshot or the assignments change, reports the health of the node, and sends the
//! unhealthy devices to the DRA driver.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crds::node::HcaLine;
use crds::policy::PolicyInForce;
use crds::{MooncakeNode, MooncakeNodeSpec};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::facts::inbox::Inputs;
use crate::publish::report::Reporter;
use crate::watched;
use checks::debounce::{Debounce, Moment};
use checks::policy::apply_policy;
use checks::proof::add_proofs;
use checks::unhealthy_devices::{UnhealthyDevices, device_health, unhealthy_devices};
use checks::{CATALOG, CheckInput, CheckRun, catalog::host_readable, run_checks};
use host::inventory;

pub(crate) mod fixing;
mod late_ports;

use late_ports::LatePorts;

/// Age of the facts from which on the node is not healthy. On slow machines, facts come every 40 seconds.
const STALE_AFTER: Duration = Duration::from_secs(90);

/// How long the first run of the checks waits for the containers.
const CONTAINERS_DEADLINE: Duration = Duration::from_secs(10);

/// Runs the checks until a source ends. `cdi_folder` is set if the agent offers devices.
pub(crate) async fn run(
    boot_id: String,
    (mut snapshots, mut assigned): Inputs,
    cdi_folder: Option<PathBuf>,
    reporter: Reporter,
    publish: watch::Sender<UnhealthyDevices>,
) {
    let started = Instant::now();
    let (mut reading, mut read_at) = (0, started);
    let mut debounce = Debounce::default();
    let mut lines_before: Option<Vec<HcaLine>> = None;
    let mut late = LatePorts::new(started);
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        let node = assigned.borrow_and_update().node.clone();
        let is_assigned = node.is_some();
        if let Some(node) = &node {
            late.expect(|| lines_of(node, |of| of != boot_id));
        }
        // The operator may have written the spec before this boot.
        let published = node.as_ref().map(|node| lines_of(node, |of| of == boot_id));
        let published = published.unwrap_or_default();
        let spec = node.map_or_else(MooncakeNodeSpec::default, |node| node.spec);
        if let Some(snapshot) = &snapshot
            && snapshot.reading != reading
        {
            (reading, read_at) = (snapshot.reading, Instant::now());
        }
        let stale = read_at.elapsed() >= STALE_AFTER;
        // The findings of the previous agent in containers stay until this agent has read them as well.
        let complete = snapshot.as_ref().is_some_and(|snapshot| {
            snapshot.containers.is_some() || started.elapsed() >= CONTAINERS_DEADLINE
        });
        if complete || stale {
            let now = Moment {
                up: started.elapsed(),
                wall: Timestamp::now(),
            };
            let input = snapshot.as_deref().map(|snapshot| CheckInput {
                snapshot,
                spec: &spec,
                cdi_folder: cdi_folder.as_deref(),
            });
            let runs = check_runs(input, stale);
            let health = debounce.update(&runs, now);
            if let Some(snapshot) = &snapshot {
                let (mut lines, omitted) = inventory::lines(&snapshot.facts);
                let before = lines_before.as_deref().unwrap_or(&published);
                add_proofs(&mut lines, snapshot, &health, before);
                lines_before = Some(lines.clone());
                exclude(&mut lines, spec.policy.as_ref());
                let hcas = snapshot.facts.hcas.iter().map(|hca| hca.name.clone());
                let present: BTreeSet<_> = hcas.collect();
                if late.are_read(&present, Instant::now()) {
                    let awaited = late.awaited(&lines, Instant::now());
                    reporter.set_ports((lines, omitted), present, is_assigned, awaited);
                }
            }
            let health = apply_policy(health, &runs, spec.policy.as_ref());
            // The policy decides which findings make a device unhealthy.
            if let (Some(snapshot), true) = (&snapshot, is_assigned) {
                let unhealthy = unhealthy_devices(&health, &snapshot.facts);
                let devices = device_health(&unhealthy, &snapshot.facts);
                reporter.set(|report| &mut report.devices, Some(devices));
                watched::set(&publish, |devices| devices, unhealthy);
            }
            let affected = snapshot.map(|snapshot| snapshot.affected_pods.clone());
            reporter.set_health(health, affected.unwrap_or_default());
        }
        // Delayed findings are reported by a later run: new readings come every few seconds.
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            changed = assigned.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(read_at + STALE_AFTER), if !stale => {}
        }
    }
}

/// Marks the ports of the devices that the policy does not select.
fn exclude(lines: &mut [HcaLine], policy: Option<&PolicyInForce>) {
    for line in lines {
        line.excluded = policy.is_some_and(|policy| !policy.selects_device(&line.name));
    }
}

/// The ports that an agent has published in such a boot of the node.
fn lines_of(node: &MooncakeNode, is_of: impl Fn(&str) -> bool) -> Vec<HcaLine> {
    let status = node.status.as_ref();
    let status = status.filter(|status| is_of(&status.boot_id));
    status.map_or_else(Vec::new, |status| status.hcas.clone())
}

/// Runs all checks. If the facts are stale, HostReadable fails.
fn check_runs(input: Option<CheckInput<'_>>, stale: bool) -> Vec<CheckRun> {
    let mut runs = input.map_or_else(Vec::new, |input| run_checks(CATALOG, &input));
    if stale {
        let unread = host_readable::unread_for(STALE_AFTER.as_secs());
        runs.retain(|run| run.check != unread.check);
        runs.push(unread);
    }
    runs
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crds::policy::{CheckAction, CheckRule};
    use crds::{CheckId, ConditionStatus, MooncakeNode, MooncakeNodeStatus, Reason};
    use rdma_probe::{Failure, Report, Stage};

    use super::*;
    use crate::assignments::Assignments;
    use crate::publish::status::findings::condition;
    use host::{Host, Snapshot};

    #[test]
    fn a_policy_decides_whether_a_finding_makes_the_node_unhealthy_and_can_be_removed() {
        let text = "[proc/sys/net/ipv4]\nip_local_port_range = 60000\t60099";
        let snapshot = Host::parse(text).unwrap().snapshot();
        let spec = MooncakeNodeSpec::default();
        let mut debounce = Debounce::default();
        let mut condition_with = |action: Option<CheckAction>, second: u64| {
            let policy = action.map(|action| PolicyInForce {
                name: "p".to_owned(),
                checks: vec![CheckRule {
                    id: CheckId::EphemeralPorts,
                    action,
                }],
                ..PolicyInForce::default()
            });
            let now = Moment {
                up: Duration::from_secs(second),
                wall: Timestamp::UNIX_EPOCH,
            };
            let runs = check_runs(Some(CheckInput::of(&snapshot, &spec)), false);
            let health = debounce.update(&runs, now);
            let health = apply_policy(health, &runs, policy.as_ref());
            let condition = condition(&health);
            let ignored = condition.message.contains("1 ignored");
            (condition.state, condition.reason, ignored)
        };
        let low = Reason::EphemeralPortsLow;
        assert_eq!(
            condition_with(None, 0),
            (ConditionStatus::False, low, false)
        );
        assert_eq!(
            condition_with(Some(CheckAction::Warn), 1),
            (ConditionStatus::True, low, false)
        );
        let (state, reason, ignored) = condition_with(Some(CheckAction::Ignore), 2);
        assert_eq!((state, ignored), (ConditionStatus::True, true));
        assert_ne!(reason, low);
        assert_eq!(
            condition_with(None, 3),
            (ConditionStatus::False, low, false)
        );
    }

    /// Assignments whose policy sets the action of the check MemoryKey.
    fn assigned(action: CheckAction) -> Assignments {
        let rule = CheckRule {
            id: CheckId::MemoryKey,
            action,
        };
        let spec = MooncakeNodeSpec {
            policy: Some(PolicyInForce {
                name: "p".to_owned(),
                checks: vec![rule],
                ..PolicyInForce::default()
            }),
            ..MooncakeNodeSpec::default()
        };
        Assignments {
            node: Some(MooncakeNode::new("n1", spec)),
            read: true,
        }
    }

    #[tokio::test]
    async fn ports_of_an_earlier_boot_are_not_proved_and_a_node_without_them_is_not_read_yet() {
        const SOON: Duration = Duration::from_secs(30);
        let text = include_str!("../host/machines/vm-soft-roce.txt");
        let mut snapshot = Host::parse(text).unwrap().snapshot();
        snapshot.containers = Some(Vec::new());
        snapshot.hca_reports.clear();
        let mut assigned = assigned(CheckAction::Enforce);
        let (mut lines, _) = inventory::lines(&snapshot.facts);
        lines.iter_mut().for_each(|line| line.proved = true);
        let node = assigned.node.as_mut().unwrap();
        // The operator has not seen the boot yet.
        node.spec.boot_id = "earlier".to_owned();
        node.status = Some(MooncakeNodeStatus {
            boot_id: "earlier".to_owned(),
            hcas: lines,
            ..MooncakeNodeStatus::default()
        });
        let mut before_drivers = snapshot.clone();
        before_drivers.facts.hcas.clear();
        for (boot, snapshot, wanted) in [
            ("earlier", &snapshot, Some([true; 2])),
            ("now", &snapshot, Some([false; 2])),
            ("now", &before_drivers, None),
        ] {
            let (_snapshots, snapshots) = watch::channel(Some(Arc::new(snapshot.clone())));
            let (_assign, assignments) = watch::channel(assigned.clone());
            let reporter = Reporter::default();
            let mut report = reporter.subscribe();
            let (publish, _unhealthy) = watch::channel(UnhealthyDevices::new());
            let inputs = (snapshots, assignments);
            let running = run(boot.to_owned(), inputs, None, reporter, publish);
            let running = tokio::spawn(running);
            let checked = report.wait_for(|report| report.health.is_some());
            let checked = tokio::time::timeout(SOON, checked).await.unwrap().unwrap();
            let lines = checked.hcas.as_ref().map(|(lines, _)| lines);
            let proved = lines.map(|lines| [0, 1].map(|at| lines[at].proved));
            assert_eq!(proved, wanted, "{boot}");
            running.abort();
        }
    }

    #[tokio::test]
    async fn ports_that_the_policy_does_not_select_are_published_as_excluded() {
        const SOON: Duration = Duration::from_secs(30);
        let text = include_str!("../host/machines/vm-soft-roce.txt");
        let mut snapshot = Host::parse(text).unwrap().snapshot();
        snapshot.containers = Some(Vec::new());
        let (_snapshots, snapshots) = watch::channel(Some(Arc::new(snapshot)));
        let with = |entries: &[&str]| {
            let mut assigned = assigned(CheckAction::Enforce);
            let spec = &mut assigned.node.as_mut().unwrap().spec;
            let policy = spec.policy.as_mut().unwrap();
            policy.rdma_devices = entries.iter().map(|entry| (*entry).to_owned()).collect();
            assigned
        };
        let (assign, assignments) = watch::channel(with(&["rxe*", "^rxe1"]));
        let reporter = Reporter::default();
        let mut report = reporter.subscribe();
        let (publish, _unhealthy) = watch::channel(UnhealthyDevices::new());
        tokio::spawn(run(
            String::new(),
            (snapshots, assignments),
            None,
            reporter,
            publish,
        ));
        let mut published = async |wanted: [bool; 2]| {
            let excluded = |report: &crate::publish::report::Report| {
                let (lines, _) = report.hcas.as_ref()?;
                Some(lines.iter().map(|line| line.excluded).collect::<Vec<_>>())
            };
            let published = report.wait_for(|report| excluded(report) == Some(wanted.to_vec()));
            let published = tokio::time::timeout(SOON, published).await;
            assert!(published.is_ok(), "{wanted:?}");
        };
        published([false, true]).await;
        // A new policy applies at once.
        assign.send_replace(with(&["rxe1"]));
        published([true, false]).await;
        assign.send_replace(with(&[]));
        published([false, false]).await;
    }

    #[tokio::test]
    async fn an_unhealthy_device_is_published_once_the_policy_is_known() {
        const SOON: Duration = Duration::from_secs(30);
        let text = include_str!("../host/machines/vm-soft-roce.txt");
        let mut snapshot = Host::parse(text).unwrap().snapshot();
        let report = Report {
            failed: Some(Failure {
                stage: Stage::Open,
                errno: Some(5),
                message: String::new(),
                limits: None,
            }),
            ..Report::default()
        };
        snapshot.hca_reports.insert("rxe1".to_owned(), report);
        snapshot.containers = Some(Vec::new());
        let (_snapshots, snapshots) = watch::channel(Some(Arc::new(snapshot)));
        let (assign, assignments) = watch::channel(Assignments::default());
        let reporter = Reporter::default();
        let report = reporter.subscribe();
        let (publish, mut unhealthy) = watch::channel(UnhealthyDevices::new());
        let inputs = (snapshots, assignments);
        tokio::spawn(run(String::new(), inputs, None, reporter, publish));
        let reported = async {
            while report.borrow().health.is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(SOON, reported).await.unwrap();
        assert!(unhealthy.borrow().is_empty(), "the policy is not known yet");
        assert!(report.borrow().hcas.is_some() && !report.borrow().policy_known);

        assign.send_replace(assigned(CheckAction::Enforce));
        let published = unhealthy.wait_for(|unhealthy| !unhealthy.is_empty());
        let published = tokio::time::timeout(SOON, published).await.unwrap();
        let expected = UnhealthyDevices::from([("rxe1".to_owned(), Reason::RegistrationFailed)]);
        assert_eq!(*published.unwrap(), expected);
        assert!(report.borrow().policy_known);
        assign.send_replace(assigned(CheckAction::Warn));
        let cleared = unhealthy.wait_for(UnhealthyDevices::is_empty);
        let cleared = tokio::time::timeout(SOON, cleared).await.unwrap();
        assert!(cleared.unwrap().is_empty());
    }

    #[test]
    fn a_node_with_stale_facts_is_unhealthy_and_recovers_with_new_ones() {
        let text = "[proc/sys/vm]\nmax_map_count = 65530";
        let snapshot = Host::parse(text).unwrap().snapshot();
        let spec = MooncakeNodeSpec::default();
        let mut debounce = Debounce::default();
        let mut condition_at = |snapshot: Option<&Snapshot>, stale: bool, second: u64| {
            let now = Moment {
                up: Duration::from_secs(second),
                wall: Timestamp::UNIX_EPOCH,
            };
            let input = snapshot.map(|snapshot| CheckInput::of(snapshot, &spec));
            let runs = check_runs(input, stale);
            let condition = condition(&debounce.update(&runs, now));
            (condition.state, condition.reason)
        };
        let unreadable = (ConditionStatus::False, Reason::HostUnreadable);
        assert_eq!(condition_at(None, true, 90), unreadable, "never read");
        assert_eq!(condition_at(Some(&snapshot), false, 95), unreadable);
        assert_eq!(
            condition_at(Some(&snapshot), false, 110).0,
            ConditionStatus::True
        );
        assert_eq!(condition_at(Some(&snapshot), true, 300), unreadable);
    }
}
