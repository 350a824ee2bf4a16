//! Which ports of the node have proved RDMA: the probe has just connected, written and read back over the port, and no
//! reported finding says otherwise. Pure. A failure withdraws a proof at once; the proof returns when the finding clears.

use crds::inventory::{LinkLayer, PortState};
use crds::node::HcaLine;
use crds::{CheckId, Reason, Verdict};

use super::debounce::Health;
use super::rails;
use host::Snapshot;
use host::hca::{Hca, Port};

/// Checks whose failure for a port or its device withdraws a proof. A policy that ignores a check does not change what a
/// port can do.
const CHECKS: [CheckId; 6] = [
    CheckId::DeviceFile,
    CheckId::DeviceResponsive,
    CheckId::MemoryKey,
    CheckId::PortActive,
    CheckId::PortGid,
    CheckId::RdmaLoopback,
];

/// Adds to the lines of the ports what is proved. `health`: the reported findings before policy; `before`: the lines
/// that were published last.
pub fn add_proofs(lines: &mut [HcaLine], snapshot: &Snapshot, health: &Health, before: &[HcaLine]) {
    for line in lines {
        let found = rails::ports(&snapshot.facts)
            .find(|(hca, port)| hca.name == line.name && port.number == line.port);
        let Some((hca, port)) = found else { continue };
        let failed = reason(health, hca, port, Verdict::Fail);
        let usable = rails::supports_rdma(port)
            && port.state == Some(PortState::Active)
            && port.chosen.is_ok();
        if port.link_layer == Some(LinkLayer::InfiniBand) {
            line.path_mtu = probed_mtu(snapshot, hca, port);
        }
        let same = |old: &&HcaLine| {
            (&old.name, old.port, old.gid) == (&line.name, line.port, line.gid)
                // Agents before release 0.2.0 published none.
                && (old.gid_address.is_none() || old.gid_address == line.gid_address)
        };
        let before = before.iter().find(same).is_some_and(|old| old.proved);
        line.proved = usable && failed.is_none() && (before || has_succeeded(snapshot, hca, port));
        // A port that never had a link, or is disabled, is only a warning.
        let warned = || reason(health, hca, port, Verdict::Warn);
        let found = failed.or_else(|| if usable { None } else { warned() });
        line.not_proved = found.map(Into::into);
    }
}

/// True if the last probe of the device has written over the port and read back, with the GID that engines now use.
fn has_succeeded(snapshot: &Snapshot, hca: &Hca, port: &Port) -> bool {
    snapshot.hca_reports.get(&hca.name).is_some_and(|report| {
        let mut loops = report.loops.iter();
        report.hung.is_none()
            && loops.any(|tried| {
                tried.port == port.number
                    && tried.gid == port.chosen.ok()
                    && (tried.address.is_none() || tried.address == port.address())
                    && tried.failed.is_none()
                    && tried.read.is_some()
            })
    })
}

/// The active MTU by the last probe.
fn probed_mtu(snapshot: &Snapshot, hca: &Hca, port: &Port) -> Option<u32> {
    let mut loops = snapshot.hca_reports.get(&hca.name)?.loops.iter();
    loops.find(|tried| tried.port == port.number)?.path_mtu
}

/// The Reason of the first reported finding of the port or its device with this verdict.
fn reason(health: &Health, hca: &Hca, port: &Port, verdict: Verdict) -> Option<Reason> {
    let port = rails::port_name(hca, port);
    let mut findings = health.findings.iter();
    let found = findings.find(|of| {
        of.finding.verdict == verdict
            && CHECKS.contains(&of.check)
            && (of.subject == port || of.subject == hca.name)
    });
    found.map(|of| of.finding.reason)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use rdma_probe::{Failure, Stage, Timing};

    use super::*;
    use crate::debounce::{Debounce, Moment};
    use crate::{CATALOG, CheckInput, run_checks};
    use host::{Host, inventory};

    /// Two devices of one usable port each.
    fn snapshot() -> Snapshot {
        let text = include_str!("../../host/machines/vm-soft-roce.txt");
        let mut snapshot = Host::parse(text).unwrap().snapshot();
        for hca in &snapshot.facts.hcas {
            let report = snapshot.hca_reports.get_mut(&hca.name).unwrap();
            for tried in &mut report.loops {
                tried.gid = hca.ports[0].chosen.ok();
                tried.read = Some(Timing {
                    bytes: 65536,
                    micros: 1,
                });
            }
        }
        snapshot
    }

    /// Agents of one node, one second apart.
    #[derive(Default)]
    struct Agent {
        debounce: Debounce,
        published: Vec<HcaLine>,
        second: u64,
    }

    impl Agent {
        /// What is published of each port after a further reading.
        fn publish(&mut self, snapshot: &Snapshot) -> Vec<(bool, Option<Reason>)> {
            let spec = crds::MooncakeNodeSpec::default();
            let runs = run_checks(CATALOG, &CheckInput::of(snapshot, &spec));
            self.second += 1;
            let now = Moment {
                up: Duration::from_secs(self.second),
                wall: Timestamp::UNIX_EPOCH,
            };
            let health = self.debounce.update(&runs, now);
            let (mut lines, _) = inventory::lines(&snapshot.facts);
            add_proofs(&mut lines, snapshot, &health, &self.published);
            self.published = lines;
            let lines = self.published.iter();
            lines
                .map(|line| (line.proved, line.not_proved.and_then(|word| word.known())))
                .collect()
        }
    }

    #[test]
    fn a_port_is_proved_by_a_read_back_and_until_a_check_fails() {
        let healthy = snapshot();
        let mut agent = Agent::default();
        assert_eq!(agent.publish(&healthy), [(true, None), (true, None)]);

        let mut failing = healthy.clone();
        let tried = &mut failing.hca_reports.get_mut("rxe1").unwrap().loops[0];
        tried.read = None;
        tried.failed = Some(Failure {
            stage: Stage::CompleteRead,
            errno: None,
            message: "remote access error".to_owned(),
            limits: None,
        });
        let unproved = [(true, None), (false, Some(Reason::LoopbackFailed))];
        assert_eq!(agent.publish(&failing), unproved);
        // The finding is reported for a while after it is no longer observed.
        assert_eq!(agent.publish(&healthy), unproved);
        agent.second += 60;
        assert_eq!(agent.publish(&healthy), [(true, None), (true, None)]);
    }

    #[test]
    fn a_proof_lasts_while_a_probe_has_no_result_and_not_for_another_gid() {
        let healthy = snapshot();
        let mut agent = Agent::default();
        agent.publish(&healthy);
        let mut silent = healthy.clone();
        silent.hca_reports.clear();
        assert_eq!(agent.publish(&silent), [(true, None), (true, None)]);
        // The last report is of the former GID.
        let mut changed = healthy;
        changed.facts.hcas[0].ports[0].chosen = Ok(7);
        assert_eq!(agent.publish(&changed), [(false, None), (true, None)]);
        silent.facts.hcas[0].ports[0].chosen = Ok(7);
        assert_eq!(agent.publish(&silent), [(false, None), (true, None)]);
        let unseen = Agent::default().publish(&silent);
        assert_eq!(unseen, [(false, None), (false, None)]);
    }

    #[test]
    fn a_proof_is_of_one_address_and_the_mtu_of_infiniband_is_that_of_the_probe() {
        let mut healthy = snapshot();
        let address = |snapshot: &Snapshot| snapshot.facts.hcas[0].ports[0].address();
        let probed = address(&healthy);
        let report = healthy.hca_reports.get_mut("rxe0").unwrap();
        report.loops[0].address = probed;
        report.loops[0].path_mtu = Some(4096);
        let mut agent = Agent::default();
        assert_eq!(agent.publish(&healthy), [(true, None), (true, None)]);
        let line = &agent.published[0];
        assert_eq!(line.gid_address, probed.map(|gid| gid.to_string()));
        // That of Ethernet is known without a probe.
        assert_eq!((line.path_mtu, line.lid), (Some(1024), None));

        let mut moved = healthy.clone();
        let port = &mut moved.facts.hcas[0].ports[0];
        let index = port.chosen.unwrap();
        let mut gids = port.gids.iter_mut();
        let gid = gids.find(|gid| gid.index == index).unwrap();
        gid.address = "fd00::8".parse().unwrap();
        assert_eq!(agent.publish(&moved), [(false, None), (true, None)]);
        let report = moved.hca_reports.get_mut("rxe0").unwrap();
        report.loops[0].address = Some("fd00::8".parse().unwrap());
        assert_eq!(agent.publish(&moved), [(true, None), (true, None)]);

        let port = &mut healthy.facts.hcas[0].ports[0];
        (port.link_layer, port.lid) = (Some(LinkLayer::InfiniBand), Some(7));
        agent.publish(&healthy);
        let line = &agent.published[0];
        assert_eq!((line.path_mtu, line.lid), (Some(4096), Some(7)));
    }

    #[test]
    fn a_write_without_a_read_back_and_a_port_that_is_down_prove_nothing() {
        let mut snapshot = snapshot();
        let report = snapshot.hca_reports.get_mut("rxe0").unwrap();
        report.loops[0].read = None;
        snapshot.facts.hcas[1].ports[0].state = Some(PortState::Down);
        let published = Agent::default().publish(&snapshot);
        assert_eq!(
            published,
            [(false, None), (false, Some(Reason::PortNotActive))]
        );
    }
}
