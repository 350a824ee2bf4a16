//! Metrics of the checks and of the RDMA devices. Findings are counted by check, verdict and Reason, so the catalog of
//! checks limits the number of series.

use crds::node::DeviceHealth;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use checks::debounce::Health;

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByVerdict {
    verdict: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByCheck {
    check: &'static str,
    verdict: &'static str,
    reason: &'static str,
}

#[derive(Debug, Clone, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ByState {
    state: &'static str,
}

/// Registers the metrics; before the first run of the checks they have no series.
pub(super) fn register(
    registry: &mut Registry,
    health: Option<&Health>,
    devices: Option<&DeviceHealth>,
) {
    let checks = Family::<ByVerdict, Gauge>::default();
    let findings = Family::<ByCheck, Gauge>::default();
    if let Some(Health {
        counts,
        findings: reported,
    }) = health
    {
        for (verdict, count) in [
            ("Pass", counts.passed),
            ("Warn", counts.warned),
            ("Fail", counts.failed),
            ("Unknown", counts.unknown),
            ("NotApplicable", counts.not_applicable),
            ("Ignored", counts.ignored),
        ] {
            checks
                .get_or_create(&ByVerdict { verdict })
                .set(i64::from(count));
        }
        for finding in reported {
            let labels = ByCheck {
                check: finding.check.as_str(),
                verdict: finding.finding.verdict.as_str(),
                reason: finding.finding.reason.as_str(),
            };
            findings.get_or_create(&labels).inc();
        }
    }
    let rdma = Family::<ByState, Gauge>::default();
    if let Some(DeviceHealth {
        known, unhealthy, ..
    }) = devices
    {
        for (state, count) in [
            ("healthy", known.saturating_sub(*unhealthy)),
            ("unhealthy", *unhealthy),
        ] {
            rdma.get_or_create(&ByState { state }).set(i64::from(count));
        }
    }
    registry.register(
        "devices",
        "RDMA devices of the node by state: an unhealthy device is not allocatable",
        rdma,
    );
    registry.register("checks", "Checks of the node by result", checks);
    registry.register(
        "check_findings",
        "Current findings by check, verdict and Reason",
        findings,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use checks::Finding;
    use checks::debounce::ReportedFinding;
    use crds::{CheckCounts, CheckId, Reason, Verdict};
    use jiff::Timestamp;
    use prometheus_client::encoding::text::encode;

    #[test]
    fn findings_are_counted_by_check_and_reason_not_by_subject() {
        let finding = |subject: &str| ReportedFinding {
            check: CheckId::PortActive,
            subject: subject.to_owned(),
            finding: Finding {
                verdict: Verdict::Fail,
                reason: Reason::PortNotActive,
                message: "it has lost its link".to_owned(),
            },
            since: Timestamp::UNIX_EPOCH,
            flapping: false,
        };
        let counts = CheckCounts {
            passed: 11,
            failed: 1,
            ..CheckCounts::default()
        };
        let findings = vec![finding("mlx5_0 port 1"), finding("mlx5_1 port 1")];
        let mut registry = Registry::default();
        let devices = DeviceHealth {
            known: 8,
            unhealthy: 1,
            memlock: None,
            unhealthy_devices: Vec::new(),
        };
        let health = Health { counts, findings };
        register(&mut registry, Some(&health), Some(&devices));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "checks{verdict=\"Pass\"} 11",
            "checks{verdict=\"Warn\"} 0",
            "devices{state=\"healthy\"} 7",
            "devices{state=\"unhealthy\"} 1",
            "check_findings{check=\"PortActive\",verdict=\"Fail\",reason=\"PortNotActive\"} 2",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
